"""Saves changed key values off the event loop, and answers a change when it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from txmq.errors import ServiceUnavailable, WriteFailed
from txmq.limits import POSTPONED_BYTES_MAX, POSTPONED_MAX
from txmq.protocol.command import Command, answer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Postponed
from txmq_broker.names.key_values import KeyValues

__all__ = ["KeyValueWriter"]

_Save: TypeAlias = Callable[[bytes], Awaitable[None]]


class KeyValueWriter:
    """Writes the whole table for each change; changes that arrive meanwhile share the next write.

    Args:
        values: The table.
        save: Saves its text, off the event loop; raises :class:`~txmq.errors.WriteFailed`.
            ``None`` keeps the table in memory only.
    """

    def __init__(self, values: KeyValues, save: _Save | None = None) -> None:
        self._values = values
        self._save = save
        self._waiting: list[tuple[Connection, Command, int]] = []
        """Connections, requests, and how many bytes each of these takes."""
        self._unserved = 0
        """Requests that wait, with those of the running write."""
        self._bytes = 0
        self._served: Command | None = None
        """The request whose write has ended."""
        self._failure: WriteFailed | None = None
        self._task: asyncio.Task[None] | None = None
        self.dispatch = Dispatcher({})
        """Has the handlers that serve the requests a second time, after their write."""

    def serve(self, request: Command, change: Callable[[], None]) -> bytes:
        """Make a change, and return the answer.

        Raises:
            Postponed: The answer follows the write.
            WriteFailed: The write failed, and the change has no effect.
            ServiceUnavailable: Too many requests wait for a write.
        """
        if request is self._served:
            if self._failure is not None:
                raise self._failure
            return answer(request)
        if self._unserved >= POSTPONED_MAX or self._bytes >= POSTPONED_BYTES_MAX:
            raise ServiceUnavailable(
                f"{self._unserved} changes of key values wait for the disk, which is the limit; "
                "nothing was stored; send again later"
            )
        change()
        if self._save is None:
            self._values.durable = self._values.staged
        if self._values.is_saved:  # It changed nothing, and nothing else waits for the disk.
            return answer(request)
        raise Postponed(self._postpone)

    async def close(self) -> None:
        """Wait for the running write, so that the next owner of the file finds it whole."""
        self._waiting.clear()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _postpone(self, connection: Connection, request: Command) -> None:
        size = len(request.body) + memoryview(request.ext).nbytes
        if request.fields is not None:
            size += sum(map(len, request.fields.values()))
        self._waiting.append((connection, request, size))
        self._unserved += 1
        self._bytes += size
        if self._task is None:
            assert self._save is not None
            self._task = asyncio.create_task(self._write_all(self._save), name="the key values")

    async def _write_all(self, save: _Save) -> None:
        try:
            while self._waiting:
                await self._write(save)
        finally:
            self._task = None

    async def _write(self, save: _Save) -> None:
        requests, self._waiting = self._waiting, []
        staged = self._values.staged
        try:
            await save(staged.encode())
        except WriteFailed as error:
            # What was staged meanwhile stands upon the changes that failed.
            self._values.undo()
            requests, self._waiting = requests + self._waiting, []
            self._failure = error
        else:
            self._values.durable = staged
            self._failure = None
        for connection, request, size in requests:
            self._unserved -= 1
            self._bytes -= size
            self._served = request
            if (found := self.dispatch(connection, request)) is not None:
                connection.send(found)
        self._served = None
