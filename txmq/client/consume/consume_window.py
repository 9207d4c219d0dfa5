"""The fetched messages of a queue, and the offset up to which all are consumed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from txmq.message import QueueOffset, ReceivedMessage

__all__ = ["ConsumeWindow"]


class ConsumeWindow:
    """The fetched messages of one queue that are not consumed yet, and the offset to commit.

    Handlers may finish the messages in any order. The offset to commit is that of the first
    unfinished message.
    """

    __slots__ = ("_in_order", "_sizes", "bytes_held", "kept", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset: int = next_offset
        """The offset of the next message to fetch."""
        self.bytes_held: int = 0
        self.kept: int | None = None
        """A pinned group offset; ``None`` if the offset follows the consumed messages."""
        self._sizes: dict[int, int] = {}
        self._in_order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: object) -> bool:
        return offset in self._sizes

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add fetched messages, in queue order and without duplicates.

        Their offsets are all below ``next_offset``, which never decreases.
        """
        sizes, held = self._sizes, 0
        for message in messages:
            size = len(message.body)
            sizes[message.offset] = size
            held += size
        self._in_order.extend([message.offset for message in messages])
        self.bytes_held += held
        self.next_offset = next_offset

    def end(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove messages that are consumed or will be delivered another way; safe to repeat."""
        sizes = self._sizes
        for message in messages:
            self.bytes_held -= sizes.pop(message.offset, 0)

    @property
    def safe_offset(self) -> QueueOffset:
        """The offset to commit; all messages before it are consumed."""
        return self.reached if self.kept is None else QueueOffset(self.kept)

    @property
    def reached(self) -> QueueOffset:
        """The offset of the first unfinished message, or else of the next one to fetch."""
        in_order, sizes = self._in_order, self._sizes
        while in_order and in_order[0] not in sizes:
            in_order.popleft()
        return QueueOffset(in_order[0] if in_order else self.next_offset)

    @property
    def span(self) -> int:
        """The distance between the first unconsumed message and the last added one."""
        return self._in_order[-1] - self.reached if self._sizes else 0
