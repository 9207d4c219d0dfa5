"""OpenTelemetry: spans and metrics of sends, handlers and transactions.

Message properties carry the context that joins the spans of senders and handlers. Names and units
are those of OpenTelemetry's conventions for messaging; those of transactions, which the conventions
lack, begin with ``txmq``. Attributes of metrics have few values: topics and groups, no ids.

A :class:`Telemetry` in a client's settings turns it on for all its producers and consumers::

    settings = ClientSettings(telemetry=Telemetry.if_installed())

This module is the only one that imports ``opentelemetry``, and only when a ``Telemetry`` is made.
Without one there are no spans and no metrics, and messages are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from txmq.client.observe.hooks import (
    AfterCheck,
    AfterEnd,
    AfterHandler,
    AfterSend,
    HandlerHook,
    SendHook,
    TransactionEnd,
    TransactionHook,
)
from txmq.client.values import SendResult
from txmq.message import Message, ReceivedMessage
from txmq.protocol.properties import SHARDING_KEY, TRANSACTION
from txmq.runtime.clock import Clock
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["ClientMetrics", "Telemetry"]

_SYSTEM: Final = {"messaging.system": "rocketmq"}
_VERDICT: Final = "txmq.verdict"
_STATE: Final = "txmq.transaction.state"
_TOPIC: Final = "messaging.destination.name"
_GROUP: Final = "messaging.rocketmq.client_group"
_ERROR: Final = "error.type"
_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""The boundaries that the conventions recommend."""


class Telemetry:
    """The destination of spans and metrics, and the propagation of the spans' context.

    Args:
        provider: Creates spans; by default, the program's global provider.
        propagator: Writes and reads a message's properties; by default, the program's global one,
            usually W3C ``traceparent`` and ``tracestate``.
        meter_provider: Creates metrics; by default, the program's global provider.

    Raises:
        ConfigError: ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self,
        provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        *,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        with named_extra():
            from opentelemetry import context, metrics, propagate, trace
        self.metrics: ClientMetrics = ClientMetrics(
            metrics.get_meter("txmq", meter_provider=meter_provider)
        )
        """The metrics of all producers and consumers with this telemetry."""
        self._trace = trace
        self._context = context
        self._propagator = propagator or propagate.get_global_textmap()
        self._tracer = trace.get_tracer("txmq", tracer_provider=provider)

    @classmethod
    def if_installed(cls) -> Telemetry | None:
        """Telemetry, or ``None`` if ``opentelemetry-api`` is not installed."""
        try:
            found = find_spec("opentelemetry.trace")
        except ModuleNotFoundError:
            return None
        return None if found is None else cls()

    def of_producer(self, group: str, client: str) -> SendHook:
        """The hook of one producer."""
        return _SendSpans(self, {_GROUP: group, "messaging.client.id": client})

    def of_consumer(self, group: str, client: str, *, is_broadcast: bool) -> HandlerHook:
        """The hook of one consumer."""
        model = "broadcasting" if is_broadcast else "clustering"
        return _HandlerSpans(self, {
            **_group(group),
            "messaging.rocketmq.consumption_model": model,
            "messaging.client.id": client,
        })  # fmt: skip

    # Spans

    def begin_send(self, topic: str, attributes: Mapping[str, Any]) -> Span:
        """A span of sending, a child of the caller's span."""
        kind = self._trace.SpanKind.PRODUCER
        return self._tracer.start_span(f"send {topic}", kind=kind, attributes=dict(attributes))

    def marked(self, message: Message, span: Span) -> Message:
        """A copy of a message that carries the span's context in its properties."""
        carrier: dict[str, str] = {}
        context = self._trace.set_span_in_context(span)
        self._propagator.inject(carrier, context=context)
        named = {name: value for name, value in carrier.items() if name and value}
        return replace(message, properties={**message.properties, **named})

    def begin_end(self, end: TransactionEnd, attributes: Mapping[str, Any]) -> Span:
        """A span of the end of a transaction: a child of the caller's span or, after a check, of
        the span that sent the message.
        """
        context = None
        if end.is_after_check:
            empty = self._context.Context()
            context = self._propagator.extract(end.message.properties, context=empty)
        kind, name = self._trace.SpanKind.CLIENT, f"end {end.message.topic}"
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=dict(attributes)
        )

    def begin(self, name: str, attributes: Mapping[str, Any], within: Span | None = None) -> Span:
        """A span of work in this process, a child of another span or the caller's."""
        context = None if within is None else self._trace.set_span_in_context(within)
        return self._tracer.start_span(name, context=context, attributes=dict(attributes))

    def enter(self, span: Span) -> object:
        """Make a span current until :meth:`leave`; returns the token for that."""
        return self._context.attach(self._trace.set_span_in_context(span))

    def begin_process(
        self,
        messages: Sequence[ReceivedMessage],
        attributes: Mapping[str, Any],
        verb: str = "process",
    ) -> tuple[Span, object]:
        """A span of handling, current until :meth:`leave`, and the token for that.

        It is a child of the span that sent the message. For several messages it has no parent, but
        links to all their spans.
        """
        empty = self._context.Context()
        origins = [
            self._propagator.extract(message.properties, context=empty) for message in messages
        ]
        parent = origins[0] if len(origins) == 1 else empty
        links = []
        for origin in origins:
            sent = self._trace.get_current_span(origin).get_span_context()
            if sent.is_valid:
                links.append(self._trace.Link(sent))
        span = self._tracer.start_span(
            f"{verb} {messages[0].topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            links=links if len(origins) > 1 else None,
            attributes=dict(attributes),
        )
        return span, self._context.attach(self._trace.set_span_in_context(span, parent))

    def leave(self, token: Any) -> None:
        """Stop the span from being current."""
        self._context.detach(token)

    def end(self, span: Span, error: BaseException | None, *, is_recorded: bool = False) -> None:
        """End a span; ``is_recorded`` says that another span has recorded the error."""
        if error is not None:
            span.set_attribute(_ERROR, type(error).__qualname__)
            if isinstance(error, Exception):  # A cancellation is not a failure.
                if not is_recorded:
                    span.record_exception(error)
                status = self._trace.Status(self._trace.StatusCode.ERROR, str(error))
                span.set_status(status)
        span.end()


class _SendSpans:
    def __init__(self, telemetry: Telemetry, about: Mapping[str, Any]) -> None:
        self._telemetry = telemetry
        self._who = {**_SYSTEM, **about}
        self._about = {**self._who, **_operation("send", "send")}

    def before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        telemetry = self._telemetry
        if not messages:
            return [], _nothing
        span = telemetry.begin_send(messages[0].topic, {**self._about, **_described(messages)})

        def ended(results: Sequence[SendResult], error: BaseException | None) -> None:
            if len(messages) == len(results) == 1:
                span.set_attribute("messaging.message.id", results[0].id)
                number = str(results[0].queue.number)
                span.set_attribute("messaging.destination.partition.id", number)
            telemetry.end(span, error)

        return [telemetry.marked(message, span) for message in messages], ended

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        span = self._telemetry.begin_end(end, {
            **self._about,
            **_described([end.message]),
            **_operation("end", "settle"),
            "messaging.message.id": end.xid,
            _STATE: end.state,
            "txmq.transaction.is_after_check": end.is_after_check,
        })  # fmt: skip

        def record_reply(word: str) -> None:
            span.set_attribute("txmq.transaction.reply", word)
            span.end()

        return record_reply

    def begin_transaction(self, topic: str, xid: str) -> TransactionHook:
        about = {**self._who, "messaging.message.id": xid}
        if topic:
            about[_TOPIC] = topic
        return _TransactionSpans(self._telemetry, topic, about)

    def before_check(self, message: ReceivedMessage) -> AfterCheck:
        about = {**self._about, **_described([message]), **_operation("check", "process")}
        about["messaging.message.id"] = message.id
        span, token = self._telemetry.begin_process([message], about, "check")
        # The span stays current until the checking task ends; the END that follows in that task
        # takes its parent from the message.
        del token

        def ended(word: str) -> None:
            span.set_attribute(_STATE, word)
            span.end()

        return ended


class _TransactionSpans:
    """The span of a transaction, and a child span for each step."""

    def __init__(self, telemetry: Telemetry, topic: str, about: Mapping[str, Any]) -> None:
        self._telemetry = telemetry
        self._span = telemetry.begin(f"transaction {topic}".rstrip(), about)
        self._steps: list[tuple[int, Span]] = []

    def begin_step(self, number: int, word: str, text: str) -> None:
        # A half message may be sent during a local transaction, which continues.
        while self._steps and self._steps[-1][0] <= number:
            self._steps.pop()[1].end()
        about = {"txmq.transaction.step": number, "txmq.transaction.text": text}
        span = self._telemetry.begin(f"{number} {word}", about, self._inmost)
        self._steps.append((number, span))

    @property
    def _inmost(self) -> Span:
        # Read once: a thread may call this while the loop continues.
        last = self._steps[-1:]
        return last[0][1] if last else self._span

    def note(self, text: str) -> None:
        self._inmost.add_event(text)

    def enter(self) -> Callable[[], None]:
        token = self._telemetry.enter(self._inmost)
        return lambda: self._telemetry.leave(token)

    def end(self, state: str, is_acknowledged: bool, error: BaseException | None) -> None:
        while self._steps:
            self._telemetry.end(self._steps.pop()[1], error, is_recorded=True)
        if state:
            self._span.set_attribute(_STATE, state)
            self._span.set_attribute("txmq.transaction.is_acknowledged", is_acknowledged)
        self._telemetry.end(self._span, error)


class _HandlerSpans:
    def __init__(self, telemetry: Telemetry, about: Mapping[str, Any]) -> None:
        self._telemetry = telemetry
        self._about = {**_SYSTEM, **_operation("process", "process"), **about}

    def before_handler(self, messages: Sequence[ReceivedMessage]) -> AfterHandler:
        telemetry = self._telemetry
        about = {**self._about, **_described(messages)}
        if len(messages) == 1:
            about["messaging.message.id"] = messages[0].id
            about["messaging.destination.partition.id"] = str(messages[0].queue.number)
        span, token = telemetry.begin_process(messages, about)

        def ended(consumed: int, error: BaseException | None) -> None:
            telemetry.leave(token)
            if error is None and consumed < len(messages):
                span.set_attribute(_VERDICT, "later")
            telemetry.end(span, error)

        return ended


class ClientMetrics:
    """The instruments of one meter, which all producers and consumers of a client share.

    Args:
        meter: Creates them.
    """

    def __init__(self, meter: Meter) -> None:
        self.sent: Counter = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that producers sent or tried."
        )
        self.consumed: Counter = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages delivered to the program."
        )
        self.operations: Histogram = _durations(
            meter, "messaging.client.operation.duration", "Time until a broker answered."
        )
        self.handlers: Histogram = _durations(
            meter, "messaging.process.duration", "Time that handlers took for their messages."
        )
        self.transactions: Histogram = _durations(
            meter, "txmq.client.transaction.duration", "Time of transactions, by their state."
        )
        self.checks: Counter = meter.create_counter(
            "txmq.client.transaction.checks", "{check}", "Answers to checks, by state."
        )

    def of_producer(self, group: str, clock: Clock) -> SendMeter:
        """The hook of one producer."""
        return SendMeter(self, group, clock)

    def of_consumer(self, group: str, clock: Clock) -> HandlerMeter:
        """The hook of one consumer."""
        return HandlerMeter(self, group, clock)

    def count_polled(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Count messages of one topic that a consumer without handlers has delivered."""
        operation, topic = _operation("poll", "receive"), messages[0].topic
        self.consumed.add(len(messages), {**_SYSTEM, **operation, **_group(group), _TOPIC: topic})


class SendMeter:
    """Measures one producer: a :class:`~txmq.client.observe.hooks.SendHook`."""

    def __init__(self, metrics: ClientMetrics, group: str, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._about = {**_SYSTEM, _GROUP: group}
        self._sending = {**self._about, **_operation("send", "send")}
        self._ending = {**self._about, **_operation("end", "settle")}

    def before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        """Measure a send."""
        if not messages:
            return [], _nothing
        metrics, monotonic = self._metrics, self._clock.monotonic
        about = {**self._sending, _TOPIC: messages[0].topic}
        count, began = len(messages), monotonic()

        def ended(_results: Sequence[SendResult], error: BaseException | None) -> None:
            if error is not None:
                about[_ERROR] = type(error).__qualname__
            metrics.sent.add(count, about)
            metrics.operations.record(monotonic() - began, about)

        return list(messages), ended

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        """Measure the END of a transaction."""
        metrics, monotonic = self._metrics, self._clock.monotonic
        about = {**self._ending, _TOPIC: end.message.topic, _STATE: end.state}
        began = monotonic()
        return lambda word: metrics.operations.record(
            monotonic() - began, {**about, "txmq.transaction.reply": word}
        )

    def begin_transaction(self, topic: str, xid: str) -> TransactionHook:
        """Measure a transaction."""
        del xid
        about = {**self._about, **({_TOPIC: topic} if topic else {})}
        return _TransactionTimer(self._metrics.transactions, about, self._clock)

    def before_check(self, message: ReceivedMessage) -> AfterCheck:
        """Count the answer to a check."""
        about = {**self._about, _TOPIC: message.topic}
        return lambda word: self._metrics.checks.add(1, {**about, _STATE: word})


class HandlerMeter:
    """Measures one consumer: a :class:`~txmq.client.observe.hooks.HandlerHook`."""

    def __init__(self, metrics: ClientMetrics, group: str, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._about = {**_SYSTEM, **_operation("process", "process"), **_group(group)}

    def before_handler(self, messages: Sequence[ReceivedMessage]) -> AfterHandler:
        """Measure a call of a handler."""
        metrics, monotonic = self._metrics, self._clock.monotonic
        about = {**self._about, _TOPIC: messages[0].topic}
        count = len(messages)
        metrics.consumed.add(count, about)
        began = monotonic()

        def ended(consumed: int, error: BaseException | None) -> None:
            found = about
            if error is not None:
                found = {**about, _ERROR: type(error).__qualname__}
            elif consumed < count:
                found = {**about, _VERDICT: "later"}
            metrics.handlers.record(monotonic() - began, found)

        return ended


class _TransactionTimer:
    """Measures one transaction as a whole; spans cover its steps."""

    def __init__(self, durations: Histogram, about: Mapping[str, Any], clock: Clock) -> None:
        self._durations = durations
        self._about = about
        self._clock = clock
        self._began = clock.monotonic()

    def begin_step(self, number: int, word: str, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def enter(self) -> Callable[[], None]:
        return _leave

    def end(self, state: str, is_acknowledged: bool, error: BaseException | None) -> None:
        about = {**self._about, "txmq.transaction.is_acknowledged": is_acknowledged}
        about[_STATE] = state or "NOT_BEGUN"
        if error is not None:
            about[_ERROR] = type(error).__qualname__
        self._durations.record(self._clock.monotonic() - self._began, about)


def _leave() -> None:
    pass


def _group(name: str) -> dict[str, str]:
    return {_GROUP: name, "messaging.consumer.group.name": name}


def _durations(meter: Meter, name: str, text: str) -> Histogram:
    try:
        return meter.create_histogram(
            name, "s", text, explicit_bucket_boundaries_advisory=_BUCKETS_S
        )
    except TypeError:  # OpenTelemetry's API before 1.30 takes no boundaries.
        return meter.create_histogram(name, "s", text)


def _nothing(results: Sequence[SendResult], error: BaseException | None) -> None:
    del results, error


def _operation(name: str, kind: str) -> dict[str, str]:
    return {"messaging.operation.name": name, "messaging.operation.type": kind}


def _described(messages: Sequence[Message]) -> dict[str, Any]:
    """Attributes known before the send, by OpenTelemetry's conventions."""
    first = messages[0]
    found: dict[str, Any] = {_TOPIC: first.topic}
    if len(messages) > 1:
        found["messaging.batch.message_count"] = len(messages)
        return found
    found["messaging.message.body.size"] = len(first.body)
    found["messaging.rocketmq.message.type"] = _kind(first)
    if first.tags:
        found["messaging.rocketmq.message.tag"] = first.tags
    if first.keys:
        found["messaging.rocketmq.message.keys"] = list(first.keys)
    if first.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = first.delay_level
    if first.deliver_at_ms is not None:
        found["messaging.rocketmq.message.delivery_timestamp"] = first.deliver_at_ms
    return found


def _kind(message: Message) -> str:
    named = message.properties
    if named.get(TRANSACTION, "").lower() == "true":
        return "transaction"
    if message.delay_level or message.deliver_at_ms or message.deliver_after:
        return "delay"
    return "fifo" if SHARDING_KEY in named else "normal"
