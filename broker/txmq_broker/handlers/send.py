"""10, 310, 320: producers send messages. The broker's hottest path starts here."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence

from txmq.errors import InternalError, MessageIllegal, TopicNotFound
from txmq.limits import GROUP_CHARS_MAX
from txmq.protocol import properties, recall, templates
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import ONEWAY, Command
from txmq.protocol.headers import SendMessage, SendMessageV2
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import TYPE_BITS
from txmq.protocol.topics import DLQ, RETRY
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler, RunHandler
from txmq_broker.core.arrival import terms_of
from txmq_broker.core.batches import Batches
from txmq_broker.core.clients import producer_group_fault
from txmq_broker.core.ingest import Ingest, Stored
from txmq_broker.core.retry import dead_letter_properties, exhaustion_reason
from txmq_broker.core.topics import Topic, config_for_group, queues_to_write
from txmq_broker.parts import Parts
from txmq_broker.store.delay_store import Unstored

__all__ = ["SendHandlers"]


class SendHandlers:
    """Stores messages from producers."""

    def __init__(self, parts: Parts) -> None:
        self._identity = parts.identity
        self._topics = parts.topics
        self._groups = parts.groups
        self._schedule = parts.schedule
        self._flusher = parts.flusher
        self._clock = parts.clock
        self._entropy = parts.entropy
        self._create_topics = parts.create_topics
        self._store_host_hex = parts.identity.store_host.hex().upper().encode()
        self._ingest = Ingest(
            parts.store,
            parts.topics,
            parts.coordinator,
            parts.clients,
            parts.admission,
            parts.identity,
        )
        self._batches = Batches(parts.store, parts.identity)

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: RunHandler(self.send, self.send_run),
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send_run(self, connection: Connection, requests: Sequence[Command]) -> int:
        """310: store the messages at the beginning of a run that need no step of their own.

        Returns:
            How many these are; the next one needs :meth:`send`.
        """
        flusher = self._flusher
        now_ms = flusher.turn_ms_of_run()
        if not now_ms:
            return 0
        sender = connection, connection.born_host
        stored = self._ingest.stage(requests, sender, now_ms, flusher.turn_end)
        self._reply(connection, requests, stored)
        return len(stored)

    def _reply(
        self, connection: Connection, requests: Sequence[Command], stored: Sequence[Stored]
    ) -> None:
        """Answer the requests at the beginning of a run once their messages are durable."""
        host, sent_one = self._store_host_hex, templates.sent_one
        answered: list[Command] = []
        answers: list[bytes] = []
        for request, (position, number, offset, unique) in zip(requests, stored, strict=False):
            if not request.flag & ONEWAY:
                answered.append(request)
                answers.append(sent_one(request, host, position, number, offset, unique))
        self._flusher.follow(connection, answered, answers)

    def send(self, connection: Connection, request: Command) -> None:
        """10, 310 and 320: store a message or a batch; only the header of 10 has long names."""
        header: SendMessage
        if isinstance(request.ext, SendMessage):  # A usual 310 is decoded as far as this.
            header = request.ext
        else:
            has_long_names = request.code == RequestCode.SEND_MESSAGE
            header = request.read(SendMessage if has_long_names else SendMessageV2)
            request.ext = header  # type: ignore[assignment]  # As a usual 310 has it.
        if not self.send_run(connection, [request]):
            self._send_alone(connection, request, header)

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
        body_max = self._identity.message_size_max
        if not 0 < len(body) <= body_max:
            raise MessageIllegal(f"a body has from 1 to {body_max} bytes, not {len(body)}")
        postmark = self._ingest.postmark_of(header, connection.born_host, now_ms)
        if header.batch:
            batch = self._batches.stage(request, header, topic, postmark)
            ids = self._offset_ids(batch.positions)
            answer = templates.sent(request, ids, header.queue_id, batch.offset, batch.unique)
            self._follow(connection, request, answer)
            return
        arrival = self._ingest.arrival_of(header, topic)
        special = arrival[-1]
        if header.sys_flag & TYPE_BITS or terms_of(special).is_marked:
            earlier = self._ingest.clear_half(header, topic, body, arrival)
            if earlier is not None:
                known = earlier.position, header.queue_id, earlier.offset, arrival[1]
                self._reply(connection, [request], [known])
                return
        elif special is not None:
            wall_ms = self._clock.wall_ms()
            due_time = self._schedule.due_time_in(special, wall_ms)
            if due_time is not None:
                message = Unstored(postmark, header.flag, body, arrival[0])
                number, unique = header.queue_id, arrival[1]
                offset, position = self._schedule.put(topic, number, message, due_time, wall_ms)
                handle = recall.encode(
                    RecallHandle(topic.name, self._identity.name, due_time.due_ms, unique)
                )
                offset_id = b"%b%016X" % (self._store_host_hex, position)
                answer = templates.sent_delayed(request, offset_id, number, offset, unique, handle)
                self._follow(connection, request, answer)
                return
        sender = connection, connection.born_host
        stored = self._ingest.stage([request], sender, now_ms, self._flusher.turn_end, topic)
        assert stored, "a request was not refused and cannot be stored"
        self._reply(connection, [request], stored)

    def _follow(self, connection: Connection, request: Command, answer: bytes) -> None:
        if not request.flag & ONEWAY:
            self._flusher.follow(connection, [request], [answer])

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
            header.sys_flag &= ~TYPE_BITS
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
