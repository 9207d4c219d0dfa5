"""A message store small enough to look through, with the steps a flusher takes as plain calls."""

from __future__ import annotations

import gc
from typing import NamedTuple

from msgspec.structs import replace

from txmq.protocol import java, properties
from txmq.protocol import record as records
from txmq.protocol.record import tail_of, topic_field
from txmq.protocol.span import DecisionKind, DecisionSource
from txmq.testing import MemoryDisk, SeededEntropy
from txmq_broker.config import DelaySettings, TopicDefaults
from txmq_broker.core.fetch import FetchOutcome, fetch
from txmq_broker.core.schedule import Schedule
from txmq_broker.core.topics import Topics
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.pending_transactions import transaction_key
from txmq_broker.store.queue_store import key_hash, keys_in, topic_seed

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
START_MS = 1_700_000_000_000
LOG = int.from_bytes(SeededEntropy(1).token(8), "big")
"""The log that every store on an empty disk begins."""


class Sizes(NamedTuple):
    """Settings far below what a broker accepts, so that a few messages fill many files."""

    segment_size: int = 4096
    checkpoint_every: int = 1 << 40
    flush: str = "sync"
    flush_interval: float = 0.5


class Placed(NamedTuple):
    """Where a message was put."""

    topic: str
    number: int
    offset: int
    position: int
    body: bytes


class Shelf:
    """A store on a disk. Every message is stored one millisecond after the one before."""

    def __init__(self, disk=None, sizes=None, floors=None, entropy=None, **known):
        self.disk = MemoryDisk() if disk is None else disk
        self.sizes = sizes or Sizes()
        self.floors = floors if floors is not None else {}
        self.entropy = entropy or SeededEntropy(1)
        self.known = known
        self.recovery = None
        self.store = None
        self.open()

    def open(self):
        self.store = MessageStore(self.disk, self.sizes)
        try:
            self.store.take(self.entropy)
            self.recovery = self.store.open(self.floors, **self.known)
        except BaseException:
            self.store.close()
            raise
        self.known = {}
        # As Transactions does.
        schedule = Schedule(self.store, Topics(self.store, TopicDefaults()), DelaySettings())
        self.store.halves.delay = lambda half, data, now_ms: schedule.put_committed(
            half, data, now_ms, now_ms
        )
        return self.recovery

    def close(self):
        self.store.close()

    def restart(self):
        """Stop as kill -9 does: nothing more is saved, and written bytes stay."""
        self.close()
        return self.open()

    def restart_cleanly(self):
        self.flush()
        self.checkpoint()
        return self.restart()

    def put(self, body, topic="T", number=0, *, keys="", unique="", tag="", at_ms=None):
        """Stage one message."""
        values = {"UNIQ_KEY": unique, "KEYS": keys, "TAGS": tag}
        text = properties.render(values)
        seed = topic_seed(topic)
        record = (
            self.store.queue(topic, number),
            (0, START_MS, HOST, self.next_ms() if at_ms is None else at_ms, HOST, 0, 0),
            0,
            body,
            tail_of(topic_field(topic), text.encode()),
            java.string_hash(tag) if tag else 0,
            tuple(key_hash(seed, key) for key in keys_in(text)),
            None,
        )
        ((offset, position, _, _),) = self.store.stage([record])
        return Placed(topic, number, offset, position, body)

    def prepare(self, body, topic="T", number=0, *, unique, keys="", tag="", group="P", level=0):
        """Stage one half message, whose message asks for the delay of a level."""
        values = {"UNIQ_KEY": unique, "KEYS": keys, "TAGS": tag, "TRAN_MSG": "true"}
        delay = {"DELAY": str(level)} if level else {}
        text = properties.render({**values, "PGROUP": group, **delay})
        seed = topic_seed(topic)
        halves, key = self.store.halves, transaction_key(unique)
        record = (
            self.store.queue(topic, number),
            (0x4, START_MS, HOST, self.next_ms(), HOST, 0, 0),
            0,
            body,
            tail_of(topic_field(topic), text.encode()),
            java.string_hash(tag) if tag else 0,
            tuple(key_hash(seed, key) for key in keys_in(text)),
            halves.half_queue,
        )
        self.store.stage([record], [(0, key, group, "", 0, bool(level))])
        return halves.pending.unpack(halves.opening[key])

    def decide(self, unique, kind, reason=""):
        """Stage the decision on an open transaction."""
        self.decide_together([unique], kind, reason)

    def decide_together(self, uniques, kind, reason=""):
        """Stage one decision on several open half messages."""
        halves, keys = self.store.halves, [transaction_key(unique) for unique in uniques]
        source = DecisionSource.BROKER if kind is DecisionKind.PARKED else DecisionSource.PRODUCER
        halves.decide(
            [(key, *halves.pending.read(key), kind, source, reason.encode()) for key in keys],
            self.next_ms(),
        )

    def next_ms(self):
        return self.store.log.last_ms + 1 if self.store.log.last_ms else START_MS

    def transactions(self):
        """The open ones: their half messages by unique key, as their producers sent them."""
        halves, found = self.store.halves, {}
        for key in halves.pending:
            half = halves.pending.find(key)
            record = halves.record_of(half)
            unique = properties.find(record.properties, properties.UNIQUE_KEY)
            assert transaction_key(unique) == key
            found[unique] = (replace(half, queue=record.topic, checks=0), record.body)
        return found

    def sync(self):
        """Make what is written durable."""
        log = self.store.log
        point = log.sync_point()
        for file in point.files:
            file.sync()
        log.synced(point)

    def publish(self, *spans):
        """Make spans that are written durable, and publish them."""
        self.sync()
        for span in spans:
            self.store.publish(span)

    def flush(self):
        """Write what is staged as one span, sync it, publish it."""
        if self.store.log.staged:
            self.publish(self.store.write())

    def add(self, *bodies, topic="T", number=0, **more):
        """Store messages, each in a span of its own."""
        placed = []
        for body in bodies:
            placed.append(self.put(body, topic, number, **more))
            self.flush()
        return placed

    def add_together(self, *bodies, topic="T", number=0):
        """Store messages in one span."""
        placed = [self.put(body, topic, number) for body in bodies]
        self.flush()
        return placed

    def begin_checkpoint(self):
        """Draft the next index; `confirm` makes it durable."""
        return self.store.checkpoints.begin(self.store.checkpoints.next_range())

    def confirm(self, pending):
        pending.file.file.sync()
        self.store.checkpoints.confirm(pending)

    def checkpoint(self):
        """Save the indexes of everything that is not indexed yet."""
        while self.store.checkpoints.next_range() is not None:
            self.sync()
            self.confirm(self.begin_checkpoint())

    def completed_files(self):
        return self.store.checkpoints.completed_files()

    def drop_first_file(self):
        """Delete the oldest file as housekeeping does."""
        self.floors = self.store.floors_after(1)
        self.store.drop_first_file()

    def forget(self, topic):
        """Delete a topic as the broker does."""
        self.floors = {**self.floors, topic: self.store.queues.forget_topic(topic)}

    def bodies(self, topic="T", number=0):
        """Every message of a queue by its offset, as consumers get them."""
        queue = self.store.find_queue(topic, number)
        found = {}
        at = queue.next_kept(queue.min_offset) if queue is not None else 0
        while queue is not None and at < queue.max_offset:
            got = fetch(self.store, queue, at, 32)
            if got.damage is not None:
                raise got.damage
            assert got.outcome is FetchOutcome.FOUND, got
            for record in records.unpack_all(b"".join(got.records)):
                assert (record.topic, record.queue_id) == (topic, number)
                assert record.queue_offset == at, f"{record.queue_offset} stands at {at}"
                found[at] = record.body
                at += 1
            assert got.next_offset == queue.next_kept(at)
            at = got.next_offset
        return found

    def everything(self):
        """All known queues, with bounds and messages."""
        return {
            place: (queue.min_offset, queue.max_offset, self.bodies(*place))
            for place, queue in sorted(self.queues().items())
        }

    def queues(self):
        return {
            (queue.topic, queue.number): queue
            for topic in list(self.store.queues._queues)
            for queue in self.store.queues_of(topic)
        }

    def found_by_key(self, key, topic="T", begin_ms=0, end_ms=1 << 60):
        """Bodies of the messages with a key, newest first."""
        found = []
        for position in self.store.positions_of_key(topic, key, begin_ms, end_ms):
            data = self.store.record_bytes(position)
            if data is None:  # its queue was emptied
                continue
            record, _ = records.unpack(data)
            if record.topic == topic and key in keys_in(record.properties):
                found.append(record.body)
        return found

    def contents(self, path):
        """A file's bytes."""
        file = self.disk.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def log_files(self):
        return [f"log/{name}" for name in self.disk.names("log")]

    def index_files(self):
        return [f"index/{name}" for name in self.disk.names("index")]


def rewrite(disk, path, data):
    """Give a file other contents, durably."""
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, data)
    file.sync()
    file.close()


def collect_garbage():
    """Collect garbage, so that files that were never closed are reported."""
    gc.collect()
