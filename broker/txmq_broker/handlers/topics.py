"""17, 21, 215, 305, 351: create, change, list and delete topics."""

from __future__ import annotations

import msgspec

from txmq.errors import InternalError
from txmq.protocol.bodies import TopicConfig, TopicConfigs, TopicCounts, TopicNames
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.headers import TopicHeader, TopicSettings
from txmq.protocol.topics import topics_of_brokers
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.core.topics import TopicCensus
from txmq_broker.parts import Parts, ReadParts
from txmq_broker.services.slices import LongAnswers, Steps, table_answer

__all__ = ["TopicHandlers", "TopicReads"]


class TopicReads:
    """Lists topics and shows their settings."""

    def __init__(self, parts: ReadParts) -> None:
        self._topics = parts.topics
        self._long = LongAnswers(parts.clock)
        own = topics_of_brokers([(parts.identity.name, parts.identity.cluster)])
        self._census = TopicCensus(
            lambda: parts.topics.version, lambda: parts.topics.by_name, lambda: own
        )

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        code, count = RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.COUNT_TOPICS
        return {
            code: self._long.handler(code, self.all, lambda: len(self._topics)),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            RequestCode.GET_TOPIC_CONFIG: self.one,
            count: self._long.handler(count, self.count, lambda: len(self._topics)),
        }

    def all(self, request: Command) -> Steps:
        """21: all topics' settings."""
        saved = self._topics.saved()
        empty = TopicConfigs(data_version=saved.data_version)
        return (yield from table_answer(request, empty, saved.topic_config_table.items()))

    def count(self, request: Command) -> Steps:
        """7732: the number of topics and of dead letters."""
        yield from self._census.count()
        dead = 0
        for name in self._census.dead:
            topic = self._topics.by_name.get(name)
            if topic is not None:
                dead += sum([queue.max_offset - queue.min_offset for queue in topic.queues])
        counts = TopicCounts(self._census.topics, len(self._census.dead), dead)
        return answer(request, body=counts.write())

    def one(self, _: Connection, request: Command) -> bytes:
        """351: one topic's settings."""
        topic = self._topics.get(request.read(TopicHeader).topic)
        return answer(request, body=msgspec.json.encode(topic.config))

    def system(self, _: Connection, request: Command) -> bytes:
        """305: the broker's system topics."""
        names = sorted(topic.name for topic in self._topics if self._topics.is_system(topic.name))
        return answer(request, body=TopicNames(names).write())


class TopicHandlers(TopicReads):
    """Administration of topics."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._offsets = parts.offsets
        self._clock = parts.clock
        self._topics_changed = parts.topics_changed
        self._forget = parts.forget_topic

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return super().table() | {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
        }

    def put(self, _: Connection, request: Command) -> bytes:
        """17: create a topic, or change its queues and permissions."""
        header = request.read(TopicSettings)
        if self._topics.is_system(header.topic):
            raise InternalError(f"the topic {header.topic} is the broker's own")
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
        )
        self._topics.put(config, self._clock.wall_ms())
        self._topics_changed()
        return answer(request)

    def delete(self, _: Connection, request: Command) -> bytes:
        """215: delete a topic, its messages and all offsets in it."""
        name = request.read(TopicHeader).topic
        if self._topics.is_system(name):
            raise InternalError(f"the topic {name} is the broker's own")
        if self._topics.remove(name, self._clock.wall_ms()):
            self._forget(name)
            self._offsets.forget_topic(name)
        return answer(request)
