"""The hooks that record a message trace: sends, and handlers.

The records go to a :class:`~txmq.client.observe.trace_sender.Tracer`;
:mod:`txmq.client.observe.trace_records` defines their layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from txmq.client.identity import UniqueIds
from txmq.client.observe.hooks import AfterCheck, AfterEnd, AfterHandler, AfterSend, TransactionEnd
from txmq.client.observe.trace_records import (
    DecisionRecord,
    HandlerEnd,
    HandlerOutcome,
    HandlerStart,
    MessageKind,
    SendRecord,
)
from txmq.client.observe.trace_sender import Tracer
from txmq.client.values import SendResult, SendStatus
from txmq.errors import RemoteProtocolError, TxmqError
from txmq.limits import FAULTS_MAX
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.command import Command
from txmq.protocol.record import split_offset_id

__all__ = ["HandlerTrace", "SendTrace"]

_REGION: Final = "MSG_REGION"
_SWITCH: Final = "TRACE_ON"
_DEFAULT_REGION: Final = "DefaultRegion"
_START_DELIVER: Final = "__STARTDELIVERTIME"
_OFF: Final = "false"


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
        # Given now, so that the trace has an id even if no broker takes the message.
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
        timeout_s: A handler that works for longer has timed out.
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
        return ""  # Brokers name no places for some batches.
