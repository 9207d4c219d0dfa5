"""The progress of consumer groups: their offsets and the bounds of the queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from txmq.protocol.bodies import ConsumeTimeSpan, MessageQueue, OffsetPair, QueueStats
from txmq.protocol.topics import RETRY
from txmq_broker.core.clients import Clients
from txmq_broker.core.offsets import Offsets
from txmq_broker.core.topics import Topic, Topics
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["NO_CORRECTION", "ConsumeProgress"]

C = TypeVar("C")

NO_CORRECTION: Final = 2**63 - 1
"""The correction for a queue in which the compared group is behind all others."""

_UNKNOWN: Final = -1


class ConsumeProgress(Generic[C]):
    """Combines the broker's tables of offsets, topics, clients and messages."""

    def __init__(
        self,
        broker: str,
        topics: Topics,
        offsets: Offsets,
        clients: Clients[C],
        store: MessageStore,
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._store = store

    def name_of(self, queue: ConsumeQueue) -> MessageQueue:
        """A queue's name for clients."""
        return MessageQueue(self._broker, queue.number, queue.topic)

    def of_topic(self, topic: Topic) -> dict[MessageQueue, QueueStats]:
        """The bounds of a topic's queues, and the time of each last message."""
        return {
            self.name_of(queue): QueueStats(
                queue.min_offset, queue.max_offset, self._time(queue, queue.max_offset - 1) or 0
            )
            for queue in topic.queues
        }

    def topics_of(self, group: str, named: Sequence[str] = ()) -> list[Topic]:
        """The topics in which a group has offsets, or the existing ones of the named topics.

        The group's retry topic is included once it has messages, even before the group has an
        offset in it. While the group is connected, topics without a subscription are left out.
        """
        retry = self._topics.by_name.get(RETRY + group)
        own = self._offsets.topics_of(group)
        if retry is not None and any(queue.max_offset for queue in retry.queues):
            own = list(dict.fromkeys([*own, retry.name]))
        found = [self._topics.by_name.get(name) for name in named or own]
        return [
            topic
            for topic in found
            if topic is not None and not self._clients.lacks_subscription(group, topic.name)
        ]

    def of_group(self, group: str, topic: Topic) -> dict[MessageQueue, OffsetPair]:
        """A group's offsets in the readable queues of a topic."""
        pairs: dict[MessageQueue, OffsetPair] = {}
        for queue in topic.queues[: topic.config.read_queue_nums]:
            offset = max(0, self._offsets.get(group, topic.name, queue.number) or 0)
            consumed = self._time(queue, offset - 1) if offset else None
            pairs[self.name_of(queue)] = OffsetPair(
                queue.max_offset, offset, consumed or 0, pull_offset=offset
            )
        return pairs

    def lag(self, group: str, topic: Topic) -> int:
        """The messages of a topic that a group has not consumed, as :meth:`of_group` shows them."""
        offsets = self._offsets.queues(group, topic.name)
        queues = topic.queues[: topic.config.read_queue_nums]
        return sum([queue.max_offset - max(0, offsets.get(queue.number, 0)) for queue in queues])

    def first_unread(self, group: str, topic: Topic) -> Iterator[tuple[ConsumeQueue, int]]:
        """The first unread message that is kept, in each queue where a group is behind."""
        offsets = self._offsets.queues(group, topic.name)
        for queue in topic.queues[: topic.config.read_queue_nums]:
            offset = max(offsets.get(queue.number, 0), queue.min_offset)
            if offset < queue.max_offset:
                yield queue, offset

    def time_spans(self, group: str, topic: Topic, now_ms: int) -> list[ConsumeTimeSpan]:
        """The time range of a topic's messages, and a group's position and delay in it."""
        spans: list[ConsumeTimeSpan] = []
        for queue in topic.queues[: topic.config.read_queue_nums]:
            first = self._time(queue, queue.min_offset)
            last = self._time(queue, queue.max_offset - 1)
            offset = self._offsets.get(group, topic.name, queue.number)
            consumed = self._time(queue, offset - 1) if offset else first
            following = self._time(queue, max(offset or 0, queue.min_offset))
            spans.append(
                ConsumeTimeSpan(
                    self.name_of(queue),
                    _UNKNOWN if first is None else first,
                    _UNKNOWN if last is None else last,
                    _UNKNOWN if consumed is None else consumed,
                    0 if following is None else max(0, now_ms - following),
                )
            )
        return spans

    def corrections(self, topic: str, compared: str, without: Iterable[str] = ()) -> dict[int, int]:
        """The lowest offset of any group by queue, for a group that must wait for the others.

        If the compared group itself is lower, the value is :data:`NO_CORRECTION`.
        """
        left_out = frozenset(without)
        least: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            if group in left_out:
                continue
            for number, offset in self._offsets.queues(group, topic).items():
                queue = self._store.find_queue(topic, number)
                if queue is not None and offset >= queue.min_offset:
                    least[number] = min(offset, least.get(number, offset))
        for number, offset in self._offsets.queues(compared, topic).items():
            if least.get(number, 0) > offset:
                least[number] = NO_CORRECTION
        return least

    def _time(self, queue: ConsumeQueue, offset: int) -> int | None:
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        return self._store.stored_ms(queue, offset)
