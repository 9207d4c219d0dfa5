"""Dead letters: messages a group could not consume, counted, read, and given to it once more.

A broker puts them into the topic ``%DLQ%group`` and leaves them there until the log's files expire.
To give one to its group again, a copy goes to the group's retry topic, which no other group reads;
RocketMQ's dashboard has a connected consumer run it instead, and the broker forgets how that ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Final

from txmq.client.admin.dead_letter_copy import copy_of, mark_of, provenance
from txmq.client.admin.lookups import (
    TIME_MAX,
    UNIQUE_KEY_HITS,
    UNIQUE_KEY_QUERY,
    LookupCalls,
)
from txmq.client.admin.messages import PRODUCER_GROUP, MessageCalls
from txmq.client.admin.offsets import OffsetCalls
from txmq.client.admin.topics import TopicCalls
from txmq.client.names import check_name
from txmq.client.received_message import opened
from txmq.client.routes import TEMPLATE, Route
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
from txmq.message import Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import (
    MessagePosition,
    MessageQuery,
    QueueHeader,
    SendMessageV2,
    TimestampAnswer,
    fields_of,
)
from txmq.protocol.message_id import split_offset_id
from txmq.protocol.record import unpack
from txmq.protocol.sends import quoted
from txmq.protocol.topics import DLQ, RETRY

__all__ = ["DeadLetterCalls", "DeadLetters"]

ATTEMPTS_MAX: Final = 16
"""Said with each copy. Older RocketMQ fails unless told, and where a group allows no retries, it
would put the copy back among the dead letters."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What lies in a group's dead letters."""

    group: str
    messages: int
    oldest_ms: int | None
    """When the oldest was put there; nothing where there are none."""
    newest_ms: int | None
    by_broker: Mapping[str, int]
    closed_at: tuple[str, ...]
    """Brokers whose dead letters are there and may not be read."""


class DeadLetterCalls(TopicCalls, OffsetCalls, MessageCalls, LookupCalls):
    """Questions about dead letters, and their second chance, over a session."""

    async def dead_letter_groups(self, group: str | None = None) -> list[DeadLetters]:
        """How many dead letters each group has; groups that never had one are left out.

        Args:
            group: Only this group.

        Raises:
            LocalProtocolError: It is no name for a group.
            TransportError: A name server or broker does not answer.
            BrokerRefused: A broker refuses.
        """
        if group is None:
            topics = [topic for topic in await self.topics() if topic.startswith(DLQ)]
        else:
            topics = [_topic_of(group)]
        found = [await self._counted(topic) for topic in topics]
        return [count for count in found if count is not None]

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
        """The dead letters of a group that are there now, oldest first.

        They are fetched a page at a time while they are asked for, so there may be any number of
        them. Those that arrive meanwhile are left for the next time.

        Args:
            group: The group.
            start: How many to pass over, of those that would be given.
            count: The most wanted.
            begin_ms: Put there at this time or later.
            end_ms: Put there at this time or earlier.
            topic: Only those that were sent to this topic.

        Raises:
            LocalProtocolError: It is no name for a group.
            NoPermission: They may not be read; the text says how to change that.
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
            message_id: The id its producer gave it, its place among the dead letters, or the place
                where it was stored first. Of several with one id, the newest is meant: it died
                again after it was resent.

        Raises:
            NotFound: The group has no such dead letter.
            LocalProtocolError: It is no name for a group.
            NoPermission: They had to be read through, which is not allowed.
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
        # Where it was stored first, nothing may lie any more; only the dead letters remember.
        async with aclosing(self.dead_letters(group)) as letters:
            async for letter in letters:
                if message_id in (letter.offset_id, letter.properties.get(properties.ORIGIN_ID)):
                    return letter
        raise NotFound(f"group {group} has no dead letter {message_id}")

    async def resent_copy(self, group: str, message: ReceivedMessage) -> ReceivedMessage | None:
        """The first copy of a dead letter that was given to its group again, if one was.

        The copy carries the dead letter's place as a key. It is younger than the dead letter, so
        it stays in the log as long. A broker that keeps no index of keys never finds it.

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
        """Give a dead letter to its group once more, and to no other.

        A copy goes to the group's retry topic: the same id, body, keys and properties, no attempts
        yet, and who resent it, when and why. The dead letter itself stays until it expires.

        Args:
            group: The group.
            message: The dead letter.
            reason: Why; kept with the copy.
            operator: Who; kept with the copy.
            force: Also where it was resent already. Two operators at the same moment are not kept
                apart.

        Raises:
            UsageError: It is no dead letter of this group, does not say which topic it was for, was
                resent already, or reason or operator is missing.
            IllegalOperation: The broker put the copy among the dead letters at once.
            TopicNotFound: The group has no retry topic, because no consumer of it ever came.
            LocalProtocolError: The protocol cannot carry the copy.
            LimitExceeded: It is too large with the reason.
            TransportError: No answer came; the leaf says whether it may be stored.
            BrokerRefused: The broker refuses; the leaf says whether it is stored all the same.
        """
        if message.topic != _topic_of(group):
            raise UsageError(f"a message of {message.topic} is no dead letter of group {group}")
        if not reason.strip() or not operator.strip():
            raise UsageError("say who resends a dead letter, and why: both are kept with it")
        now_ms = self._session.clock.wall_ms()
        copy = copy_of(message, RETRY + group, reason.strip(), operator.strip(), now_ms)
        envelope = sealed(copy, self._session.ids.next())
        quoted(envelope.properties)  # Refuses half characters, which command lines may hold.
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
            return None  # It has no dead letters, or they were removed meanwhile.
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
            # A broker that cannot tell says -1.
            min((stored_ms for stored_ms in oldest if stored_ms > 0), default=None),
            max((stored_ms for stored_ms in newest if stored_ms > 0), default=None),
            by_broker,
            _closed_at(route),
        )

    # Reading

    async def _queues(self, group: str) -> tuple[Queue, ...]:
        topic = _topic_of(group)
        try:
            route = await self._session.fresh_route(topic)
        except TopicNotFound:
            return ()  # The first dead letter makes the topic.
        closed = _closed_at(route)
        if closed:
            raise NoPermission(
                f"{topic} may be written and not read at {', '.join(closed)}, as older RocketMQ "
                f"makes it; allow it at each with: txmq topic update '{topic}' --perm rw "
                f"--broker {closed[0]}"
            )
        return route.readable

    async def _stream(
        self, queue: Queue, begin_ms: int, end_ms: int
    ) -> AsyncGenerator[ReceivedMessage, None]:
        # A copy that dies again while the dead letters are resent must not keep this going.
        end = await self.max_offset(queue)
        if begin_ms > 0:
            # Among several of one time a broker may name any; before it, only strangers are lost.
            at = await self.offset_by_time(queue, begin_ms - 1)
        else:
            at = await self.min_offset(queue)
        while at < end:
            pulled = await self.pull(queue, at)
            for message in pulled.messages:
                if message.offset >= end or message.stored_ms > end_ms:
                    return
                if message.stored_ms >= begin_ms:
                    yield message
            if pulled.next_offset <= at:
                return
            at = pulled.next_offset

    async def _by_id(self, dead: str, message_id: str) -> ReceivedMessage | None:
        header = fields_of(MessageQuery(dead, message_id, UNIQUE_KEY_HITS, 0, TIME_MAX))
        header[UNIQUE_KEY_QUERY] = "true"
        found = [message for message in await self._query(dead, header) if message.id == message_id]
        return found[-1] if found else None

    async def _by_place(self, dead: str, offset_id: str) -> ReceivedMessage | None:
        try:
            host, port, position = split_offset_id(offset_id)
        except RemoteProtocolError:
            return None
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        route = await self._session.route(dead)
        for broker, replicas in route.addresses.items():
            # An id that a producer gave can look like a place: no other broker is asked.
            if address not in replicas.values():
                continue
            try:
                answer = await self._session.request(
                    address, RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position)
                )
            except InternalError:
                return None  # Nothing lies there.
            found = opened(unpack(answer.body)[0], broker)
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
        # Brokers remember groups each for itself, and this one knows it for certain.
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
        # RocketMQ 5 takes no retries for a group that holds locks, and does not say so.
        try:
            position = split_offset_id(result.offset_id)[2]
            answer = await self._session.request(
                address, RequestCode.VIEW_MESSAGE_BY_ID, MessagePosition(position)
            )
            topic = unpack(answer.body)[0].topic
        except (BrokerRefused, RemoteProtocolError, TransportError):
            return  # It is stored; had it failed again, the next list would show it.
        if topic == DLQ + group:
            raise IllegalOperation(
                f"the broker put the copy among the dead letters again, at {result.offset_id}: "
                f"consumers of {group} have queues locked, and RocketMQ 5 then takes no retries; "
                f"stop them for a minute, resend, and start them again"
            )


async def _merged(
    streams: list[AsyncGenerator[ReceivedMessage, None]],
) -> AsyncGenerator[ReceivedMessage, None]:
    # The streams are in order each; of each only the next message is held.
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


def _closed_at(route: Route) -> tuple[str, ...]:
    readable = {queue.broker for queue in route.readable}
    return tuple(broker for broker in route.brokers if broker not in readable)
