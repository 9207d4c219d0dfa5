"""Messages of a topic from the newest to the oldest, read in bounded steps.

A scan walks all queues backwards at once. For each queue, its cursor has the offset before which
the next step begins, so a step neither repeats nor skips a message.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from txmq.client import Admin
from txmq.errors import UsageError
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.ops.queries import for_each
from txmq.text import quantity

__all__ = [
    "SCANNED_BYTES_MAX",
    "SCANNED_MAX",
    "SCANNED_QUEUES_MAX",
    "MessageScan",
    "ScanWish",
    "ScannedMessage",
    "scan_messages",
]

SCANNED_MAX: Final = 2_000
"""The maximum number of messages that one step reads."""
SCANNED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The number of bytes of bodies after which a step begins no further batch."""
SCANNED_QUEUES_MAX: Final = 64
"""The maximum number of queues that one scan reads; the cursor has an offset for each of them."""
PREVIEW_BYTES: Final = 1_024
"""Bytes of each body that a scan keeps."""
_AT_ONCE_MAX: Final = 32
_AT_ONCE_OF_ALL: Final = 128
"""The messages that the first requests to all queues fetch in total, but no fewer than two each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanWish:
    """Which messages to find."""

    topic: str
    queue: Queue | None = None
    """Only this queue."""
    since_ms: int = 0
    until_ms: int | None = None
    contains: str = ""
    """Only messages with this text in a key, the tag, the id or the body."""


class ScannedMessage(NamedTuple):
    """A message with the beginning of its body."""

    message: ReceivedMessage
    size: int
    """The bytes of the whole body."""
    is_wanted: bool


class MessageScan(NamedTuple):
    """The messages that one step found, newest first."""

    messages: list[ScannedMessage]
    read: int
    """The messages that the step read."""
    next: str
    """The cursor of the next step; empty if all are read."""
    damaged: list[str]
    """The brokers' texts about damaged messages, which are left out."""


class _BackwardQueue:
    """A queue that is read backwards, a batch at a time."""

    def __init__(
        self, admin: Admin, wish: ScanWish, queue: Queue, end: int, low: int, at_once: int
    ) -> None:
        self._admin = admin
        self._wish = wish
        self._queue = queue
        self._low = low
        self._at_once = at_once
        self._fetched: list[ScannedMessage] = []
        self.damaged: list[str] = []
        self.read_bytes = 0
        self.before = end
        """The messages before this offset have not been taken yet."""

    async def fill(self) -> None:
        """Fetch the messages before those taken, unless some are already fetched."""
        while not self._fetched and self.before > self._low:
            at = start = max(self._low, self.before - self._at_once)
            while at < self.before:
                pulled = await self._admin.pull(
                    self._queue, at, self.before - at, on_damage=self.damaged.append
                )
                for message in pulled.messages:
                    if start <= message.offset < self.before:
                        self._keep(message)
                if pulled.next_offset <= at:
                    break
                at = pulled.next_offset
            if not self._fetched:
                self.before = start  # The broker has deleted them.

    def _keep(self, message: ReceivedMessage) -> None:
        size = len(message.body)
        self.read_bytes += size
        is_wanted = _is_wanted(message, self._wish)
        cut = replace(message, body=message.body[:PREVIEW_BYTES])
        self._fetched.append(ScannedMessage(cut, size, is_wanted))

    @property
    def newest(self) -> ScannedMessage | None:
        """The next message to take."""
        return self._fetched[-1] if self._fetched else None

    @property
    def has_more(self) -> bool:
        """Whether older messages may exist."""
        return self.before > self._low

    def take(self) -> ScannedMessage:
        """Take the newest message."""
        taken = self._fetched.pop()
        self.before = taken.message.offset
        return taken

    def leave(self) -> None:
        """Skip all older messages."""
        self._fetched.clear()
        self.before = self._low


async def scan_messages(admin: Admin, wish: ScanWish, count: int, cursor: str = "") -> MessageScan:
    """Read messages of a topic backwards, until ``count`` are found or the step's limit is reached.

    Raises:
        UsageError: The topic has too many queues for one scan, the queue does not exist, or the
            cursor belongs to other queues.
        TopicNotFound: The topic does not exist.
        TransportError: A broker does not answer.
        BrokerRefused: A broker refuses.
    """
    queues = await _queues_of(admin, wish)
    ends = await _ends_of(admin, wish, queues)
    if cursor:
        # A URL edited by hand may name offsets beyond the ends.
        ends = list(map(min, ends, _offsets_in(cursor, len(queues))))
    lows = await for_each(queues, admin.min_offset)
    at_once = min(_AT_ONCE_MAX, max(2, _AT_ONCE_OF_ALL // len(queues)))
    sources = [
        _BackwardQueue(admin, wish, queue, end, low, at_once)
        for queue, end, low in zip(queues, ends, lows, strict=True)
    ]
    await for_each(sources, _BackwardQueue.fill)
    heap = [_entry(source, place) for place, source in enumerate(sources) if source.newest]
    heapq.heapify(heap)
    found: list[ScannedMessage] = []
    read = 0
    while heap and len(found) < count and read < SCANNED_MAX:
        if sum(source.read_bytes for source in sources) > SCANNED_BYTES_MAX and read:
            break
        place = heapq.heappop(heap)[1]
        source = sources[place]
        taken = source.take()
        read += 1
        if taken.message.stored_ms < wish.since_ms:
            source.leave()  # Earlier messages are older still.
        elif taken.is_wanted:
            found.append(taken)
        await source.fill()
        if source.newest is not None:
            heapq.heappush(heap, _entry(source, place))
    has_more = any(source.has_more for source in sources)
    # The cursor has only numbers, in the order of the queues.
    following = ".".join(str(source.before) for source in sources) if has_more else ""
    # The oldest messages of a batch may be read twice.
    damaged = list(dict.fromkeys(text for source in sources for text in source.damaged))
    return MessageScan(found, read, following, damaged)


def _entry(source: _BackwardQueue, place: int) -> tuple[int, int]:
    assert source.newest is not None
    return -source.newest.message.stored_ms, place


async def _queues_of(admin: Admin, wish: ScanWish) -> list[Queue]:
    queues = sorted((await admin.route(wish.topic)).queues_to_read)
    if wish.queue is not None:
        if wish.queue not in queues:
            named = f"{wish.queue.broker}:{wish.queue.number}"
            raise UsageError(f"topic {wish.topic} has no queue {named} that can be read")
        return [wish.queue]
    if not queues:
        raise UsageError(
            f"no queue of topic {wish.topic} can be read; permit it with: "
            f"txmq topic permit {wish.topic} rw"
        )
    if len(queues) > SCANNED_QUEUES_MAX:
        raise UsageError(
            f"topic {wish.topic} has {quantity(len(queues), 'queue')}, and one scan reads at most "
            f"{SCANNED_QUEUES_MAX}; name one queue, as broker:number"
        )
    return queues


async def _ends_of(admin: Admin, wish: ScanWish, queues: list[Queue]) -> list[int]:
    async def end_of(queue: Queue) -> int:
        end = await admin.max_offset(queue)
        if wish.until_ms is None:
            return end
        # Brokers answer with the nearest message, which may be stored before or after.
        near = await admin.offset_by_time(queue, wish.until_ms + 1)
        return min(end, QueueOffset(near + 1))

    return await for_each(queues, end_of)


def _offsets_in(cursor: str, count: int) -> list[int]:
    words = cursor.split(".")
    if len(words) != count or not all(word.isdecimal() and len(word) < 20 for word in words):
        raise UsageError(
            "the queues of the topic have changed since this list began; begin again with the "
            "newest messages"
        )
    return [int(word) for word in words]


def _is_wanted(message: ReceivedMessage, wish: ScanWish) -> bool:
    if wish.until_ms is not None and message.stored_ms > wish.until_ms:
        return False
    text = wish.contains
    if not text:
        return True
    return (
        text in message.tags
        or text == message.id
        or any(text in key for key in message.keys)
        or text.encode() in message.body
    )
