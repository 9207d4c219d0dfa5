"""Fetch one queue's messages ahead of their consumption.

A fetcher pulls while its buffer has room, and uses long polling. It never gives up: it retries
every failure after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from txmq.client.admin.messages import HOLD_GRACE_S
from txmq.client.consume.consume_window import ConsumeWindow
from txmq.client.consume.subscription import TopicSubscription
from txmq.client.received_message import opened
from txmq.client.routes import MASTER
from txmq.client.session import Session
from txmq.client.settings import ConsumerSettings
from txmq.errors import (
    FlowControlled,
    RemoteProtocolError,
    TopicNotFound,
    TransportError,
    TxmqError,
    refusal,
)
from txmq.limits import REASON_CHARS_MAX
from txmq.message import DEAD_LETTER, Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.bodies import HeldQueue
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import PullAnswer, PullMessage, SendBack
from txmq.protocol.record import unpack_all
from txmq.protocol.topics import DLQ, RETRY
from txmq.runtime.backoff import Backoff

__all__ = ["FetchLimits", "QueueFetcher", "Returns", "as_sent", "limits_of"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 3.0
"""Pauses between failed attempts; stock clients wait 3 s from the start."""

NOT_HELD_S: Final = 0.05
"""The minimum time between two empty pulls. A stopping broker, a lagging replica, or a pull without
a hold time answers at once."""

POISON_AGAIN_S: Final = 5.0
"""The delay before storing a dead letter is retried, as for messages that cannot be sent back."""

_FOUND, _EMPTY, _NONE_MATCHED, _MOVED = 0, 19, 20, 21
_GOES_ON: Final = (_FOUND, _EMPTY, _NONE_MATCHED, _MOVED)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The buffer limits of one queue."""

    messages: int
    bytes_held: int
    span: int | None


def limits_of(settings: ConsumerSettings, of_topic: int, of_all: int) -> FetchLimits:
    """The limits of one queue, given the number of held queues of its topic and in total."""
    count, size = settings.cached_max, settings.cached_size_max
    if settings.topic_cached_max is not None:
        count = max(1, settings.topic_cached_max // of_topic)
    if settings.all_cached_max is not None:
        count = max(1, min(count, settings.all_cached_max // of_all))
    if settings.topic_cached_size_max is not None:
        size = max(1, settings.topic_cached_size_max // of_topic)
    return FetchLimits(count, size, None if settings.is_orderly else settings.span_max)


class Returns:
    """Sends messages back for a later delivery.

    Args:
        session: The session with the brokers.
        group: The group that will receive them again.
        settings: The maximum number of deliveries.
    """

    def __init__(self, session: Session, group: str, settings: ConsumerSettings) -> None:
        self._session = session
        self._group = group
        self._attempts_max = settings.attempts_max

    async def __call__(self, message: ReceivedMessage, level: int, reason: str = "") -> None:
        """Send a message back.

        Args:
            message: The message.
            level: The delay level; 0 lets the broker choose.
            reason: The reason; brokers that support it store it with a dead letter.

        Raises:
            TransportError: No answer came; the message may still come again.
            BrokerRefused: The broker refuses; the message does not come again.
        """
        address = await self._session.address_of(message.queue)
        topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
        origin = message.properties.get(properties.ORIGIN_ID, message.id)
        header = SendBack(
            offset=message.position,
            group=self._group,
            delay_level=level,
            origin_msg_id=origin,
            origin_topic=topic,
            unit_mode=False,
            # ``None`` leaves it to the group's setting.
            max_reconsume_times=self._attempts_max,
            reason=properties.one_line(reason, REASON_CHARS_MAX) or None,
        )
        await self._session.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)


class QueueFetcher:
    """Fetches the messages of one queue.

    Args:
        session: The session with the brokers.
        group: The consumer group.
        settings: How it fetches.
        queue: The queue.
        subscription: The filter.
        start: The offset of the first message.
        deliver: Receives fetched messages.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: ConsumerSettings,
        queue: Queue,
        subscription: TopicSubscription,
        start: int,
        deliver: Callable[[QueueFetcher, Sequence[ReceivedMessage]], None],
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.window: ConsumeWindow = ConsumeWindow(start)
        self.is_dropped = False
        self.is_paused = False
        self.limits: FetchLimits = FetchLimits(1, 1, None)
        self.pulled_at: float = session.clock.monotonic()
        self._session = session
        self._group = group
        self._settings = settings
        self._dead_letters = queue.topic.startswith(DLQ) or None
        self._deliver = deliver
        # With broadcasting, each member drops an unreadable message by itself.
        self._give_up = None if settings.is_broadcast else Returns(session, group, settings)
        self._poison: deque[ReceivedMessage] = deque()
        self._poison_at = 0.0
        self._room = asyncio.Event()
        self._replica = MASTER
        self._backoff = Backoff(session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def run(self) -> int:
        """Fetch until cancelled, or until the group must continue at another offset.

        Returns:
            That offset. Messages already fetched are dropped or fetched again.
        """
        clock = self._session.clock
        while True:
            await self._put_poison_aside()
            await self._wait_for_room()
            asked_at = clock.monotonic()
            try:
                has_found, start = await self._pull()
            except FlowControlled:
                await asyncio.sleep(FIRST_PAUSE_S)
            except TxmqError as error:
                pause_s = self._backoff.next_pause()
                level = logging.INFO if isinstance(error, TransportError) else logging.WARNING
                log.log(level, "%s: cannot fetch from %s: %s", self._group, self.queue, error)
                self._replica = MASTER
                if isinstance(error, TopicNotFound):
                    self._session.remove(self.queue.topic, self.queue.broker)
                elif isinstance(error, TransportError):
                    self._session.forget(self.queue.topic)
                await asyncio.sleep(pause_s)
            else:
                self._backoff.reset()
                if start is not None:
                    return start
                least_s = 0.0 if has_found else NOT_HELD_S
                pause_s = max(
                    self._settings.pull_interval, least_s - (clock.monotonic() - asked_at)
                )
                if pause_s > 0:
                    await asyncio.sleep(pause_s)

    # Buffer limits

    @property
    def has_room(self) -> bool:
        """Whether the buffer has room."""
        window, limits = self.window, self.limits
        return (
            not self.is_paused
            and len(window) < limits.messages
            and window.bytes_held < limits.bytes_held
            and (limits.span is None or window.span <= limits.span)
        )

    async def _wait_for_room(self) -> None:
        while not self.has_room:
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POISON_AGAIN_S if self._poison else None):
                    await self._room.wait()
            await self._put_poison_aside()

    def end(self, messages: Sequence[ReceivedMessage]) -> None:
        """Remove messages that are consumed, or that will be delivered another way."""
        self.window.end(messages)
        self.look_again()

    def look_again(self) -> None:
        """Check again whether there is room."""
        if not self._room.is_set() and self.has_room:
            self._room.set()

    # Fetching

    async def _pull(self) -> tuple[bool, int | None]:
        """Pull once and deliver the messages.

        Returns:
            Whether the offset advanced, and the offset to restart at, if necessary.
        """
        offset = self.window.next_offset
        answer = await self._ask(offset)
        self.pulled_at = self._session.clock.monotonic()
        if answer.code not in _GOES_ON:
            raise refusal(answer.code, answer.remark or "")
        bounds = answer.read(PullAnswer)
        next_offset = bounds.next_begin_offset
        self._replica = bounds.suggest_which_broker_id
        if answer.code == _MOVED:
            log.warning(
                "%s: offset %d lies outside of %s; going on at %d",
                self._group, offset, self.queue, next_offset,
            )  # fmt: skip
        start = self._begins_anew(answer.code, bounds)
        if start is not None:
            return False, start
        if answer.code == _FOUND and next_offset == offset:
            raise RemoteProtocolError(f"the messages found at {offset} end where they begin")
        messages = self._wanted(answer.body) if answer.code == _FOUND else []
        self.window.put(messages, next_offset)
        poison = [message for message in messages if message.unreadable]
        if poison:
            self._poison.extend(poison)
            messages = [message for message in messages if not message.unreadable]
        if messages:
            self._deliver(self, messages)
        return answer.code in {_FOUND, _NONE_MATCHED} and next_offset > offset, None

    def _begins_anew(self, code: int, bounds: PullAnswer) -> int | None:
        window, there = self.window, bounds.next_begin_offset
        offset, safe = window.next_offset, int(window.safe_offset)
        if code == _MOVED and bounds.min_offset <= offset <= bounds.max_offset:
            # The offset is valid: RocketMQ 5 answers this after an operator moved the group.
            return there if (there, there) != (offset, safe) else None
        if there < offset:
            # The queue lost its newest messages. Messages we have not consumed may lie before its
            # new end.
            return max(0, min(there, safe))
        return None

    def _wanted(self, body: bytes) -> list[ReceivedMessage]:
        broker, wanted = self.queue.broker, self.subscription.wanted
        messages = [opened(record, broker) for record in unpack_all(body)]
        if wanted:
            messages = [message for message in messages if message.tags in wanted]
        if self.queue.topic.startswith(RETRY):
            messages = [as_sent(message) for message in messages]
        return messages

    async def _put_poison_aside(self) -> None:
        """Turn unreadable messages into dead letters; the queue does not wait for it."""
        clock = self._session.clock
        while self._poison and clock.monotonic() >= self._poison_at:
            message = self._poison[0]
            about = f"message {message.id} of {self.queue} at {message.offset}"
            try:
                if self._give_up is not None:
                    await self._give_up(message, DEAD_LETTER, message.unreadable)
            except TxmqError as error:
                log.warning(
                    "%s: %s is unreadable and cannot be made a dead letter yet: %s",
                    self._group, about, error,
                )  # fmt: skip
                self._poison_at = clock.monotonic() + POISON_AGAIN_S
                return
            log.error("%s: %s is now a dead letter: %s", self._group, about, message.unreadable)
            self._poison.popleft()
            self.end([message])

    async def _ask(self, offset: int) -> Command:
        queue, subscription, settings = self.queue, self.subscription, self._settings
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        address = await self._address()
        commits = not settings.is_broadcast and self._replica == MASTER
        safe = int(self.window.safe_offset) if commits else 0
        if safe > 0:
            flags |= PullFlag.COMMIT_OFFSET
        header = PullMessage(
            self._group, queue.topic, queue.number, offset, settings.pull_batch, flags, safe,
            int(settings.hold_max * 1000), 0, subscription.expression, subscription.kind, None,
            self._dead_letters,
        )  # fmt: skip
        session = self._session
        connection = session.pool.ready(address) or await session.connection(address)
        timeout_s = settings.hold_max + HOLD_GRACE_S
        return await connection.ask(RequestCode.PULL_MESSAGE, header, timeout_s=timeout_s)

    async def _address(self) -> str:
        queue = self.queue
        route = await self._session.route(queue.topic)
        replicas = route.addresses.get(queue.broker, {})
        return replicas.get(self._replica) or route.reader(queue.broker)

    def shown(self) -> HeldQueue:
        """Its status for operators."""
        window = self.window
        return HeldQueue(
            commit_offset=window.safe_offset,
            cached_msg_min_offset=window.reached,
            cached_msg_max_offset=window.next_offset,
            cached_msg_count=len(window),
            cached_msg_size_in_mi_b=window.bytes_held >> 20,
            droped=self.is_dropped,
        )


def as_sent(message: ReceivedMessage) -> ReceivedMessage:
    """A message from a retry topic, with its original topic restored."""
    topic = message.properties.get(properties.RETRY_TOPIC)
    return message if topic is None else replace(message, topic=topic)
