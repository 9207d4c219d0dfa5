"""10, 310, 320, 370, and of txmq 7712, 7721, 7722: producers send messages and recall delayed ones.

The broker's hottest path starts here.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from struct import Struct
from typing import Final

from txmq.errors import (
    BrokerBusy,
    IllegalOperation,
    InternalError,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    TopicNotFound,
)
from txmq.limits import GROUP_CHARS_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import properties, recall, templates
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.command import ONEWAY, Command, answer
from txmq.protocol.headers import RecallAnswer, RecallMessage, SendMessage, SendMessageV2
from txmq.protocol.operations import ListDelayed, RecallDelayed
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import PREPARED, TYPE_BITS, head_size
from txmq.protocol.topics import DLQ, RETRY
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler, RunHandler
from txmq_broker.core.batches import Batches
from txmq_broker.core.clients import producer_group_fault
from txmq_broker.core.identity import host_bits
from txmq_broker.core.retry import dead_letter_properties, exhaustion_reason
from txmq_broker.core.sent_properties import (
    NO_TERMS,
    SentProperties,
    examine,
    missing_marks,
    terms_of,
)
from txmq_broker.core.topics import Topic, config_for_group, queues_to_write
from txmq_broker.parts import Parts
from txmq_broker.store.delay_store import Unstored
from txmq_broker.store.half_store import NewHalf, RecentDecision
from txmq_broker.store.pending_transactions import KEY_MASK, Half, transaction_key
from txmq_broker.store.queue_store import NewRecord

__all__ = ["SendHandlers"]

_CLIENTS_BITS: Final = ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
"""The flags of a message that are up to its client."""
_length: Final = Struct(">H").pack


class SendHandlers:
    """Stores what producers send, and lists and recalls delayed messages.

    Consecutive requests form a run; a single request is a run of one. A run is checked from its
    beginning up to the first request that needs a separate step, and nothing changes until these
    requests are checked. Then the store stages their records at once.
    """

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._schedule = parts.schedule
        self._transactions = parts.transactions
        self._halves = parts.transactions.halves
        self._clients = parts.clients
        self._admission = parts.admission
        self._flusher = parts.flusher
        self._clock = parts.clock
        self._entropy = parts.entropy
        self._create_topics = parts.create_topics
        self._broker = parts.identity.name
        self._cluster = parts.identity.cluster_property
        self._new_key = parts.identity.unique_id
        self._body_max = parts.identity.message_size_max
        self._store_host = parts.identity.store_host
        self._store_host_hex = parts.identity.store_host.hex().upper().encode()
        self._batches = Batches(parts.store, parts.identity)

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: RunHandler(self.send, self.send_run),
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.SEND_DELAYED_HALF: self.send,
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.LIST_DELAYED: self.list_waiting,
            RequestCode.RECALL_DELAYED: self.recall_by_hand,
        }

    def send(self, connection: Connection, request: Command) -> None:
        """10, 310, 320 and 7712: store a message, a batch, or a half message with a delay; only the
        header of 10 has long names.
        """
        header: SendMessage
        if isinstance(request.ext, SendMessage):  # A run's 310 is decoded this far.
            header = request.ext
        else:
            has_long_names = request.code == RequestCode.SEND_MESSAGE
            header = request.read(SendMessage if has_long_names else SendMessageV2)
            request.ext = header  # type: ignore[assignment]  # As a run's 310 has it.
        if not self.send_run(connection, [request]):
            self._send_alone(connection, request, header)

    def send_run(  # noqa: C901, PLR0912, PLR0915  the hot path: a call would cost every message
        self, connection: Connection, requests: Sequence[Command], cleared: Topic | None = None
    ) -> int:
        """310: store the messages at the beginning of a run, and answer once they are durable.

        It stops at a request that is refused, needs a new topic, goes to a retry topic, lets the
        broker choose the queue, is a batch, is delayed, or repeats a half message. It also stops at
        a half message whose properties lack the mark or the group.

        Args:
            connection: Their connection.
            requests: The requests, with their headers decoded.
            cleared: The topic of a single request that has passed :meth:`_send_alone`, which has
                checked the topic, the delay, and whether the half message is a repetition.

        Returns:
            How many requests it took; the next one needs :meth:`send`.
        """
        flusher = self._flusher
        now_ms = flusher.turn_ms_of_run()
        if not now_ms:
            return 0
        position_max = flusher.turn_end
        sendable, cluster, new_key = self._topics.sendable, self._cluster, self._new_key
        store_host, body_max = self._store_host, self._body_max
        born_host = connection.born_host
        v6_bits = host_bits(born_host, store_host)
        head_bytes = head_size((v6_bits, 0, born_host, now_ms, store_host, 0, 0))
        halves, room = self._halves, -1
        position = self._store.log.next_position
        new: list[NewRecord] = []
        new_halves: list[NewHalf] = []
        uniques: list[str] = []
        puts: list[tuple[Topic, int]] = []
        keys: set[int] = set()
        topic_name = group_name = ""
        origin: str | None = None
        topic = cleared
        judged: dict[str, str] | None = None
        terms = NO_TERMS
        for request in requests:
            header = request.ext
            if not isinstance(header, SendMessage):
                break
            if header.topic != topic_name or topic is None:
                topic = cleared or sendable.get(header.topic)
                if topic is None:
                    break
                topic_name, queues = header.topic, topic.queues
                name_field, key_seed = topic.name_field, topic.key_seed
            group = header.producer_group
            if group != group_name:
                if len(group) > GROUP_CHARS_MAX or not group.isprintable():
                    break
                group_name, origin = group, None
            number, body = header.queue_id, request.body
            if (
                not 0 <= number < len(queues)
                or not 0 < len(body) <= body_max
                or header.batch
                or position > position_max
            ):
                break
            queue = queues[number]
            try:
                data, unique, tags_code, hashes, special = examine(
                    header.properties or "", cluster, key_seed, new_key
                )
            except MessageIllegal:
                break
            sys_flag = header.sys_flag & _CLIENTS_BITS | v6_bits
            half_queue = None
            if special is not None or sys_flag & TYPE_BITS:
                if special != judged:  # A producer's half messages mostly have equal ones.
                    judged, terms = special, terms_of(special)
                if sys_flag & TYPE_BITS or terms.is_marked:
                    if room < 0:
                        table, opening = halves.pending.table, halves.opening
                        recent, older = halves.recent, halves.older
                        room = self._room_for_halves()
                    key = hash(unique) & KEY_MASK  # transaction_key inlined.
                    if (
                        sys_flag & TYPE_BITS not in (0, PREPARED)
                        or not (terms.group or cleared)
                        or (terms.is_delayed and not cleared)
                        or not room
                        or len(data) > PROPERTIES_OF_HALF_MAX
                        or topic_name.startswith((RETRY, DLQ))
                        or key in table
                        or key in opening
                        or key in keys
                        or (cleared is None and (key in recent or key in older))
                    ):
                        break
                    sys_flag |= PREPARED
                    half_queue = halves.half_queue
                    if origin is None:
                        origin = self._clients.producer_id(group, connection)
                    owner = terms.group or group
                    new_halves.append(
                        (len(new), key, owner, origin, terms.immunity_s, terms.is_delayed)
                    )
                    keys.add(key)
                    room -= 1
                elif terms.is_delayed and cleared is None:
                    break
            postmark = (
                sys_flag, header.born_timestamp, born_host, now_ms, store_host,
                header.reconsume_times or 0, 0,
            )  # fmt: skip
            # tail_of inlined.
            tail = name_field + _length(len(data)) + data
            new.append((queue, postmark, header.flag, body, tail, tags_code, hashes, half_queue))
            uniques.append(unique)
            position += head_bytes + len(body) + len(tail)
            if half_queue is None:
                puts.append((topic, len(body)))
        if not new:
            return 0
        places = self._store.stage(new, new_halves)
        self._transactions.tally.prepared += len(new_halves)
        for topic, size in puts:
            topic.put_count += 1
            topic.put_bytes += size
        host, sent_one = self._store_host_hex, templates.sent_one
        answered: list[Command] = []
        answers: list[bytes] = []
        for request, record, place, unique in zip(requests, new, places, uniques, strict=False):
            if not request.flag & ONEWAY:
                answered.append(request)
                number, offset, position = record[0].number, place[0], place[1]
                answers.append(sent_one(request, host, position, number, offset, unique))
        flusher.answer(connection, answered, answers)
        return len(new)

    def _send_alone(self, connection: Connection, request: Command, header: SendMessage) -> None:
        """Refuse a request, or take the step that it needs before it can be stored."""
        now_ms, body = self._flusher.turn_ms(), request.body
        group = header.producer_group
        if len(group) > GROUP_CHARS_MAX or not group.isprintable():
            raise MessageIllegal(producer_group_fault(group))
        topic = self._topics.sendable.get(header.topic) or self._missing_or_closed(header)
        if header.queue_id < 0:
            header.queue_id = self._entropy.below(queues_to_write(topic))
        elif header.queue_id >= len(topic.queues):
            raise InternalError(f"topic {topic.name} has no queue {header.queue_id}")
        body_max = self._body_max
        if not 0 < len(body) <= body_max:
            raise MessageIllegal(f"a body has from 1 to {body_max} bytes, not {len(body)}")
        # The postmark of all records of this request.
        postmark = (
            header.sys_flag & _CLIENTS_BITS | host_bits(connection.born_host, self._store_host),
            header.born_timestamp, connection.born_host, now_ms, self._store_host,
            header.reconsume_times or 0, 0,
        )  # fmt: skip
        if header.batch:
            batch = self._batches.stage(request, header, topic, postmark)
            ids = self._offset_ids(batch.positions)
            reply = templates.sent(request, ids, header.queue_id, batch.offset, batch.unique)
            self._answer(connection, request, reply)
            return
        sent = examine(header.properties or "", self._cluster, topic.key_seed, self._new_key)
        data, unique, _, _, special = sent
        if header.sys_flag & TYPE_BITS or terms_of(special).is_marked:
            earlier = self._clear_half(header, topic, body, sent)
            if earlier is not None:
                number, offset, position = header.queue_id, earlier.offset, earlier.position
                host = self._store_host_hex
                reply = templates.sent_one(request, host, position, number, offset, unique)
                self._answer(connection, request, reply)
                return
        elif special is not None:
            wall_ms = self._clock.wall_ms()
            due_time = self._schedule.due_time_in(special, wall_ms)
            if due_time is not None:
                message = Unstored(postmark, header.flag, body, data)
                number = header.queue_id
                offset, position = self._schedule.put(
                    topic.name, number, message, due_time, wall_ms
                )
                handle = recall.encode(
                    RecallHandle(topic.name, self._broker, due_time.due_ms, unique)
                )
                offset_id = b"%b%016X" % (self._store_host_hex, position)
                reply = templates.sent_delayed(request, offset_id, number, offset, unique, handle)
                self._answer(connection, request, reply)
                return
        taken = self.send_run(connection, [request], topic)
        assert taken, "a request was not refused and cannot be stored"

    def _answer(self, connection: Connection, request: Command, reply: bytes) -> None:
        if not request.flag & ONEWAY:
            self._flusher.answer(connection, [request], [reply])

    def _offset_ids(self, positions: bytes) -> bytes:
        # offset_id inlined for all positions at once, because this runs for every message.
        host = self._store_host_hex
        return host + hexlify(positions, ",", 8).upper().replace(b",", b"," + host)

    def _clear_half(
        self, header: SendMessage, topic: Topic, body: bytes, sent: SentProperties
    ) -> Half | RecentDecision | None:
        """Make a half message ready for :meth:`send_run`, or find the earlier one with its id.

        Afterwards its properties contain the mark and the group, even if only the header did.

        Raises:
            MessageIllegal: It cannot be a half message, or its id belongs to another message.
            NoPermission: Its topic takes no half messages.
            ServiceUnavailable: Half messages are refused now.
            BrokerBusy: The limit of open transactions is reached.
        """
        if header.sys_flag & TYPE_BITS not in (0, PREPARED):
            raise MessageIllegal("a message cannot be sent as committed or rolled back")
        if topic.name.startswith((RETRY, DLQ)):
            raise NoPermission(f"half messages cannot go to {topic.name}")
        self._admission.check_halves()
        marks = missing_marks(sent, header.producer_group)
        header.properties = properties.join(header.properties or "", marks)
        if sent[4] is not None:
            self._schedule.due_time_in(sent[4], self._clock.wall_ms())
        unique = sent[1]
        known = self._known(transaction_key(unique), topic, unique, body)
        if known is None and not self._room_for_halves():
            most = self._transactions.settings.pending_max
            self._transactions.tally.refused += 1
            raise BrokerBusy(
                f"{most} transactions are open, which is the limit; this one was not prepared; "
                "decide some, or raise transaction.pending_max"
            )
        return known

    def _room_for_halves(self) -> int:
        """The number of half messages that are accepted now."""
        if self._admission.half_reasons:
            return 0
        halves = self._halves
        known = len(halves.pending.table) + len(halves.opening)
        return max(0, self._transactions.settings.pending_max - known)

    def _known(
        self, key: int, topic: Topic, unique: str, body: bytes
    ) -> Half | RecentDecision | None:
        halves = self._halves
        opening = halves.opening.get(key)
        known: Half | RecentDecision | None
        if opening is not None:
            known = halves.pending.unpack(opening)
        else:
            known = halves.pending.find(key) or halves.find_done(key)
        if known is None:
            return None
        if isinstance(known, Half) and known.queue.topic != topic.name:
            raise MessageIllegal(f"the id {unique} belongs to a transaction of another topic")
        # A half message cannot be read before it is written.
        sent = halves.sent_at(known.position) if opening is None else None
        if sent is not None and sent != (unique, topic.name, body):
            raise MessageIllegal(f"the id {unique} belongs to another transaction")
        self._transactions.tally.repeated += 1
        return known

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
        attempts = header.reconsume_times or 0
        requested = header.max_reconsume_times
        maximum = group.retry_max_times if requested is None or requested < 0 else requested
        reason = exhaustion_reason(attempts, maximum)
        # Stock consumers give up this way if a return fails, or if they consume in order.
        gives_up = reason and not header.batch
        # The topic first: a request that has to wait for it must not be changed yet.
        if gives_up:
            topic = self.topic_of_group(DLQ + name, 1)
        else:
            topic = known or self.topic_of_group(header.topic, max(1, group.retry_queue_nums))
        if attempts:
            # A client that failed to return a message sends it with all its old properties, but it
            # is no longer a half message.
            header.sys_flag &= ~TYPE_BITS
            header.properties = properties.without(header.properties or "", properties.TRANSACTION)
        if gives_up:
            header.queue_id = 0
            header.properties = dead_letter_properties(header.properties or "", reason)
        return topic

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

    # Delayed messages

    def list_waiting(self, _: Connection, request: Command) -> bytes:
        """7721: the waiting delayed messages by due time, a page at a time."""
        page = self._schedule.page(self._broker, request.read(ListDelayed))
        return answer(request, body=page.write())

    def recall_by_hand(self, connection: Connection, request: Command) -> None:
        """7722: an operator recalls a delayed message; the audit log keeps the reason."""
        header = request.read(RecallDelayed)
        if not header.operator.strip() or not header.reason.strip():
            raise InvalidParameter("operator and reason must not be empty")
        self._recall(connection, request, header.topic, header.recall_handle)

    def recall(self, connection: Connection, request: Command) -> None:
        """370: recall a delayed message; the answer comes once the recall is durable."""
        header = request.read(RecallMessage)
        self._recall(connection, request, header.topic, header.recall_handle)

    def _recall(self, connection: Connection, request: Command, topic: str, text: str) -> None:
        self._topics.get(topic)
        handle = recall.decode(text)
        if handle.topic != topic or handle.broker != self._broker:
            raise IllegalOperation(
                f"the handle is for {handle.topic} at {handle.broker}, not for {topic} here"
            )
        found = self._schedule.find(handle.topic, handle.message_id)
        now_ms = self._flusher.turn_ms()
        host = self._store_host
        flags = host_bits(host, host)
        self._schedule.recall(found, (flags, now_ms, host, now_ms, host, 0, 0))
        if not request.is_oneway:
            recalled = answer(request, 0, RecallAnswer(handle.message_id))
            self._flusher.answer(connection, [request], [recalled])
