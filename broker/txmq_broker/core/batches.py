"""Batches: several messages in one body, of which the broker stores all or none.

The messages of a uniform batch differ only in their bodies, unique keys and keys, all of equal
sizes. Most batches are uniform, because one producer sent their messages with the same options.
A uniform batch is staged in one step, in a third of the time, and what its messages share is
examined once for many batches. Other batches are staged as a run of messages.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from txmq.errors import MessageIllegal
from txmq.limits import SPAN_BYTES_MAX
from txmq.protocol import batch, properties
from txmq.protocol.batch import BatchColumns
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import SendMessage
from txmq.protocol.record import SMALLEST, TYPE_BITS, Postmark, head_size, tail_of
from txmq.protocol.topics import RETRY
from txmq_broker.core.identity import Identity
from txmq_broker.core.sent_properties import examine, examine_all, refuse_delay, terms_of
from txmq_broker.core.topics import Topic
from txmq_broker.store.equal_records import EqualRecords
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import ENTRY, ConsumeQueue, NewRecord

__all__ = ["BatchShape", "BatchShapes", "Batches", "StoredBatch", "UniformBatch"]

_UNIQUE: Final = b"UNIQ_KEY\x01"
_KEYS: Final = b"KEYS\x01"
_PAIR_END: Final = b"\x02"
_SHAPES_MAX: Final = 32
_PACKERS_MAX: Final = 4
"""A shape rarely needs more than one: several topics share a shape only if their seeds collide, and
the sizes of heads differ only between IPv4 and IPv6 addresses.
"""
_HASH_BYTES: Final = 4


class BatchShape(NamedTuple):
    """What the messages of a uniform batch share."""

    columns: BatchColumns
    flag: int
    tags_code: int
    special: dict[str, str] | None
    size: int
    """The size of a message's stored properties."""
    fixed: list[bytes]
    """The stored properties before, between and after the values that differ."""
    value_sizes: list[int]
    unique_at: int
    """Which of these values is the unique key."""
    hash_places: list[slice]
    """For each value, the places of its hashes among all hashes."""
    seed_bits: int
    """The bits that the seed flips in the hashes of all messages."""
    no_hashes: bytes
    """Zeros in the size of all hashes."""
    packers: dict[tuple[bytes, int], EqualRecords]
    """Packers for such messages, by the topic's name and the size of a record's head."""

    def packer(self, name_field: bytes, head_size: int) -> EqualRecords:
        """The packer of such messages for one topic.

        Args:
            name_field: The topic's name, from :func:`~txmq.protocol.record.topic_field`.
            head_size: The size of the bytes before a body.
        """
        found = self.packers.get((name_field, head_size))
        if found is None:
            first = name_field + self.size.to_bytes(2, "big") + self.fixed[0]
            equal = self.columns.equal
            found = EqualRecords(
                equal.messages,
                head_size,
                equal.body_size,
                [first, *self.fixed[1:]],
                self.value_sizes,
                ENTRY,
            )
            if len(self.packers) >= _PACKERS_MAX:
                self.packers.clear()
            self.packers[name_field, head_size] = found
        return found


class UniformBatch(NamedTuple):
    """The messages of a uniform batch."""

    shape: BatchShape
    columns: list[tuple[bytes, ...]]
    """All bodies; then, for each property that differs, its values in all messages."""
    key_hashes: array[int]
    """The hashes of all keys, in the order of the messages."""
    unique: str
    """The first message's unique key."""


class _Value(NamedTuple):
    """A property's value that may differ: its mark, and its place in the text."""

    mark: bytes
    start: int
    end: int


class BatchShapes:
    """The shapes of the newest uniform batches.

    Args:
        cluster: The encoded property with this broker's cluster.
        new_unique_key: Creates an id for a message without one.
    """

    def __init__(self, cluster: str, new_unique_key: Callable[[], str]) -> None:
        self._rules = cluster, new_unique_key
        self._shapes: dict[tuple[int, bytes, str, int], BatchShape] = {}

    def read(self, data: bytes, shared: str, key_seed: int) -> UniformBatch | None:
        """Do :func:`~txmq_broker.core.sent_properties.examine` for all messages of a batch at once.

        Returns ``None`` if the messages are not uniform, or if the batch is broken.

        Args:
            data: The batch.
            shared: The properties that all messages share.
            key_seed: The seed of this topic's key hashes.

        Raises:
            MessageIllegal: The properties are too long to be stored.
        """
        # Batches of equal sizes have the same shape, unless their properties differ.
        key = len(data), data[: batch.HEAD_BYTES], shared, key_seed
        shape = self._shapes.get(key)
        if shape is not None and (found := _read(shape, data)) is not None:
            return found
        shape = self._examine(data, shared, key_seed)
        if shape is None or (found := _read(shape, data)) is None:
            return None
        if len(self._shapes) >= _SHAPES_MAX:
            del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape
        return found

    def _examine(self, data: bytes, shared: str, key_seed: int) -> BatchShape | None:
        equal = batch.equal_messages(data)
        if equal is None or "KEY" in shared:
            return None
        text = equal.properties
        places = _places_in(text)
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return None
        if not places:
            return None
        cuts = [0, *chain.from_iterable([place[1:] for place in places]), len(text)]
        columns = BatchColumns(equal, cuts)
        cluster, new_unique_key = self._rules
        stored, _, tags_code, _, special = examine(
            properties.join(decoded, shared), cluster, key_seed, new_unique_key
        )
        sizes = [place.end - place.start for place in places]
        unique_at = [place.mark for place in places].index(_UNIQUE)
        # The hash of the unique key is a message's first one.
        in_order = [sizes[unique_at], *sizes[:unique_at], *sizes[unique_at + 1 :]]
        hash_places = [
            slice(0 if number == unique_at else 1, None, len(places))
            for number in range(len(sizes))
        ]
        seed_bits = b"".join([_seed_bits(size, key_seed) for size in in_order]) * equal.messages
        fixed = _fixed_in(stored, places)
        return BatchShape(
            columns,
            equal.flag,
            tags_code,
            special,
            len(stored),
            fixed,
            sizes,
            unique_at,
            hash_places,
            int.from_bytes(seed_bits, sys.byteorder),
            bytes(len(seed_bits)),
            {},
        )


def _read(shape: BatchShape, data: bytes) -> UniformBatch | None:
    columns = shape.columns.cut(data)
    if columns is None:
        return None
    values = columns[1:]
    varying = b"".join(chain.from_iterable(values))
    # A space separates several keys. Only ASCII text stays valid UTF-8 wherever it is cut.
    if not varying.isascii() or _PAIR_END in varying or b" " in varying:
        return None
    hashes = array("I", shape.no_hashes)
    for places, column in zip(shape.hash_places, values, strict=True):
        hashes[places] = array("I", map(crc32, column))
    seeded = int.from_bytes(hashes, sys.byteorder) ^ shape.seed_bits
    key_hashes = array("I", seeded.to_bytes(len(shape.no_hashes), sys.byteorder))
    return UniformBatch(shape, columns, key_hashes, values[shape.unique_at][0].decode())


def _seed_bits(size: int, key_seed: int) -> bytes:
    """The bits that a seed flips in the checksum of a text of this size.

    They are the same for all texts of one size. Flipping them in all hashes at once is cheaper than
    hashing each text with the seed.
    """
    text = bytes(size)
    bits = crc32(text) ^ crc32(text, key_seed)
    return bits.to_bytes(_HASH_BYTES, sys.byteorder)


def _places_in(text: bytes) -> list[_Value]:
    """The unique key and the keys, in their order; none if a value is empty or not distinct."""
    found: list[_Value] = []
    for mark in (_UNIQUE, _KEYS):
        start = text.find(mark) + len(mark)
        if start < len(mark):
            continue
        end = text.find(_PAIR_END, start)
        end = len(text) if end < 0 else end
        before = text[: start - len(mark)]
        if text.count(mark) > 1 or start == end or before[-1:] not in (b"", _PAIR_END):
            return []
        found.append(_Value(mark, start, end))
    if not found or found[0].mark != _UNIQUE:
        return []  # The broker creates an id for each message.
    return sorted(found, key=lambda value: value.start)


def _fixed_in(stored: bytes, places: list[_Value]) -> list[bytes]:
    """The stored properties, cut where the sent properties have values at these places."""
    fixed: list[bytes] = []
    done = 0
    for mark, start, end in places:
        at = stored.index(mark, done) + len(mark)
        fixed.append(stored[done:at])
        done = at + end - start
    return [*fixed, stored[done:]]


class StoredBatch(NamedTuple):
    """The place where a batch was staged."""

    positions: bytes
    """The positions of all its messages, in eight bytes each."""
    offset: int
    """The first one's offset."""
    unique: str
    """The first one's unique key."""


class Batches:
    """Checks and stages batches."""

    def __init__(self, store: MessageStore, identity: Identity) -> None:
        self._store = store
        self._identity = identity
        self._shapes = BatchShapes(identity.cluster_property, identity.unique_id)

    def stage(
        self, request: Command, header: SendMessage, topic: Topic, postmark: Postmark
    ) -> StoredBatch:
        """Stage the messages of a batch, all or none.

        Raises:
            MessageIllegal: The batch or one of its messages is refused.
            RemoteProtocolError: The batch is broken.
        """
        if header.sys_flag & TYPE_BITS:
            raise MessageIllegal("a batch cannot be transactional")
        if header.topic.startswith(RETRY):
            raise MessageIllegal("a batch cannot go to a retry topic")
        body, shared = request.body, header.properties or ""
        queue, uniform = topic.queues[header.queue_id], None
        if request.code == RequestCode.SEND_MESSAGE and not _looks_like_batch(body):
            # The C++ client marks a body in its own format as a batch; RocketMQ stores it as one
            # body.
            items = [(header.flag, body, "")]
        elif (uniform := self._shapes.read(body, shared, topic.key_seed)) is None:
            items = batch.unpack(body)
        if uniform is not None:
            count = len(uniform.columns[0])
            stored = self._stage_uniform(uniform, queue, topic, postmark)
        else:
            count = len(items)
            stored = self._stage_items(items, shared, queue, topic, postmark)
        topic.put_count += count
        topic.put_bytes += len(body)
        return stored

    def _stage_uniform(
        self, uniform: UniformBatch, queue: ConsumeQueue, topic: Topic, postmark: Postmark
    ) -> StoredBatch:
        shape, columns, key_hashes, unique = uniform
        _refuse_alone(shape.special)
        head_bytes = head_size(postmark)
        equal = shape.packer(topic.name_field, head_bytes)
        _check_stored(equal.count * (SMALLEST + equal.size - head_bytes))
        offset = queue.next_offset
        positions = self._store.stage_equal(
            queue, postmark, shape.flag, equal, columns, shape.tags_code, key_hashes
        )
        return StoredBatch(positions, offset, unique)

    def _stage_items(
        self,
        items: Sequence[batch.BatchItem],
        shared: str,
        queue: ConsumeQueue,
        topic: Topic,
        postmark: Postmark,
    ) -> StoredBatch:
        new: list[NewRecord] = []
        first_unique = ""
        size = len(items) * SMALLEST
        cluster, new_key = self._identity.cluster_property, self._identity.unique_id
        texts = [text for _, _, text in items]
        found = examine_all(texts, shared, cluster, topic.key_seed, new_key)
        for (flag, body, _), sent in zip(items, found, strict=True):
            data, unique, tags_code, hashes, special = sent
            first_unique = first_unique or unique
            _refuse_alone(special)
            tail = tail_of(topic.name_field, data)
            # Shared properties are stored with each message, so a small batch may fill the log.
            size += len(body) + len(tail)
            _check_stored(size)
            new.append((queue, postmark, flag, body, tail, tags_code, hashes, None))
        places = self._store.stage(new)
        positions = Struct(f">{len(places)}q").pack(*[place[1] for place in places])
        return StoredBatch(positions, places[0][0], first_unique)


def _refuse_alone(special: dict[str, str] | None) -> None:
    """Refuse a message that cannot be in a batch."""
    if special is not None:
        if terms_of(special).is_marked:
            raise MessageIllegal("a batch cannot be transactional")
        refuse_delay(special, "a batch")


def _check_stored(size: int) -> None:
    if size > SPAN_BYTES_MAX:
        raise MessageIllegal(f"a batch takes at most {SPAN_BYTES_MAX} bytes of the log")


def _looks_like_batch(body: bytes) -> bool:
    return len(body) >= 22 and body[4:12] == b"\0" * 8
