"""The message trace: hooks that record sends and handlers, and a sender in the background.

Traced operations never wait for their trace, and its errors never reach them. Records that cannot
be sent in time are dropped, the oldest first, and counted.
:mod:`txmq.client.observe.trace_records` defines their layout.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol

from txmq.client.identity import UniqueIds
from txmq.client.observe.hooks import AfterCheck, AfterEnd, AfterHandler, AfterSend, TransactionEnd
from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    MessageKind,
    SendRecord,
    TopicRecord,
    TracePack,
    TraceRecord,
    packed,
)
from txmq.client.values import SendResult, SendStatus
from txmq.errors import RemoteProtocolError, TxmqError
from txmq.limits import FAULTS_MAX, GROUP_CHARS_MAX, TRACES_MAX
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.command import Command
from txmq.protocol.record import split_offset_id
from txmq.protocol.topics import TRACES
from txmq.runtime.clock import Clock
from txmq.runtime.tasks import Tasks
from txmq.text import quantity

__all__ = ["HandlerTrace", "SendTrace", "Tracer", "trace_group"]

log = logging.getLogger(__name__)

LINGER_S: Final = 0.5
"""How long a record waits for others; after a failure all records wait this long."""
HURRY: Final = 100
"""From this number of records on, the sender does not wait for more."""
ROUND: Final = 1000
"""The maximum number of records in flight."""
FLUSH_S: Final = 3.0
"""How long a close waits for records to be sent."""
WARN_S: Final = 60.0
"""The shortest time between two warnings about lost records."""
_PREFIX: Final = "_INNER_TRACE_PRODUCER-"
_REGION: Final = "MSG_REGION"
_SWITCH: Final = "TRACE_ON"
_DEFAULT_REGION: Final = "DefaultRegion"
_START_DELIVER: Final = "__STARTDELIVERTIME"
_OFF: Final = "false"


def trace_group(group: str, role: str) -> str:
    """The group of the producer that sends the traces of a member, as stock clients name it."""
    room = GROUP_CHARS_MAX - len(_PREFIX) - len(role) - 1
    return f"{_PREFIX}{group[:room]}-{role}"


class TraceProducer(Protocol):
    """The methods of a producer that traces need."""

    async def __aenter__(self) -> object:
        """Open it."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def send(self, message: Message, /) -> object:
        """Send a message."""
        ...


class Tracer:
    """Collects the records of one producer or consumer, and sends them.

    Args:
        sender: The producer; it is opened and closed with the tracer, and is not traced itself.
        topic: The trace topic.
        clock: Gives the time.
        records_max: The maximum number of waiting records.
    """

    def __init__(
        self, sender: TraceProducer, topic: str, clock: Clock, records_max: int = TRACES_MAX
    ) -> None:
        self.topic = topic
        self.clock = clock
        self.lost: int = 0
        """Records that were dropped, or could not be sent."""
        self._sender = sender
        self._waiting: deque[TopicRecord] = deque(maxlen=records_max)
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_closing = False
        self._told = 0
        self._told_at = -WARN_S
        self._tasks = Tasks()

    def wants(self, topic: str) -> bool:
        """Whether to trace messages of a topic: traces themselves are not traced."""
        return topic not in (self.topic, TRACES)

    def note(self, topic: str, record: TraceRecord) -> None:
        """Queue a record, to be sent soon; if there are too many, the oldest is dropped."""
        waiting = self._waiting
        if len(waiting) == waiting.maxlen:
            self.lost += 1
        waiting.append(TopicRecord(topic, record))
        self._some.set()
        if len(waiting) >= HURRY:
            self._hurry.set()

    async def open(self) -> None:
        """Begin to send.

        Raises:
            UsageError: The client is not open, or already traces a member of this group.
        """
        await self._sender.__aenter__()
        self._tasks.start(self._send_always(), "message trace")

    async def close(self) -> None:
        """Send the remaining records, for up to ``FLUSH_S``, then stop."""
        self._is_closing = True
        self._hurry.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    while self._waiting or not self._idle.is_set():
                        self._some.set()
                        self._idle.clear()
                        await self._idle.wait()
            await self._tasks.stop()
            self.lost += len(self._waiting)
            self._waiting.clear()
            self._tell_losses()
        finally:
            await self._sender.__aexit__(None, None, None)

    async def _send_always(self) -> None:
        while True:
            if not self._waiting:
                self._idle.set()
                self._some.clear()
                await self._some.wait()
                continue
            self._idle.clear()
            await self._rest()
            some = [self._waiting.popleft() for _ in range(min(ROUND, len(self._waiting)))]
            lost = self.lost
            await asyncio.gather(*[self._send(pack) for pack in packed(some)])
            self._tell_losses()
            if self.lost > lost:
                await asyncio.sleep(LINGER_S)

    async def _rest(self) -> None:
        if len(self._waiting) < HURRY and not self._is_closing:
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._hurry.wait()

    async def _send(self, pack: TracePack) -> None:
        try:
            await self._sender.send(Message(topic=self.topic, body=pack.body, keys=pack.keys))
        except TxmqError as error:
            self.lost += pack.count
            log.info("a message of traces is lost: %s", error)
        except asyncio.CancelledError:
            self.lost += pack.count
            raise

    def _tell_losses(self) -> None:
        now = self.clock.monotonic()
        if self.lost > self._told and (now - self._told_at >= WARN_S or self._is_closing):
            count = self.lost - self._told
            lost = quantity(count, "trace record is", "trace records are")
            log.warning("%s lost: %s does not take them", lost, self.topic)
            self._told, self._told_at = self.lost, now


class SendTrace:
    """Traces what a producer sends: a :class:`txmq.client.observe.hooks.SendHook`.

    Args:
        tracer: Where records go.
        group: The producer group.
        ids: Gives messages their ids.
    """

    def __init__(self, tracer: Tracer, group: str, ids: UniqueIds) -> None:
        self._tracer = tracer
        self._group = group
        self._ids = ids
        self._clock = tracer.clock
        self._brokers: dict[str, tuple[str, bool]] = {}

    def on_answer(self, broker: str, answer: Command) -> None:
        """Note the broker's region from an answer, and whether the broker wants traces."""
        named = answer.field_map()
        if len(self._brokers) >= FAULTS_MAX and broker not in self._brokers:
            self._brokers.clear()
        region = named.get(_REGION) or _DEFAULT_REGION
        self._brokers[broker] = region, named.get(_SWITCH) != _OFF

    def before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        """See :meth:`txmq.client.observe.hooks.SendHook.before_send`."""
        if not messages or not self._tracer.wants(messages[0].topic):
            return list(messages), _nothing
        given = [self._with_id(message) for message in messages]
        at_ms, since = self._clock.wall_ms(), self._clock.monotonic()

        def ended(results: Sequence[SendResult], error: BaseException | None) -> None:
            cost_ms = round((self._clock.monotonic() - since) * 1000) // len(given)
            for at, message in enumerate(given):
                if at < len(results):
                    self._note_stored(message, results[at], at_ms, cost_ms)
                elif isinstance(error, TxmqError):
                    record = _sent(message, at_ms, self._group, _DEFAULT_REGION, cost_ms)
                    self._tracer.note(message.topic, replace(record, is_success=False))

        return given, ended

    def _with_id(self, message: Message) -> Message:
        # Set now, so that the trace has an id even if no broker stores the message.
        if properties.UNIQUE_KEY in message.properties:
            return message
        named = {**message.properties, properties.UNIQUE_KEY: self._ids.next()}
        return replace(message, properties=named)

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        """See :meth:`txmq.client.observe.hooks.SendHook.before_end`."""
        message = end.message
        region, is_wanted = self._brokers.get(end.broker, (_DEFAULT_REGION, True))
        if is_wanted and self._tracer.wants(message.topic):
            # Noted before the answer, as stock clients do: their ENDs have no answer.
            self._tracer.note(message.topic, DecisionRecord(
                at_ms=self._clock.wall_ms(), region=region, group=self._group,
                topic=message.topic, id=end.xid, tags=message.tags,
                keys=" ".join(message.keys), store_host=_store_host(end.place),
                transaction_id=end.xid, state=end.state,
                is_after_check=end.is_after_check,
            ))  # fmt: skip
        return _unheard

    def begin_transaction(self, topic: str, xid: str) -> None:
        """See :meth:`txmq.client.observe.hooks.SendHook.begin_transaction`."""
        del topic, xid  # Stock traces have half messages and decisions, but no steps.

    def before_check(self, message: ReceivedMessage) -> AfterCheck:
        """See :meth:`txmq.client.observe.hooks.SendHook.before_check`."""
        del message
        return _unheard

    def _note_stored(self, message: Message, result: SendResult, at_ms: int, cost_ms: int) -> None:
        region, is_wanted = self._brokers.get(result.queue.broker, (_DEFAULT_REGION, True))
        if is_wanted:
            record = replace(
                _sent(message, at_ms, self._group, region, cost_ms),
                store_host=_store_host(result.offset_id),
                offset_id=result.offset_id,
                is_success=result.status is SendStatus.OK,
            )
            self._tracer.note(message.topic, record)


class HandlerTrace:
    """Traces what a consumer handles: a :class:`txmq.client.observe.hooks.HandlerHook`.

    Args:
        tracer: Where records go.
        group: The consumer group.
        ids: Gives one id to messages that are handled together.
        timeout_s: Handlers that run longer count as timed out.
    """

    def __init__(self, tracer: Tracer, group: str, ids: UniqueIds, timeout_s: float) -> None:
        self._tracer = tracer
        self._group = group
        self._ids = ids
        self._clock = tracer.clock
        self._timeout_s = timeout_s

    def before_handler(self, messages: Sequence[ReceivedMessage]) -> AfterHandler:
        """See :meth:`txmq.client.observe.hooks.HandlerHook.before_handler`."""
        request_id = self._ids.next()
        at_ms, since = self._clock.wall_ms(), self._clock.monotonic()
        for message in messages:
            if self._is_wanted(message):
                self._tracer.note(message.topic, HandlerStart(
                    at_ms=at_ms, region=message.properties.get(_REGION, ""), group=self._group,
                    request_id=request_id, id=message.id, attempts=message.attempts,
                    keys=" ".join(message.keys),
                ))  # fmt: skip

        def ended(consumed: int, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, Exception):
                return  # The consumer stops; the message's next consumer records how it ended.
            spent_s = self._clock.monotonic() - since
            cost_ms = round(spent_s * 1000) // len(messages)
            for at, message in enumerate(messages):
                if not self._is_wanted(message):
                    continue
                outcome = HandlerOutcome.CONSUMED if at < consumed else HandlerOutcome.LATER
                if error is not None:
                    outcome = HandlerOutcome.RAISED
                elif spent_s >= self._timeout_s:
                    outcome = HandlerOutcome.TIMED_OUT
                self._tracer.note(message.topic, HandlerEnd(
                    request_id=request_id, id=message.id, cost_ms=cost_ms, is_success=at < consumed,
                    keys=" ".join(message.keys), outcome=outcome, at_ms=self._clock.wall_ms(),
                    group=self._group,
                ))  # fmt: skip

        return ended

    def _is_wanted(self, message: ReceivedMessage) -> bool:
        return message.properties.get(_SWITCH) != _OFF and self._tracer.wants(message.topic)


def _nothing(results: Sequence[SendResult], error: BaseException | None) -> None:
    del results, error


def _unheard(word: str) -> None:
    del word


def _sent(message: Message, at_ms: int, group: str, region: str, cost_ms: int) -> SendRecord:
    return SendRecord(
        at_ms=at_ms,
        region=region,
        group=group,
        topic=message.topic,
        id=message.properties[properties.UNIQUE_KEY],
        tags=message.tags,
        keys=" ".join(message.keys),
        body_bytes=len(message.body),
        cost_ms=cost_ms,
        kind=_kind(message),
    )


def _kind(message: Message) -> MessageKind:
    named = message.properties
    if named.get(properties.TRANSACTION, "").lower() == "true":
        return MessageKind.HALF
    is_delayed = message.delay_level or message.deliver_at_ms or message.deliver_after
    return MessageKind.DELAYED if is_delayed or _START_DELIVER in named else MessageKind.NORMAL


def _store_host(offset_id: str) -> str:
    try:
        return split_offset_id(offset_id)[0]
    except RemoteProtocolError:
        return ""  # Brokers return no offset ids for some batches.
