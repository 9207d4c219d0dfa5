"""A log in memory, and the queues that messages put into it appear in."""

from txmq.protocol import properties
from txmq.protocol.bodies import TopicConfig, TopicConfigs
from txmq.protocol.java import string_hash
from txmq.protocol.record import host_bytes, tail_of, topic_field
from txmq.testing import MemoryDisk, SeededEntropy
from txmq_broker.config import BrokerSettings, StoreSettings, TopicDefaults
from txmq_broker.core.topics import Topics, system_topics
from txmq_broker.store.message_store import MessageStore

NOW_MS = 1_700_000_000_000
V4 = host_bytes("10.0.0.1", 10911)
V6 = host_bytes("fd00::1", 10911)
BORN_V6 = 0x10


class Log:
    """Puts messages where they can be read at once."""

    def __init__(self, **settings):
        self.disk = MemoryDisk(SeededEntropy(1))
        self.store = MessageStore(self.disk, StoreSettings(**settings))
        self.store.take(SeededEntropy(1))
        self.store.open({})
        self.last_ms = NOW_MS

    def put(self, topic, *bodies, number=0, tags=None, hashed=None, at_ms=None, born=V4, more=None):
        """Store messages together; ``hashed`` is a wrong hash of the tag for the queue."""
        self.last_ms = self.last_ms if at_ms is None else at_ms
        queue = self.store.queue(topic, number)
        text = properties.render(({"TAGS": tags} if tags else {}) | (more or {}))
        tail = tail_of(topic_field(topic), text.encode())
        code = hashed if hashed is not None else string_hash(tags) if tags else 0
        flags = BORN_V6 if len(born) > 8 else 0
        postmark = (flags, self.last_ms, born, self.last_ms, V4, 0, 0)
        for body in bodies:
            self.store.stage([(queue, postmark, 0, body, tail, code, (), None)])
        self.store.publish(self.store.write())
        return queue

    def checkpoint(self):
        """Move what the queues remember into an index file."""
        while (stretch := self.store.checkpoints.next_range()) is not None:
            self.store.log.synced(self.store.log.sync_point())
            self.store.checkpoints.confirm(self.store.checkpoints.begin(stretch))

    def topics(self, **defaults):
        settings = TopicDefaults(**defaults)
        topics = Topics(self.store, settings)
        topics.load(TopicConfigs(), system_topics(BrokerSettings(cluster="c1", topics=settings)))
        return topics


def topic(name="T", queues=4, *, write=None, perm=6, order=False):
    return TopicConfig(name, queues, queues if write is None else write, perm, order=order)
