"""Count, read and resend dead letters: messages that a group could not consume.

A broker stores them in the topic ``%DLQ%group`` until the log's files expire. To resend one, the
client stores a copy in the group's retry topic, which no other group reads. RocketMQ's dashboard
lets a connected consumer handle it instead, and the broker does not record the result.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush, heapreplace
from typing import Final

from txmq.client.admin.messages import PRODUCER_GROUP, TIME_MAX, MessageCalls
from txmq.client.admin.offsets import OffsetCalls
from txmq.client.admin.topics import TopicCalls
from txmq.client.names import check_name
from txmq.client.received_message import opened
from txmq.client.routes import TEMPLATE
from txmq.client.send_request import Envelope, result_of, sealed
from txmq.client.values import SendResult
from txmq.errors import (
    BrokerRefused,
    IllegalOperation,
    InternalError,
    NoPermission,
    NotFound,
    RemoteProtocolError,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.limits import GROUP_CHARS_MAX
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import TopicCounts
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    QueueHeader,
    SendMessageV2,
    TimestampAnswer,
)
from txmq.protocol.record import position_in, split_offset_id, unpack
from txmq.protocol.topics import DLQ, RETRY

__all__ = [
    "RESENT_AT",
    "RESENT_BY",
    "RESENT_FROM",
    "RESENT_REASON",
    "DeadLetterCalls",
    "DeadLetters",
    "copy_of",
    "mark_of",
    "provenance",
]

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 16
"""Sent with each copy. Older RocketMQ requires it; without it, a group with zero retries would get
the copy back as a dead letter."""

RESENT_BY: Final = "TXMQ_RESENT_BY"
RESENT_REASON: Final = "TXMQ_RESENT_REASON"
RESENT_AT: Final = "TXMQ_RESENT_AT_MS"
RESENT_FROM: Final = "TXMQ_RESENT_FROM"
"""The place of the dead letter that was resent."""

_MARK: Final = "resent-"

_LEFT_BEHIND: Final = frozenset(
    {
        properties.WAIT,
        properties.CLUSTER,
        # RocketMQ leaves the last delay on a dead letter; the copy would wait again.
        *properties.DELAYS,
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        properties.REAL_TOPIC,
        properties.REAL_QUEUE,
        properties.TRANSACTION,
        # Attempts before the message became a dead letter.
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__CRC32#",
    }
)
"""Properties that brokers and clients wrote into the message; the copy drops them."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The number and the ages of a group's dead letters."""

    group: str
    messages: int
    oldest_ms: int | None
    """The time of the oldest; ``None`` if there are none."""
    newest_ms: int | None
    by_broker: Mapping[str, int]
    closed_at: tuple[str, ...]
    """Brokers whose dead letters exist but are not readable."""


class DeadLetterCalls(TopicCalls, OffsetCalls, MessageCalls):
    """Requests about dead letters."""

    async def dead_letter_groups(self, group: str | None = None) -> list[DeadLetters]:
        """The number of dead letters of each group; groups that never had one are left out.

        Args:
            group: Only this group.

        Raises:
            LocalProtocolError: The group name is invalid.
            TransportError: A name server or broker does not answer.
            BrokerRefused: A broker refuses.
        """
        if group is None:
            topics = [topic for topic in await self.topics() if topic.startswith(DLQ)]
        else:
            topics = [_topic_of(group)]
        found = [await self._counted(topic) for topic in topics]
        return [count for count in found if count is not None]

    async def dead_letter_count(self, broker: str) -> int:
        """The number of dead letters of all groups at one broker.

        Raises:
            ConfigError: The broker is unknown.
            RequestNotSupported: The broker is not a txmq broker, or an older one.
            TransportError: A name server or the broker does not answer.
            BrokerRefused: The broker refuses.
        """
        answer = await self._ask_broker(broker, RequestCode.COUNT_TOPICS)
        return TopicCounts.read(answer.body).dead_letters or 0

    async def dead_letters(
        self,
        group: str,
        *,
        start: int = 0,
        count: int | None = None,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        topic: str | None = None,
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """The dead letters that a group has now, oldest first.

        The iterator fetches page by page, so there may be any number. It leaves out dead letters
        that arrive during the iteration.

        Args:
            group: The group.
            start: The number of matching dead letters to skip.
            count: The maximum number.
            begin_ms: Only messages that became dead letters at or after this time.
            end_ms: Only messages that became dead letters at or before this time.
            topic: Only dead letters sent to this topic.

        Raises:
            LocalProtocolError: The group name is invalid.
            NoPermission: The dead letter topic is not readable; the text says how to change that.
            TransportError: A name server or broker does not answer.
            BrokerRefused: A broker refuses for another reason.
        """
        queues = await self._queues(group)
        passed, left = 0, count
        streams = [self._stream(queue, begin_ms, end_ms) for queue in queues]
        async with aclosing(_merged(streams)) as merged:
            async for letter in merged:
                if topic is not None and letter.properties.get(properties.RETRY_TOPIC) != topic:
                    continue
                if passed < start:
                    passed += 1
                    continue
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield letter

    async def dead_letter(self, group: str, message_id: str) -> ReceivedMessage:
        """One dead letter of a group.

        Args:
            group: The group.
            message_id: The producer's id, the dead letter's offset id, or the offset id of the
                original message. If several share the id, the newest counts: it failed again after
                it was resent.

        Raises:
            NotFound: The group has no such dead letter.
            LocalProtocolError: The group name is invalid.
            NoPermission: The search must read the dead letter topic, which is not readable.
            TransportError: A name server or broker does not answer.
            BrokerRefused: A broker refuses for another reason.
        """
        dead = _topic_of(group)
        try:
            found = await self._by_id(dead, message_id) or await self._by_place(dead, message_id)
        except TopicNotFound:
            raise NotFound(f"group {group} has no dead letters") from None
        if found is not None:
            return found
        # The original message may have expired; then only its dead letter still has that offset id.
        async with aclosing(self.dead_letters(group)) as letters:
            async for letter in letters:
                if message_id in (letter.offset_id, letter.properties.get(properties.ORIGIN_ID)):
                    return letter
        raise NotFound(f"group {group} has no dead letter {message_id}")

    async def resent_copy(self, group: str, message: ReceivedMessage) -> ReceivedMessage | None:
        """The first resent copy of a dead letter, if it was resent.

        The copy carries the dead letter's place as a key. It is younger than the dead letter, so it
        stays in the log at least as long. A broker without a key index never finds it.

        Raises:
            TransportError: A name server or broker does not answer.
            BrokerRefused: A broker refuses.
        """
        try:
            found = await self.query(RETRY + group, mark_of(message))
        except TopicNotFound:
            return None
        return found[0] if found else None

    async def resend_dead_letter(
        self,
        group: str,
        message: ReceivedMessage,
        *,
        reason: str,
        operator: str,
        force: bool = False,
    ) -> SendResult:
        """Resend a dead letter to its group, and to no other.

        The client stores a copy in the group's retry topic, with the same id, body, keys and
        properties, zero attempts, and the operator, time and reason. The dead letter itself stays
        until it expires.

        Args:
            group: The group.
            message: The dead letter.
            reason: The reason; stored with the copy.
            operator: The operator's name; stored with the copy.
            force: Resend even if it was resent before. Even without it, two operators who act at
                the same moment may both resend.

        Raises:
            UsageError: The message is not a dead letter of this group, does not name its topic, or
                was resent already; or reason or operator is missing.
            IllegalOperation: The broker stored the copy as a dead letter at once.
            TopicNotFound: The group has no retry topic, because it never had a consumer.
            LocalProtocolError: The protocol cannot carry the copy.
            LimitExceeded: The copy is too large with the reason.
            TransportError: No answer came; the subclass says whether it may be stored.
            BrokerRefused: The broker refuses; the subclass says whether it stored the copy anyway.
        """
        if message.topic != _topic_of(group):
            raise UsageError(f"a message of {message.topic} is not a dead letter of group {group}")
        if not reason.strip() or not operator.strip():
            raise UsageError("say who resends a dead letter, and why: both are kept with it")
        now_ms = self._session.clock.wall_ms()
        copy = copy_of(message, RETRY + group, reason.strip(), operator.strip(), now_ms)
        envelope = sealed(copy, self._session.ids.next())
        if not force:
            before = await self.resent_copy(group, message)
            if before is not None:
                raise UsageError(f"{message.offset_id} was resent already, {provenance(before)}")
        try:
            queue = await self._retry_queue(group, message.queue.broker)
            address = await self._session.address_of(queue)
            result = await self._resend(envelope, queue, address, message.born_ms)
        except TxmqError as error:
            self._doubt_route(copy.topic, message.queue.broker, error)
            raise
        await self._check_given(group, result, address)
        return result

    # Counting

    async def _counted(self, topic: str) -> DeadLetters | None:
        try:
            queues = await self.topic_status(topic)
            route = await self._session.route(topic)
        except TopicNotFound:
            return None  # The group has no dead letters, or no longer has any.
        by_broker = dict.fromkeys(route.brokers, 0)
        oldest: list[int] = []
        newest: list[int] = []
        for status in queues:
            held = status.max_offset - status.min_offset
            if held <= 0:
                continue
            by_broker[status.queue.broker] += held
            newest.append(status.updated_ms)
            header = QueueHeader(topic, status.queue.number)
            answer = await self._session.request(
                route.reader(status.queue.broker), RequestCode.GET_EARLIEST_MSG_STORETIME, header
            )
            oldest.append(answer.read(TimestampAnswer).timestamp)
        return DeadLetters(
            topic.removeprefix(DLQ),
            sum(by_broker.values()),
            # A broker that does not know the time returns -1.
            min((stored_ms for stored_ms in oldest if stored_ms > 0), default=None),
            max((stored_ms for stored_ms in newest if stored_ms > 0), default=None),
            by_broker,
            (await self.readable_queues(route))[1],
        )

    # Reading

    async def _queues(self, group: str) -> tuple[Queue, ...]:
        topic = _topic_of(group)
        try:
            route = await self._session.fresh_route(topic)
        except TopicNotFound:
            return ()  # The first dead letter creates the topic.
        queues, closed = await self.readable_queues(route)
        if closed:
            raise NoPermission(
                f"{topic} may be written and not read at {', '.join(closed)}, as older RocketMQ "
                f"makes it; allow it at each with: txmq topic permit '{topic}' rw "
                f"--broker {closed[0]}"
            )
        return queues

    async def _stream(
        self, queue: Queue, begin_ms: int, end_ms: int
    ) -> AsyncGenerator[ReceivedMessage, None]:
        # Stop at today's end: a resent copy that fails again must not extend the iteration.
        end = await self.max_offset(queue)
        if begin_ms > 0:
            # Among messages of one time a broker may return any, so search 1 ms earlier and filter
            # below.
            at = await self.offset_by_time(queue, begin_ms - 1)
        else:
            at = await self.min_offset(queue)
        while at < end:
            pulled = await self.pull(queue, at, on_damage=partial(log.error, "%s"))
            for message in pulled.messages:
                if message.offset >= end or message.stored_ms > end_ms:
                    return
                if message.stored_ms >= begin_ms:
                    yield message
            if pulled.next_offset <= at:
                return
            at = pulled.next_offset

    async def _by_id(self, dead: str, message_id: str) -> ReceivedMessage | None:
        found = await self._sent_as(dead, message_id)
        return found[-1] if found else None

    async def _by_place(self, dead: str, offset_id: str) -> ReceivedMessage | None:
        try:
            address, position = split_offset_id(offset_id)
        except RemoteProtocolError:
            return None
        route = await self._session.route(dead)
        for broker, replicas in route.addresses.items():
            # A producer's id can look like a place, so only brokers of this group are queried.
            if address not in replicas.values():
                continue
            try:
                record = unpack(await self._record_at(address, position))[0]
            except InternalError:
                return None  # No message is stored there.
            found = opened(record, broker)
            return found if found.topic == dead else await self._by_id(dead, found.id)
        return None

    # Resending

    async def _retry_queue(self, group: str, broker: str) -> Queue:
        try:
            route = await self._session.route(RETRY + group)
        except TopicNotFound as error:
            raise TopicNotFound(
                f"group {group} has no retry topic yet; start one of its consumers, which makes it"
            ) from error
        # Each broker keeps its own list of groups; the dead letter's broker certainly has this
        # group.
        there = [queue for queue in route.writable if queue.broker == broker] or route.writable
        if not there:
            raise NoPermission(f"the retry topic of group {group} may not be written to")
        return there[self._session.entropy.below(len(there))]

    async def _resend(
        self, envelope: Envelope, queue: Queue, address: str, born_ms: int
    ) -> SendResult:
        header = SendMessageV2(
            producer_group=PRODUCER_GROUP,
            topic=envelope.topic,
            default_topic=TEMPLATE,
            default_topic_queue_nums=1,
            queue_id=queue.number,
            sys_flag=envelope.sys_flag,
            born_timestamp=born_ms,
            flag=envelope.flag,
            properties=envelope.properties,
            reconsume_times=0,
            unit_mode=False,
            max_reconsume_times=ATTEMPTS_MAX,
            batch=False,
            broker_name=queue.broker,
        )
        connection = await self._session.connection(address)
        answer = await connection.ask(
            RequestCode.SEND_MESSAGE_V2,
            header,
            body=envelope.body,
            timeout_s=self._session.answer_s,
        )
        return result_of(answer, queue, envelope.id)

    async def _check_given(self, group: str, result: SendResult, address: str) -> None:
        # RocketMQ 5 silently ignores retries for a group that holds locks.
        try:
            stored = await self._record_at(address, position_in(result.offset_id))
            topic = unpack(stored)[0].topic
        except (BrokerRefused, RemoteProtocolError, TransportError):
            return  # The copy is stored; if it failed again, the next list shows it.
        if topic == DLQ + group:
            raise IllegalOperation(
                f"the broker put the copy among the dead letters again, at {result.offset_id}: "
                f"consumers of {group} have queues locked, and RocketMQ 5 then takes no retries; "
                f"stop them for a minute, resend, and start them again"
            )


async def _merged(
    streams: list[AsyncGenerator[ReceivedMessage, None]],
) -> AsyncGenerator[ReceivedMessage, None]:
    # Each stream is sorted; the merge holds only the next message of each.
    heads: list[tuple[int, int, ReceivedMessage]] = []
    try:
        for at, stream in enumerate(streams):
            first = await anext(stream, None)
            if first is not None:
                heappush(heads, (first.stored_ms, at, first))
        while heads:
            _, at, message = heads[0]
            yield message
            following = await anext(streams[at], None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.stored_ms, at, following))
    finally:
        for stream in streams:
            await stream.aclose()


def _topic_of(group: str) -> str:
    check_name("group", group, GROUP_CHARS_MAX)
    check_name("topic", DLQ + group)
    return DLQ + group


def mark_of(message: ReceivedMessage) -> str:
    """The key under which the copy of a dead letter is indexed."""
    return _MARK + message.offset_id


def copy_of(
    message: ReceivedMessage, topic: str, reason: str, operator: str, now_ms: int
) -> Message:
    """The copy of a dead letter: a new message with the mark as a key.

    Raises:
        UsageError: The dead letter does not name its topic, or its body is unreadable.
    """
    if message.unreadable:
        raise UsageError(
            f"{message.offset_id} would only die again: {message.unreadable}; send a whole one"
        )
    if not message.properties.get(properties.RETRY_TOPIC):
        raise UsageError(
            f"{message.offset_id} does not say which topic it was for ({properties.RETRY_TOPIC}), "
            "so no broker put it there; send its body to that topic yourself"
        )
    kept = {name: value for name, value in message.properties.items() if name not in _LEFT_BEHIND}
    kept.setdefault(properties.ORIGIN_ID, message.offset_id)
    kept[properties.UNIQUE_KEY] = message.id
    kept |= {
        RESENT_BY: operator,
        RESENT_REASON: reason,
        RESENT_AT: str(now_ms),
        RESENT_FROM: message.offset_id,
    }
    # Consumers may rely on the first key, or on the id if there is no key; both are unchanged. The
    # mark is the second key, because brokers index a limited number of keys.
    others = [key for key in message.keys[1:] if not key.startswith(_MARK)]
    return Message(
        topic=topic,
        body=message.body,
        tags=message.tags,
        keys=(message.key, mark_of(message), *others),
        properties=kept,
        flag=message.flag,
    )


def provenance(copy: ReceivedMessage) -> str:
    """The operator who resent a message, and the reason."""
    named = copy.properties
    operator = named.get(RESENT_BY, "an unknown operator")
    return f"by {operator}: {named.get(RESENT_REASON, 'no reason given')}"
