"""10, 310, 320: producers send messages. The broker's hottest path starts here."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from txmq.errors import (
    InternalError,
    MessageIllegal,
    NoPermission,
    TopicNotFound,
)
from txmq.limits import GROUP_CHARS_MAX, SPAN_BYTES_MAX
from txmq.protocol import batch, properties, recall, templates
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import ONEWAY, Command
from txmq.protocol.headers import SendMessage, SendMessageV2
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import SMALLEST, Postmark, head_size
from txmq.protocol.topics import DLQ, RETRY
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler, RunHandler
from txmq_broker.core.arrival import (
    BORN_V6,
    CLIENTS_BITS,
    PREPARED,
    STORE_V6,
    TRANSACTION_BITS,
    Arrival,
    as_half,
    examine,
    examine_all,
    is_marked_half,
    refuse_delay,
)
from txmq_broker.core.clients import producer_group_fault
from txmq_broker.core.retry import dead_letter_properties, exhaustion_reason
from txmq_broker.core.schedule import DueTime
from txmq_broker.core.topics import Topic, config_for_group
from txmq_broker.core.uniform_batch import BatchShapes, UniformBatch
from txmq_broker.core.usual_sends import UsualSends
from txmq_broker.parts import Parts
from txmq_broker.store.queue_store import Appended, ConsumeQueue

__all__ = ["SendHandlers", "queues_to_write"]

_length: Final = Struct(">H").pack
_LONG_NAMES: Final = int(RequestCode.SEND_MESSAGE)


class SendHandlers:
    """Stores messages from producers."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._groups = parts.groups
        self._append = parts.store.append
        self._append_all = parts.store.append_all
        self._append_equal = parts.store.append_equal
        self._coordinator = parts.coordinator
        self._schedule = parts.schedule
        self._clients = parts.clients
        self._admission = parts.admission
        self._flusher = parts.flusher
        self._turn_ms = parts.flusher.turn_ms
        self._staged = parts.flusher.staged
        self._clock = parts.clock
        self._entropy = parts.entropy
        self._create_topics = parts.create_topics
        self._cluster = f"CLUSTER\x01{parts.identity.cluster}\x02"
        self._store_host = parts.identity.store_host
        self._store_host_hex = parts.identity.store_host.hex().upper().encode()
        self._store_bits = STORE_V6 if len(parts.identity.store_host) > 8 else 0
        self._new_key = parts.identity.unique_id
        self._shapes = BatchShapes(self._cluster, self._new_key)
        self._body_max = parts.identity.message_size_max
        self._usual = UsualSends(
            parts.topics,
            parts.coordinator,
            parts.clients,
            parts.identity.store_host,
            self._cluster,
            self._new_key,
            self._body_max,
        )

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: RunHandler(self.send, self.send_usual),
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send_usual(self, connection: Connection, requests: list[Command]) -> int:
        """310: serve the usual sends at the beginning of a run; returns how many these are."""
        flusher = self._flusher
        now_ms = flusher.turn_ms_of_run()
        if not now_ms:
            return 0
        answers = self._usual.stage(
            connection,
            requests,
            now_ms,
            flusher.turn_end,
            has_room_for_halves=not self._admission.half_reasons,
        )
        count = len(answers)
        if count:
            served = requests if count == len(requests) else requests[:count]
            flusher.staged_all(connection, served, answers)
        return count

    def send(  # noqa: C901  the hot path: a call for each check would cost every message
        self, connection: Connection, request: Command
    ) -> bytes | None:
        """10, 310 and 320: store a message or a batch; only the header of 10 has long names."""
        header: SendMessage = request.ext  # type: ignore[assignment]  # A cast costs a call.
        if type(header) is not SendMessageV2:  # A usual 310 is decoded as far as this.
            has_long_names = request.code == _LONG_NAMES
            header = request.read(SendMessage if has_long_names else SendMessageV2)
        # Methods of other parts are called through locals: Python specializes no other way to call
        # what an instance keeps.
        turn_ms, append, staged = self._turn_ms, self._append, self._staged
        now_ms = turn_ms()
        group = header.producer_group
        if len(group) > GROUP_CHARS_MAX or not group.isprintable():
            raise MessageIllegal(producer_group_fault(group))
        topic = self._topics.sendable.get(header.topic) or self._missing_or_closed(header)
        number = header.queue_id
        if number < 0:
            number = self._entropy.below(queues_to_write(topic))
        elif number >= len(topic.queues):
            raise InternalError(f"topic {topic.name} has no queue {number}")
        body = request.body
        if not 0 < len(body) <= self._body_max:
            raise MessageIllegal(f"a body has from 1 to {self._body_max} bytes, not {len(body)}")
        born_host = connection.born_host
        sys_flag = header.sys_flag & CLIENTS_BITS | self._store_bits
        if len(born_host) > 8:
            sys_flag |= BORN_V6
        attempts = header.reconsume_times or 0
        postmark = (
            sys_flag, header.born_timestamp, born_host, now_ms, self._store_host, attempts, 0
        )  # fmt: skip
        if header.batch:
            answer = self._stage_batch(request, header, topic, number, postmark)
        else:
            arrival = examine(
                header.properties or "",
                self._cluster,
                topic.key_seed,
                self._new_key,
                topic.patterns,
            )
            data, unique, tags_code, hashes, special = arrival
            if special is not None or sys_flag & TRANSACTION_BITS:
                if sys_flag & TRANSACTION_BITS or is_marked_half(special):
                    return self._take_half(
                        connection, request, header, topic, number, postmark, arrival
                    )
                wall_ms = self._clock.wall_ms()
                due_time = self._schedule.due_time_in(special or {}, wall_ms)
                if due_time is not None:
                    return self._take_delayed(
                        connection,
                        request,
                        header,
                        topic,
                        number,
                        postmark,
                        arrival,
                        due_time,
                        wall_ms,
                    )
            # tail_of inlined.
            tail = topic.name_field + _length(len(data)) + data
            offset, position = append(
                topic.queues[number], postmark, header.flag, body, tail, tags_code, hashes
            )
            topic.put_count += 1
            topic.put_bytes += len(body)
            answer = templates.sent_one(
                request, self._store_host_hex, position, number, offset, unique
            )
        if not request.flag & ONEWAY:
            staged(connection, request, answer)
        return None

    def _take_half(
        self,
        connection: Connection,
        request: Command,
        header: SendMessage,
        topic: Topic,
        number: int,
        postmark: Postmark,
        arrival: Arrival,
    ) -> bytes | None:
        sys_flag = postmark[0]
        if sys_flag & TRANSACTION_BITS != PREPARED:
            if sys_flag & TRANSACTION_BITS:
                raise MessageIllegal("a message cannot be sent as committed or rolled back")
            postmark = (sys_flag | PREPARED, *postmark[1:])
        if topic.name[0] == "%" and topic.name.startswith((RETRY, DLQ)):
            raise NoPermission(f"half messages cannot go to {topic.name}")
        if self._admission.half_reasons:
            self._admission.check_halves()
        group = header.producer_group
        half = as_half(arrival, group)
        origin = self._clients.producer_id(group, connection)
        offset, position, is_new = self._coordinator.prepare(
            topic, number, postmark, header.flag, request.body, half, origin
        )
        if not request.flag & ONEWAY:
            answer = templates.sent_one(
                request, self._store_host_hex, position, number, offset, half[1]
            )
            give = self._flusher.staged if is_new else self._flusher.follow
            give(connection, request, answer)
        return None

    def _take_delayed(
        self,
        connection: Connection,
        request: Command,
        header: SendMessage,
        topic: Topic,
        number: int,
        postmark: Postmark,
        arrival: Arrival,
        due_time: DueTime,
        wall_ms: int,
    ) -> bytes | None:
        data, unique = arrival[:2]
        handle = recall.encode(
            RecallHandle(topic.name, self._identity.name, due_time.due_ms, unique)
        )
        offset, position = self._schedule.put(
            topic, number, postmark, header.flag, request.body, data, due_time, wall_ms
        )
        if not request.flag & ONEWAY:
            offset_id = b"%b%016X" % (self._store_host_hex, position)
            answer = templates.sent_delayed(request, offset_id, number, offset, unique, handle)
            self._flusher.staged(connection, request, answer)
        return None

    def _stage_batch(
        self, request: Command, header: SendMessage, topic: Topic, number: int, postmark: Postmark
    ) -> bytes:
        if header.sys_flag & TRANSACTION_BITS:
            raise MessageIllegal("a batch cannot be transactional")
        if header.topic.startswith(RETRY):
            raise MessageIllegal("a batch cannot go to a retry topic")
        body, uniform = request.body, None
        shared = header.properties or ""
        queue = topic.queues[number]
        offset = queue.next_offset
        # All messages are checked before the first is staged: a batch is stored whole or refused.
        if request.code == RequestCode.SEND_MESSAGE and not _looks_like_batch(body):
            # The C++ client marks a body in its own format as a batch; RocketMQ stores it as one
            # body.
            items = [(header.flag, body, "")]
        elif (uniform := self._shapes.read(body, shared, topic.key_seed)) is None:
            items = batch.unpack(body)
        if uniform is not None:
            count, unique = len(uniform.columns[0]), uniform.unique
            positions = self._stage_uniform(uniform, queue, topic, postmark)
        else:
            rules = self._cluster, topic.key_seed, self._new_key, topic.patterns
            arrivals = examine_all([text for _, _, text in items], shared, *rules)
            count = len(items)
            positions, unique = self._stage_items(items, arrivals, queue, topic, postmark)
        topic.put_count += count
        topic.put_bytes += len(body)
        return templates.sent(request, self._offset_ids(positions), number, offset, unique)

    def _stage_uniform(
        self, uniform: UniformBatch, queue: ConsumeQueue, topic: Topic, postmark: Postmark
    ) -> bytes:
        shape, columns, key_hashes, _ = uniform
        _refuse_alone(shape.special)
        head_bytes = head_size(postmark)
        equal = shape.packer(topic.name_field, head_bytes)
        _check_stored(equal.count * (SMALLEST + equal.size - head_bytes))
        return self._append_equal(
            queue, postmark, shape.flag, equal, columns, shape.tags_code, key_hashes
        )

    def _stage_items(
        self,
        items: Sequence[batch.BatchItem],
        arrivals: Iterator[Arrival],
        queue: ConsumeQueue,
        topic: Topic,
        postmark: Postmark,
    ) -> tuple[bytes, str]:
        messages: list[Appended] = []
        first_unique = ""
        name_field = topic.name_field
        size = len(items) * SMALLEST
        for (flag, body, _), arrival in zip(items, arrivals, strict=True):
            data, unique, tags_code, hashes, special = arrival
            first_unique = first_unique or unique
            _refuse_alone(special)
            tail = name_field + _length(len(data)) + data
            # Shared properties are stored with each message, so a small batch may fill the log.
            size += len(body) + len(tail)
            _check_stored(size)
            messages.append((flag, body, tail, tags_code, hashes))
        positions = self._append_all(queue, postmark, messages)
        return Struct(f">{len(positions)}q").pack(*positions), first_unique

    def _offset_ids(self, positions: bytes) -> bytes:
        # offset_id inlined for all positions at once, because this runs for every message.
        host = self._store_host_hex
        return host + hexlify(positions, ",", 8).upper().replace(b",", b"," + host)

    def _missing_or_closed(self, header: SendMessage) -> Topic:
        """A topic that does not exist yet, or that needs further checks."""
        known = self._topics.for_sending(header.topic)
        if header.topic.startswith(RETRY):
            return self._for_retry(header, known, self._clock.wall_ms())
        if header.default_topic == "":
            raise TopicNotFound(f"topic[{header.topic}] not exist, apply first please!")
        wanted = header.default_topic_queue_nums
        self._create_topics(
            [self._topics.config_for_sending(header.topic, header.default_topic, wanted)]
        )
        return self._topics.get(header.topic)

    def _for_retry(self, header: SendMessage, known: Topic | None, now_ms: int) -> Topic:
        """The topic for a message that a consumer sends as a retry: retry or dead letter."""
        name = header.topic.removeprefix(RETRY)
        group = self._groups.get(name, now_ms)
        attempts, text = header.reconsume_times or 0, header.properties or ""
        if attempts:
            # A client that failed to return a message sends it with all its old properties; it is
            # not a half message any more.
            header.sys_flag &= ~TRANSACTION_BITS
            header.properties = text = properties.without(text, properties.TRANSACTION)
        requested = header.max_reconsume_times
        maximum = group.retry_max_times if requested is None or requested < 0 else requested
        reason = exhaustion_reason(attempts, maximum)
        if reason and not header.batch:
            # Stock consumers give up this way if a return fails, or when orderly.
            # The topic first: a request that has to wait for it must not be changed yet.
            topic = self.topic_of_group(DLQ + name, 1)
            header.queue_id, header.properties = 0, dead_letter_properties(text, reason)
            return topic
        return known or self.topic_of_group(header.topic, max(1, group.retry_queue_nums))

    def topic_of_group(self, name: str, queues: int) -> Topic:
        """A group's retry or dead-letter topic, created when first needed.

        Raises:
            NoPermission: It is closed for writing, or the limit of topics is reached.
            InternalError: Its name is invalid.
            ServiceUnavailable: It could not be saved, or clients create topics too fast.
            Postponed: It is saved later, and the request is served then.
        """
        found = self._topics.for_sending(name)
        if found is None:
            self._create_topics([config_for_group(name, queues)])
            found = self._topics.get(name)
        return found


def _refuse_alone(special: dict[str, str] | None) -> None:
    """Refuse a message that cannot be in a batch."""
    if special is not None:
        if is_marked_half(special):
            raise MessageIllegal("a batch cannot be transactional")
        refuse_delay(special, "a batch")


def _check_stored(size: int) -> None:
    if size > SPAN_BYTES_MAX:
        raise MessageIllegal(f"a batch takes at most {SPAN_BYTES_MAX} bytes of the log")


def queues_to_write(topic: Topic) -> int:
    """The number of writable queues of a topic.

    Raises:
        NoPermission: There are none.
    """
    count = topic.config.write_queue_nums
    if not count:
        raise NoPermission(f"the topic {topic.name} has no queue to write to")
    return count


def _looks_like_batch(body: bytes) -> bool:
    return len(body) >= 22 and body[4:12] == b"\0" * 8
