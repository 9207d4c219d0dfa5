"""A shelf with messages that wait, and what a broker does with them, as plain calls."""

from __future__ import annotations

from tests.unit.store.shelf import HOST, START_MS, Shelf
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.record import tail_of, topic_field
from txmq_broker.store.delay_lines import Line
from txmq_broker.store.delay_store import Unstored
from txmq_broker.store.due_messages import Due
from txmq_broker.store.queue_store import key_hash, keys_in, topic_seed

__all__ = ["DelayShelf"]

LEVEL = 0
"""The line that tests use where any will do."""


class DelayShelf(Shelf):
    """Messages for later say so in their bodies; each is unique."""

    @property
    def delays(self):
        return self.store.delays

    def _postmark(self):
        return (0, START_MS, HOST, self.next_ms(), HOST, 0, 0)

    def later(self, body: bytes, due_ms: int, line: int | Line = LEVEL, topic="T", number=0):
        """Stage a delayed message, and return its place."""
        line = line if isinstance(line, Line) else self.delays.line(line)
        text = properties.render({"UNIQ_KEY": body.decode(), "KEYS": f"k{body.decode()}"})
        data = text.encode() + records.real_place(topic, number)
        offset, _ = self.delays.join(line, due_ms, Unstored(self._postmark(), 0, body, data))
        return Due(due_ms, line.number, offset)

    def add_later(self, *bodies_and_times, line=LEVEL):
        """Store messages that wait, each in a span of its own."""
        found = []
        for body, due_ms in bodies_and_times:
            found.append(self.later(body, due_ms, line))
            self.flush()
        return found

    def leave(self, due: Due) -> bytes:
        """Stage a due message in its real topic, and return its body."""
        waited = self.delays.read(due)
        text = waited.properties
        topic = properties.find(text, properties.REAL_TOPIC)
        queue = self.store.queue(topic, int(properties.find(text, properties.REAL_QUEUE)))
        seed = topic_seed(topic)
        record = (
            queue,
            (*self._postmark()[:6], waited.position),
            0,
            waited.body,
            tail_of(topic_field(topic), text.encode()),
            0,
            tuple(key_hash(seed, key) for key in keys_in(text)),
            None,
        )
        self.store.stage([record])
        self.delays.leave(due)
        return waited.body

    def leave_all(self, now_ms, at_most=1000):
        """Stage the messages that may leave now, as a round of the deliverer does."""
        left = []
        while (
            len(left) < at_most
            and (left or not self.delays.is_delivering)
            and (due := self.delays.first(now_ms)) is not None
        ):
            left.append(self.leave(due))
        return left

    def deliver(self, now_ms):
        """Deliver everything that is due."""
        delivered = []
        while left := self.leave_all(now_ms):
            delivered += left
            self.flush()
        return delivered

    def publish_unsynced(self):
        """Publish before the sync, as a broker with async flush does."""
        self.store.publish(self.store.write())

    def recall(self, due: Due) -> None:
        """Stage the recall of a message."""
        self.delays.recall(due, self._postmark(), b"")

    def waits(self, now_ms=1 << 50):
        """The messages that would still be delivered, tried on a copy of the disk."""
        twin = type(self)(self.disk.clone(), self.sizes, self.floors)
        try:
            return twin.deliver(now_ms)
        finally:
            twin.close()
