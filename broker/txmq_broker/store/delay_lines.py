"""The lines in which delayed messages wait: queues of two of the broker's own topics.

Each delay level has its own line, in the topic where stock tools look for it. Messages with an
individual due time go to the lines of the wheel, each of which takes delays of similar length. So
the delivered entries of a line mostly precede the waiting ones, and a restart reads few delivered
ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txmq.protocol.topics import SCHEDULE_TOPIC, WHEEL_TOPIC
from txmq_broker.store.due_messages import LINES_MAX, NOWHERE
from txmq_broker.store.queue_store import ConsumeQueue, QueueStore

__all__ = [
    "LEVELS_MAX",
    "RECALLS",
    "WHEEL_LINES",
    "WHEEL_QUEUES",
    "DelayLines",
    "Line",
    "LineState",
]

WHEEL_LINES: Final = 8
"""The queues of the wheel topic in which messages wait; the queue after them holds the recalls."""
WHEEL_QUEUES: Final = WHEEL_LINES + 1

LEVELS_MAX: Final = LINES_MAX // 2
"""The maximum number of delay levels."""
_WHEEL: Final = LEVELS_MAX
"""The number of the wheel's first line; the lines before it belong to the delay levels."""
RECALLS: Final = _WHEEL + WHEEL_LINES
"""The number of the line that holds the recalls; no message waits in it."""


class LineState(NamedTuple):
    """The state of a line in a checkpoint."""

    number: int
    due_ms: int
    offset: int
    """The offset of the last message that left."""
    first: int
    """Its oldest entry that may still wait."""


class Line:
    """A queue of waiting messages, and the position up to which they have left."""

    __slots__ = ("first", "leaving", "left", "number", "queue", "saved")

    def __init__(self, number: int, queue: ConsumeQueue) -> None:
        self.number = number
        self.queue = queue
        self.first = queue.min_offset
        """The oldest entry that may still wait, according to the last checkpoint."""
        self.saved = self.left = self.leaving = NOWHERE
        """The last message that left: in a checkpoint, durably, and as staged."""


class DelayLines:
    """The lines of one store, each created on first use."""

    def __init__(self, queues: QueueStore) -> None:
        self._queues = queues
        self._lines: dict[int, Line] = {}

    def line(self, number: int) -> Line:
        """A line, created on first use."""
        found = self._lines.get(number)
        if found is None:
            is_level = number < _WHEEL
            topic = SCHEDULE_TOPIC if is_level else WHEEL_TOPIC
            queue = self._queues.queue(topic, number if is_level else number - _WHEEL)
            found = self._lines[number] = Line(number, queue)
        return found

    @staticmethod
    def _is_wheel(number: int) -> bool:
        return number >= _WHEEL

    def wheel_line(self, number: int) -> Line:
        """One of the wheel's lines."""
        return self.line(_WHEEL + number)

    def line_of(self, topic: str, number: int) -> Line | None:
        """The line of a queue; ``None`` if the queue is not a line."""
        if topic == SCHEDULE_TOPIC and 0 <= number < LEVELS_MAX:
            return self.line(number)
        if topic == WHEEL_TOPIC and 0 <= number < WHEEL_LINES:
            return self.line(_WHEEL + number)
        return None

    def levels(self) -> list[tuple[int, int, int]]:
        """Each used delay level: its number, and how many messages have left and joined it."""
        return [
            (number + 1, line.left.offset + 1, line.queue.max_offset)
            for number, line in sorted(self._lines.items())
            if number < _WHEEL
        ]
