"""Changes accounts off the event loop, and answers each request once its change is in force."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from txmq.errors import ServiceUnavailable
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Postponed
from txmq.runtime.clock import Clock
from txmq_broker.access.acl_editor import AclEditor
from txmq_broker.access.acl_files import AclFiles

__all__ = ["AccountChanges"]

_WAITING_MAX: Final = 100


class WaitingChange(NamedTuple):
    """A change, and the request that it is for."""

    make: Callable[[], None]
    connection: Connection
    request: Command


class AccountChanges:
    """Makes changes one after another. With 5,000 accounts, one change takes a few seconds.

    Args:
        files: The files of accounts.
        clock: The source of time.
    """

    def __init__(self, files: AclFiles, clock: Clock) -> None:
        self.files = files
        self._editor = AclEditor(files, clock)
        self._waiting: deque[WaitingChange] = deque()
        self._served: Command | None = None
        """The request that is being served again: its change is in force, or was refused."""
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self.dispatch = Dispatcher({})
        """Serves the requests a second time, after their changes."""

    def make(self, request: Command, change: Callable[[AclEditor], None]) -> None:
        """Make a change in a thread; it is in force when the request is served again.

        Raises:
            Postponed: The request is served again once the change is made.
            ServiceUnavailable: Too many changes wait.
            Exception: The change raised it.
        """
        if request is self._served:
            if self._failure is not None:
                raise self._failure
            return
        if len(self._waiting) >= _WAITING_MAX:
            raise ServiceUnavailable(
                f"{_WAITING_MAX} changes of accounts wait, which is the limit; nothing was "
                "changed; send it again later"
            )
        raise Postponed(partial(self._put, partial(change, self._editor)))

    def close(self) -> None:
        """Drop waiting changes; their connections are about to close."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def _put(self, make: Callable[[], None], connection: Connection, request: Command) -> None:
        self._waiting.append(WaitingChange(make, connection, request))
        if self._task is None:
            self._task = asyncio.create_task(self._make_all(), name="changes of accounts")

    async def _make_all(self) -> None:
        try:
            while self._waiting:
                await self._make_one(self._waiting.popleft())
        finally:
            self._task = None

    async def _make_one(self, change: WaitingChange) -> None:
        self._failure = None
        try:
            await asyncio.to_thread(change.make)
        except Exception as error:  # noqa: BLE001 - the handler raises it for the request
            self._failure = error
        await self.files.refresh_in_thread()
        self._served = change.request
        answer = self.dispatch(change.connection, change.request)
        self._served = None
        if answer is not None:
            change.connection.send(answer)
