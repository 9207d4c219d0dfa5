"""The results of reconciliations that a console shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from txmq.console.bounded_threads import ANSWER_S, BoundedThreads
from txmq.errors import ReconcileRefused
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq.reconcile.archive import ReportArchive

__all__ = ["ReportLinks"]

T = TypeVar("T")


class ReportLinks:
    """Reads a directory of results in threads.

    Args:
        directory: The directory; ``None`` if the console shows no results.

    Raises:
        ConfigError: The extra ``spark`` is missing, or the directory cannot be reached.
        ReconcileRefused: The file system does not answer.
    """

    def __init__(self, directory: str | None) -> None:
        self._archive: ReportArchive | None = None
        self._threads = BoundedThreads("reports")
        if directory is not None:
            with named_extra():
                from txmq.reconcile.archive import ReportArchive

            self._archive = ReportArchive(directory)

    @property
    def directory(self) -> str:
        """The directory; empty if the console shows no results."""
        return "" if self._archive is None else str(self._archive)

    async def ask(self, question: Callable[[ReportArchive], T]) -> T:
        """The answer of the archive.

        Raises:
            NotFound: The archive has no such day or break.
            ReconcileRefused: There is no directory, or it cannot be read in time.
        """
        archive = self._archive
        if archive is None:
            raise ReconcileRefused(
                "this console shows no reconciliation; start it with --reports DIRECTORY"
            )
        try:
            return await self._threads.run(lambda: question(archive))
        except TimeoutError as error:
            raise ReconcileRefused(
                f"{archive} was not read within {ANSWER_S:.0f} s; try again"
            ) from error
        except OSError as error:
            raise ReconcileRefused(f"{archive} cannot be read: {error}") from error

    def close(self) -> None:
        """Drop what was not read yet."""
        self._threads.close()
