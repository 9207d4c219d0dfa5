"""The messages of one queue that were fetched and are not consumed yet. Pure.

They end in any order; what may be told to the broker is the offset before which all have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from txmq.message import QueueOffset, ReceivedMessage

__all__ = ["ConsumeWindow"]


class ConsumeWindow:
    """Counts messages in and out."""

    __slots__ = ("_in_order", "_sizes", "bytes_held", "kept", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """The message to be fetched next."""
        self.bytes_held = 0
        self.kept: int | None = None
        """Where the group stands, whatever has ended; ``None`` where it goes on by itself."""
        self._sizes: dict[int, int] = {}
        self._in_order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: object) -> bool:
        return offset in self._sizes

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take in what was fetched: in the order of the queue, and none of it was here before.

        All of it lies before ``next_offset``, and that is never before what it was.
        """
        sizes, held = self._sizes, 0
        for message in messages:
            size = len(message.body)
            sizes[message.offset] = size
            held += size
        self._in_order.extend([message.offset for message in messages])
        self.bytes_held += held
        self.next_offset = next_offset

    def end(self, offset: int) -> None:
        """A message has been consumed, or will come again by another way; harmless if repeated."""
        self.bytes_held -= self._sizes.pop(offset, 0)

    def end_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """The same for several."""
        for message in messages:
            self.end(message.offset)

    @property
    def safe_offset(self) -> QueueOffset:
        """Everything before it has been consumed."""
        return self.reached if self.kept is None else QueueOffset(self.kept)

    @property
    def reached(self) -> QueueOffset:
        """Everything before it has ended."""
        in_order, sizes = self._in_order, self._sizes
        while in_order and in_order[0] not in sizes:
            in_order.popleft()
        return QueueOffset(in_order[0] if in_order else self.next_offset)

    @property
    def span(self) -> int:
        """How far its first unconsumed message and the last it took in are apart."""
        return self._in_order[-1] - self.reached if self._sizes else 0
