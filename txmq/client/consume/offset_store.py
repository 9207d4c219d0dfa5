"""Consumed offsets: stored by brokers, or for broadcast consumers in a file.

Offsets are noted at any time and saved periodically. After a crash, the group consumes messages
again whose offsets were noted but not saved.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Final, Protocol

from txmq.client.admin.offsets import OffsetCalls
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import ConfigError, NotFound, TxmqError, WriteFailed
from txmq.message import Queue, QueueOffset
from txmq.protocol.topics import RETRY
from txmq.runtime.clock import Clock
from txmq.text import quantity

__all__ = ["BrokerOffsets", "FileOffsets", "OffsetStore", "begin_at", "settle_beginning"]

log = logging.getLogger(__name__)

RECENT_S: Final = 1800.0
"""How far back ``StartFrom.TIME`` starts by default, as in stock clients."""

SAVED_AT_ONCE: Final = 64


class OffsetStore(Protocol):
    """The store of a consumer's offsets."""

    async def load(self, queue: Queue) -> QueueOffset | None:
        """The offset of the next message of a queue; ``None`` if none was ever saved.

        Raises:
            TxmqError: The offset is not available now.
        """
        ...

    def note(self, queue: Queue, offset: QueueOffset) -> None:
        """Note that all messages before this offset are consumed."""
        ...

    def forget(self, queue: Queue) -> None:
        """Forget a queue that now belongs to another consumer."""
        ...

    async def save(self, queue: Queue | None = None) -> TxmqError | None:
        """Persist the noted offsets of one queue or all; failed ones are saved next time.

        Returns:
            The first error; ``None`` if all offsets are saved.
        """
        ...


class BrokerOffsets:
    """Offsets that brokers keep for the group."""

    def __init__(self, group: str, calls: OffsetCalls) -> None:
        self._group = group
        self._calls = calls
        self._noted: dict[Queue, QueueOffset] = {}
        self._saved: dict[Queue, QueueOffset] = {}

    async def load(self, queue: Queue) -> QueueOffset | None:
        """See :meth:`OffsetStore.load`."""
        return await self._calls.committed_offset(self._group, queue)

    def note(self, queue: Queue, offset: QueueOffset) -> None:
        """See :meth:`OffsetStore.note`."""
        self._noted[queue] = offset

    def forget(self, queue: Queue) -> None:
        """See :meth:`OffsetStore.forget`."""
        self._noted.pop(queue, None)
        self._saved.pop(queue, None)

    async def save(self, queue: Queue | None = None) -> TxmqError | None:
        """See :meth:`OffsetStore.save`."""
        left = [
            noted_queue
            for noted_queue, at in self._noted.items()
            if queue in {None, noted_queue} and self._saved.get(noted_queue) != at
        ]
        problems: list[TxmqError] = []
        while left:
            # In chunks: a member may hold thousands of queues.
            ends = await asyncio.gather(*[self._save(queue) for queue in left[:SAVED_AT_ONCE]])
            problems += [error for error in ends if error is not None]
            del left[:SAVED_AT_ONCE]
        if not problems:
            return None
        # One log line for all queues.
        queues = quantity(len(problems), "queue")
        text = "%s: offsets are not saved in %s; the last error: %s"
        log.warning(text, self._group, queues, problems[-1])
        return problems[-1]

    async def _save(self, queue: Queue) -> TxmqError | None:
        # Read the offset now: while others were saved, the queue may have been moved, or lost to
        # another consumer that has advanced.
        offset = self._noted.get(queue)
        if offset is None:
            return None
        try:
            await self._calls.commit_offset(self._group, queue, offset)
        except TxmqError as error:
            log.debug("%s: offset %d of %s is not saved: %s", self._group, offset, queue, error)
            return error
        if queue in self._noted:  # Otherwise another consumer has the queue by now.
            self._saved[queue] = offset
        return None


class FileOffsets:
    """Offsets in a file, for a consumer that shares its queues with no other.

    A save writes a new file and renames it over the old one, so that the file is always complete.

    Args:
        folder: The folder of the file.
        group: The consumer group, which names the file.

    Raises:
        ConfigError: The file is not one of ours, or cannot be read.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._group = group
        # Some file systems do not allow a bar, and group names do not contain a plus.
        self._path = folder / f"{group.replace('|', '+')}.json"
        path = self._path
        if "|" in group and not path.exists():
            path = folder / f"{group.replace('|', '_')}.json"  # The name in older versions.
        self._noted = _read(path, group)
        self._is_new = False

    async def load(self, queue: Queue) -> QueueOffset | None:
        """See :meth:`OffsetStore.load`."""
        return self._noted.get(queue)

    def note(self, queue: Queue, offset: QueueOffset) -> None:
        """See :meth:`OffsetStore.note`."""
        if self._noted.get(queue) != offset:
            self._noted[queue] = offset
            self._is_new = True

    def forget(self, queue: Queue) -> None:
        """Keep the offset: the queue may come back, and no other consumer moves it."""

    async def save(self, queue: Queue | None = None) -> TxmqError | None:
        """See :meth:`OffsetStore.save`; all queues are saved, because they share one file."""
        del queue
        if not self._is_new:
            return None
        rows = [
            [noted_queue.topic, noted_queue.broker, noted_queue.number, at]
            for noted_queue, at in self._noted.items()
        ]
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps({"group": self._group, "offsets": rows}))
            fresh.replace(self._path)
        except OSError as error:
            log.warning("offsets are not saved in %s: %s", self._path, error)
            return WriteFailed(f"offsets are not saved in {self._path}: {error}")
        self._is_new = False
        return None


def _read(path: Path, group: str) -> dict[Queue, QueueOffset]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"offsets cannot be read from {path}: {error}") from error
    try:
        content = json.loads(text or '{"offsets": []}')
        rows = content["offsets"] if content.get("group", group) == group else ()
        return {Queue(str(t), str(b), int(n)): QueueOffset(int(at)) for t, b, n, at in rows}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} does not hold offsets: {error!r}") from error


async def settle_beginning(queues: list[Queue], offsets: OffsetStore, calls: OffsetCalls) -> None:
    """Save the start offsets of a new group that begins with messages stored from now on.

    It covers all queues of a topic, for all members: a member that starts a queue later, or
    replaces a dead member, must not skip messages stored in between. A queue newer than the group
    starts at its oldest message, because all its messages were stored since the group began.

    Raises:
        TxmqError: A broker does not return an offset, or does not save it.
    """
    fresh: list[Queue] = []
    for at in range(0, len(queues), SAVED_AT_ONCE):
        some = queues[at : at + SAVED_AT_ONCE]
        found = await asyncio.gather(*[offsets.load(queue) for queue in some])
        fresh += [queue for queue, offset in zip(some, found, strict=True) if offset is None]
    first_of = calls.max_offset if len(fresh) == len(queues) else calls.min_offset
    for queue in fresh:
        offsets.note(queue, await first_of(queue))
    failure = await offsets.save()
    for queue in fresh:
        offsets.forget(queue)
    if failure is not None:
        raise failure


async def begin_at(
    queue: Queue,
    offsets: OffsetStore,
    settings: ConsumerSettings,
    calls: OffsetCalls,
    clock: Clock,
    *,
    is_new: bool = False,
) -> QueueOffset:
    """A group's committed offset in a queue, or its start offset if it never committed one.

    With ``StartFrom.LAST``, a queue newer than its consumer (``is_new``) starts at its oldest
    message, because all its messages came after the consumer's start.

    Raises:
        TxmqError: The broker does not return an offset.
    """
    try:
        found = await offsets.load(queue)
    except NotFound:
        found = None
    if found is not None:
        return found
    if is_new and settings.start is StartFrom.LAST:
        first = await calls.min_offset(queue)
    else:
        first = await _first_offset(queue, settings, calls, clock)
    # Saved at once: messages from now on belong to the group, even if this process ends before the
    # next save.
    offsets.note(queue, first)
    await offsets.save(queue)
    return first


async def _first_offset(
    queue: Queue, settings: ConsumerSettings, calls: OffsetCalls, clock: Clock
) -> QueueOffset:
    # All messages in a retry topic belong to the group.
    is_retry = queue.topic.startswith(RETRY)
    if settings.start is StartFrom.TIME and not is_retry:
        start_ms = settings.start_ms
        if start_ms is None:
            start_ms = clock.wall_ms() - int(RECENT_S * 1000)
        return await calls.offset_by_time(queue, start_ms)
    if settings.start is StartFrom.LAST and not is_retry:
        return await calls.max_offset(queue)
    return await calls.min_offset(queue)
