"""202, 208, 300, 303, 308, 314, 317, 321, 343, 345: the progress of groups and queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from txmq.errors import InternalError
from txmq.protocol.bodies import (
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupConfig,
    GroupList,
    QueueEntries,
    QueueEntry,
    SubscriptionAnswer,
    SubscriptionData,
    TopicNames,
    with_queue_map,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import (
    BrokerStatsQuery,
    CloneOffset,
    ConsumeStatsQuery,
    CorrectionQuery,
    NamedGroup,
    QueueEntriesQuery,
    SubscriptionQuery,
    TopicAndGroup,
    TopicHeader,
)
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.clients import check_consumer_group
from txmq_broker.core.filter.filters import tag_filter
from txmq_broker.core.progress import ConsumeProgress
from txmq_broker.core.retry import known_maximum
from txmq_broker.core.statistics import MINUTE_S
from txmq_broker.core.topics import Topic
from txmq_broker.parts import ReadParts
from txmq_broker.services.slices import LongAnswers, Steps
from txmq_broker.store.queue_store import ConsumeQueue, Entry

__all__ = ["ProgressHandlers"]

_ENTRIES_MAX: Final = 1_000
"""The limit of queue entries in one answer."""


class ProgressHandlers:
    """Serves the offsets of groups, and copies them from one group to another."""

    def __init__(self, parts: ReadParts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._store = parts.store
        self._statistics = parts.statistics
        self._clock = parts.clock
        self._long = LongAnswers(parts.clock)
        self._progress = ConsumeProgress(
            parts.identity.name, parts.topics, parts.offsets, parts.clients, parts.store
        )

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        every = RequestCode.GET_BROKER_CONSUME_STATS
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.of_topic,
            RequestCode.GET_CONSUME_STATS: self.of_group,
            every: self._long.handler(every, self.of_all_groups, lambda: len(self._groups)),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.QUERY_CONSUME_QUEUE: self.entries,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def of_topic(self, _: Connection, request: Command) -> bytes:
        """202: the bounds of a topic's queues."""
        topic = self._topics.get(request.read(TopicHeader).topic)
        return answer(request, body=with_queue_map("offsetTable", self._progress.of_topic(topic)))

    def of_group(self, _: Connection, request: Command) -> bytes:
        """208: a group's offsets, in all its topics or in the named ones."""
        header = request.read(ConsumeStatsQuery)
        named = [name for name in (header.topic_list or "").split(";") if name]
        if not named and header.topic:
            named = [header.topic]
        topics = self._progress.topics_of(header.consumer_group, named)
        pairs = {
            queue: pair
            for topic in topics
            for queue, pair in self._progress.of_group(header.consumer_group, topic).items()
        }
        rate = sum(self._rate(header.consumer_group, topic) for topic in topics)
        others = {"consumeTps": rate} | self._retries(header.consumer_group, named)
        return answer(request, body=with_queue_map("offsetTable", pairs, others))

    def _retries(self, group: str, topics: Sequence[str]) -> dict[str, object]:
        """A group's messages that wait for each retry, and its last retry: txmq's own field."""
        waiting = self._store.delays.waiting_retries()
        if waiting is None:
            return {}
        found = waiting.of_group(group, topics)
        config = self._groups.find(group) or GroupConfig(group)
        maximum = known_maximum(self._clients.consumer_group(group), config)
        return {"retriesWaiting": found, "retriesMax": maximum}

    def of_all_groups(self, request: Command) -> Steps:
        """317: all groups' offsets by topic, and their total lag."""
        only_ordered = request.read(BrokerStatsQuery).is_order
        lag = 0
        shown: list[msgspec.Raw] = []
        for group in list(self._groups):
            stats: list[msgspec.Raw] = []
            for topic in self._progress.topics_of(group.group_name):
                if only_ordered and not topic.config.order:
                    continue
                pairs = self._progress.of_group(group.group_name, topic)
                lag += sum(pair.broker_offset - pair.consumer_offset for pair in pairs.values())
                rate = {"consumeTps": self._rate(group.group_name, topic)}
                stats.append(msgspec.Raw(with_queue_map("offsetTable", pairs, rate)))
            shown.append(msgspec.Raw(msgspec.json.encode({group.group_name: stats})))
            yield
        body = {"brokerAddr": self._identity.address, "consumeStatsList": shown, "totalDiff": lag}
        return answer(request, body=msgspec.json.encode(body))

    def _rate(self, group: str, topic: Topic) -> float:
        meter = self._statistics.find("GROUP_GET_NUMS", f"{topic.name}@{group}")
        return meter.rate(MINUTE_S, self._clock.monotonic()).per_second if meter else 0.0

    def groups_of_topic(self, _: Connection, request: Command) -> bytes:
        """300: the groups that consume or have consumed a topic."""
        topic = request.read(TopicHeader).topic
        online = [
            group.name for group in self._clients.consumer_groups() if topic in group.subscriptions
        ]
        names = sorted({*online, *self._offsets.groups_of(topic)})
        return answer(request, body=GroupList(names).write())

    def topics_of_group(self, _: Connection, request: Command) -> bytes:
        """343: the topics in which a group has offsets."""
        names = sorted(self._offsets.topics_of(_named(request)))
        return answer(request, body=TopicNames(names, self._identity.address).write())

    def subscription(self, _: Connection, request: Command) -> bytes:
        """345: a connected group's subscription to a topic."""
        header = request.read(SubscriptionQuery)
        found = self._clients.subscription(header.group, header.topic or "")
        return answer(request, body=SubscriptionAnswer(header.group, header.topic, found).write())

    def time_spans(self, _: Connection, request: Command) -> bytes:
        """303: the time range of a topic's messages, and a group's delay."""
        header = request.read(TopicAndGroup)
        topic = self._topics.get(header.topic)
        spans = self._progress.time_spans(header.group, topic, self._clock.wall_ms())
        return answer(request, body=ConsumeTimeSpans(spans).write())

    def corrections(self, _: Connection, request: Command) -> bytes:
        """308: the lowest offset of a topic's groups."""
        header = request.read(CorrectionQuery)
        without = (header.filter_groups or "").split(",")
        found = self._progress.corrections(header.topic, header.compare_group, without)
        return answer(request, body=CorrectionOffsets(found).write())

    def clone(self, _: Connection, request: Command) -> bytes:
        """314: copy a group's offsets to another group."""
        header = request.read(CloneOffset)
        check_consumer_group(header.dest_group)
        source = header.src_group
        for name in [header.topic] if header.topic else self._offsets.topics_of(source):
            if self._topics.by_name.get(name) is None:
                continue
            if header.offline or not self._clients.lacks_subscription(source, name):
                for queue, offset in self._offsets.queues(source, name).items():
                    self._offsets.put(header.dest_group, name, queue, offset)
        return answer(request)

    def entries(self, _: Connection, request: Command) -> bytes:
        """321: a queue's index entries, and a group's filter."""
        header = request.read(QueueEntriesQuery)
        topic = self._topics.by_name.get(header.topic)
        if topic is None or not 0 <= header.queue_id < len(topic.queues):
            raise InternalError(f"{header.queue_id}@{header.topic} is not exist!")
        queue = topic.queues[header.queue_id]
        found = _entries(queue, header.index, min(header.count, _ENTRIES_MAX))
        body = QueueEntries(
            [QueueEntry(*entry[:3]) for entry in found], queue.max_offset, queue.min_offset
        )
        if header.consumer_group:
            wanted = self._clients.subscription(header.consumer_group, header.topic)
            body.subscription_data = wanted
            if wanted is None:
                body.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
            else:
                body.filter_data = _shown(wanted)
        remark = (
            None if found else f"Index {header.index} of {queue.number}@{queue.topic} is not exist!"
        )
        return answer(request, body=body.write(), remark=remark)


def _entries(queue: ConsumeQueue, start: int, count: int) -> list[Entry]:
    found: list[Entry] = []
    if start < queue.min_offset:
        return found
    while len(found) < count:
        # Each read returns entries from one block of the index.
        more = queue.read(start + len(found), count - len(found))
        if not more:
            break
        found += more
    return found


def _shown(wanted: SubscriptionData) -> str:
    if wanted.expression_type not in ("", "TAG"):
        return wanted.sub_string
    tags = tag_filter(wanted.sub_string)
    return "everything" if tags is None else " || ".join(sorted(tags.words))


def _named(request: Command) -> str:
    name = request.read(NamedGroup).group
    if name is None:
        raise InternalError("the request names no group")
    return name
