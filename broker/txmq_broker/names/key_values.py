"""Operators' texts on a name server, by namespace and key, and the writer that saves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from txmq.errors import ConfigError, LimitExceeded, ServiceUnavailable, WriteFailed
from txmq.limits import KEY_VALUE_BYTES_MAX, KEY_VALUES_MAX, POSTPONED_BYTES_MAX, POSTPONED_MAX
from txmq.protocol.command import Command, answer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Postponed

__all__ = ["ORDER_TOPICS", "KeyValueTable", "KeyValueWriter", "KeyValues"]

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace with each broker's number of queues for ordered messages, by topic."""


class _Written(msgspec.Struct):
    """The contents of the file, in RocketMQ's format."""

    table: dict[str, dict[str, str]] = msgspec.field(name="configTable", default_factory=dict)


class KeyValueTable(NamedTuple):
    """All texts at one time; each change makes a new table."""

    spaces: dict[str, dict[str, str]]
    entries: int
    """The number of entries."""
    chars: int
    """The characters of all entries."""

    def encode(self) -> bytes:
        """The contents of the file."""
        return msgspec.json.encode(_Written(self.spaces))


class KeyValues:
    """Namespaces of texts by key. A reader sees a change only when it is durable."""

    def __init__(self, data: bytes | None = None) -> None:
        """Load the saved texts.

        Raises:
            ConfigError: The saved data is damaged.
        """
        spaces: dict[str, dict[str, str]] = {}
        if data is not None:
            try:
                spaces = msgspec.json.decode(data, type=_Written).table
            except msgspec.MsgspecError as error:
                raise ConfigError(f"the saved key-value table is damaged: {error}") from error
        sizes = [
            _size(namespace, key, value)
            for namespace, space in spaces.items()
            for key, value in space.items()
        ]
        self.durable = self.staged = KeyValueTable(spaces, len(sizes), sum(sizes))
        self._refused = 0

    @property
    def is_saved(self) -> bool:
        """Whether all changes are durable."""
        return self.staged is self.durable

    def figures(self) -> dict[str, int]:
        """The stored entries, and the number of refused ones since the start."""
        return {
            "key_values": self.durable.entries,
            "key_value_characters": self.durable.chars,
            "key_values_refused": self._refused,
        }

    def get(self, namespace: str, key: str) -> str | None:
        """The text of a key, or ``None``."""
        return self.space(namespace).get(key)

    def space(self, namespace: str) -> dict[str, str]:
        """All texts of a namespace, by key; empty if the namespace does not exist."""
        return self.durable.spaces.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Stage a text.

        Raises:
            LimitExceeded: The limit of entries or of their characters is reached.
        """
        spaces, count, staged_size = self.staged
        space = spaces.get(namespace, {})
        old = space.get(key)
        size = staged_size + _size(namespace, key, value)
        if old is None:
            count += 1
        else:
            size -= _size(namespace, key, old)
        # A larger table, from a version with other limits, may still shrink.
        if old is None and count > KEY_VALUES_MAX:
            raise self._full("the number of", KEY_VALUES_MAX, count)
        if size > max(KEY_VALUE_BYTES_MAX, staged_size):
            raise self._full("the characters of all", KEY_VALUE_BYTES_MAX, size)
        if value != old:
            self._stage(namespace, {**space, key: value}, count, size)

    def _full(self, what: str, limit: int, offered: int) -> LimitExceeded:
        self._refused += 1
        return LimitExceeded(
            f"nothing was stored, because {what} key-value entries", limit, offered
        )

    def delete(self, namespace: str, key: str) -> None:
        """Stage the removal of a text; harmless if it does not exist."""
        spaces, count, size = self.staged
        space = spaces.get(namespace, {})
        old = space.get(key)
        if old is not None:
            rest = {name: text for name, text in space.items() if name != key}
            self._stage(namespace, rest, count - 1, size - _size(namespace, key, old))

    def _stage(self, namespace: str, space: dict[str, str], count: int, size: int) -> None:
        spaces = {**self.staged.spaces, namespace: space}
        if not space:
            del spaces[namespace]
        self.staged = KeyValueTable(spaces, count, size)

    def undo(self) -> None:
        """Forget all staged changes."""
        self.staged = self.durable


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


_Save: TypeAlias = Callable[[bytes], Awaitable[None]]


class KeyValueWriter:
    """Writes the whole table for each change; changes during a write share the next write.

    Args:
        values: The table.
        save: Saves its text, off the event loop; raises :class:`~txmq.errors.WriteFailed`.
            ``None`` keeps the table in memory only.
    """

    def __init__(self, values: KeyValues, save: _Save | None = None) -> None:
        self._values = values
        self._save = save
        self._waiting: list[tuple[Connection, Command, int]] = []
        """The connections and requests, with the size of each request in bytes."""
        self._unserved = 0
        """The number of requests that wait, including those of the running write."""
        self._bytes = 0
        self._served: Command | None = None
        """The request that is being served again after its write."""
        self._failure: WriteFailed | None = None
        self._task: asyncio.Task[None] | None = None
        self.dispatch = Dispatcher({})
        """Serves the requests a second time, after their write."""

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
        """Wait for the running write, so that the next owner of the file finds it intact."""
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
            # Changes staged during the write build on those that failed.
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
