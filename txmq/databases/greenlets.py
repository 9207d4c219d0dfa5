"""A greenlet that runs several functions, one after another.

SQLAlchemy runs its blocking code in greenlets when it is used with asyncio, a new one for each
call. To start and end one costs as much as a small statement. A transaction of ours needs one at
its begin and one at its end, and this is the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

__all__ = ["StandingGreenlet"]

T = TypeVar("T")

_PAUSE: Final = object()


class _Pause:
    """Awaited inside the greenlet: its function has returned, and it waits for the next one."""

    def __await__(self) -> Generator[object, None, None]:
        yield _PAUSE


class _Job:
    """A function for the greenlet, and its result.

    A paused greenlet holds only this: a cycle through its frames would never be collected.
    """

    __slots__ = ("error", "is_last", "result", "work")

    def __init__(self) -> None:
        self.work: Callable[[], object] | None = None
        self.is_last = False
        self.result: object = None
        self.error: BaseException | None = None

    def serve(self, _: Session) -> None:
        while (work := self.work) is not None:
            try:
                self.result = work()
            except GeneratorExit:
                raise  # Nothing awaits it any more.
            except BaseException as error:  # noqa: BLE001 - the caller receives it
                self.error = error
                return
            if self.is_last:
                return
            del work
            await_only(_Pause())


class StandingGreenlet:
    """Runs functions in a greenlet of the running task, one after another.

    It starts with the first function, and ends with the last one or with one that raises. Later
    functions start it again.

    Args:
        launcher: A session of no database: sessions are SQLAlchemy's way to start a greenlet.
    """

    __slots__ = ("_inside", "_job", "_launcher")

    def __init__(self, launcher: AsyncSession) -> None:
        self._launcher = launcher
        self._inside: Coroutine[Any, Any, None] | None = None
        self._job = _Job()

    async def run(self, work: Callable[[], T], *, is_last: bool = False) -> T:
        """Run a function that awaits as SQLAlchemy's own do, and return its result.

        Args:
            work: The function.
            is_last: Whether the greenlet ends with it.

        Raises:
            Exception: What the function raised.
        """
        job = self._job
        job.work, job.is_last = work, is_last
        await self
        error, result = job.error, job.result
        job.work = job.error = job.result = None
        if error is None:
            return cast("T", result)
        try:
            raise error
        finally:
            del error  # Its traceback refers to this frame.

    def __await__(self) -> Generator[object, object, None]:
        """Let the greenlet run until it pauses or ends."""
        inside = self._inside
        if inside is None:
            inside = self._inside = self._launcher.run_sync(self._job.serve)
        try:
            waits_for = inside.send(None)
            while waits_for is not _PAUSE:
                try:
                    found = yield waits_for
                except BaseException as error:  # noqa: BLE001 - the greenlet receives it
                    waits_for = inside.throw(error)
                else:
                    waits_for = inside.send(found)
        except StopIteration:
            self._inside = None
