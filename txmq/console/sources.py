"""Outboxes and results of reconciliations, which a console shows in addition to the cluster.

Reading them blocks, so each has its own threads, and a slow one delays only its own pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from txmq.console.settings import OutboxAddress
from txmq.errors import DatabaseFailed, NotFound, ReconcileRefused
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq.outbox.operator_access import OutboxOperator
    from txmq.reconcile.archive import ReportArchive

__all__ = ["OutboxDatabases", "ReportLinks"]

T = TypeVar("T")

ANSWER_S: Final = 8.0
"""How long a page waits for a call. The page itself may take longer, so that it can report a call
that does not return."""
STATEMENT_S: Final = 5
_THREADS: Final = 2


class _BoundedThreads:
    """Runs one owner's blocking calls in its own threads, so that a hung call delays no other
    owner.

    Args:
        name: What the threads are for.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"txmq-{name}")

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a call. A call that takes too long continues, but its result is lost.

        Raises:
            TimeoutError: It takes longer than :data:`ANSWER_S`.
            Exception: Any error of the call.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            return await loop.run_in_executor(self._pool, call)

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class OutboxDatabases:
    """Reads and changes outboxes; each has its own threads.

    Args:
        addresses: The outboxes, each with its name.

    Raises:
        ConfigError: A URL is invalid, a driver or the extra ``sql`` is missing, or a name of a
            table is invalid.
    """

    def __init__(self, addresses: Iterable[OutboxAddress]) -> None:
        self._open: dict[str, _OutboxLink] = {}
        for address in addresses:
            self._open[address.name] = _OutboxLink(address)

    @property
    def names(self) -> list[str]:
        """The names of the outboxes, in the order of the options."""
        return list(self._open)

    def address_of(self, name: str) -> str:
        """The URL of a database without its password, and the table.

        Raises:
            NotFound: The console has no such outbox.
        """
        return self._link(name).shown

    async def ask(self, name: str, question: Callable[[OutboxOperator], T]) -> T:
        """Ask an outbox in its threads, and return the answer.

        Raises:
            NotFound: The console has no such outbox, or the outbox has no such row.
            TableMissing: The database has no such table.
            DatabaseFailed: The database refused, or does not answer in time.
        """
        return await self._link(name).ask(question)

    def close(self) -> None:
        """Close the connections; a statement that still runs ends at its time limit."""
        for link in self._open.values():
            link.close()

    def _link(self, name: str) -> _OutboxLink:
        link = self._open.get(name)
        if link is None:
            raise NotFound(f"this console has no outbox {name!r}; go back to the list")
        return link


class _OutboxLink:
    def __init__(self, address: OutboxAddress) -> None:
        with named_extra():
            from txmq.databases.engines import engine_of
            from txmq.outbox.operator_access import OutboxOperator
            from txmq.outbox.table import Outbox

        self._name = address.name
        self._engine = engine_of(address.url, limit_s=STATEMENT_S)
        outbox = Outbox(address.table, address.schema)
        self._operator = OutboxOperator(outbox, self._engine)
        self._threads = _BoundedThreads("outbox")
        shown = self._engine.url.difference_update_query(self._engine.url.query)
        self.shown = f"{outbox.rows.fullname} in {shown.render_as_string(hide_password=True)}"

    async def ask(self, question: Callable[[OutboxOperator], T]) -> T:
        try:
            return await self._threads.run(lambda: question(self._operator))
        except TimeoutError as error:
            raise DatabaseFailed(
                f"the database of outbox {self._name} did not answer within {ANSWER_S:.0f} s"
            ) from error

    def close(self) -> None:
        self._threads.close()
        self._engine.dispose()


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
        self._threads = _BoundedThreads("reports")
        if directory is not None:
            with named_extra():
                from txmq.reconcile.archive import ReportArchive

            self._archive = ReportArchive(directory)

    @property
    def directory(self) -> str:
        """The directory; empty if the console shows no results."""
        return "" if self._archive is None else str(self._archive)

    async def ask(self, question: Callable[[ReportArchive], T]) -> T:
        """Ask the archive in a thread, and return the answer.

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
        """Drop the reads that have not begun."""
        self._threads.close()
