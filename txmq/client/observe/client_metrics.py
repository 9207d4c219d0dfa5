"""OpenTelemetry metrics of clients: sends, handled messages and transactions.

Names and units are those of OpenTelemetry's conventions for messaging; those of transactions, which
the conventions lack, begin with ``txmq``. Attributes have few values: topics and groups, no ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from txmq.client.observe.hooks import (
    AfterCheck,
    AfterEnd,
    AfterHandler,
    AfterSend,
    TransactionEnd,
    TransactionHook,
)
from txmq.client.values import SendResult
from txmq.message import Message, ReceivedMessage
from txmq.runtime.clock import Clock

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter

__all__ = ["ClientMetrics"]

_SYSTEM: Final = {"messaging.system": "rocketmq"}
_SEND: Final = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
_END: Final = {"messaging.operation.name": "end", "messaging.operation.type": "settle"}
_PROCESS: Final = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
_POLL: Final = {"messaging.operation.name": "poll", "messaging.operation.type": "receive"}
_TOPIC: Final = "messaging.destination.name"
_GROUP: Final = "messaging.rocketmq.client_group"
_STATE: Final = "txmq.transaction.state"
_ERROR: Final = "error.type"
_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""The boundaries that the conventions recommend."""


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
        about = {**_SYSTEM, **_POLL, **_group(group), _TOPIC: messages[0].topic}
        self.consumed.add(len(messages), about)


class SendMeter:
    """Measures one producer: a :class:`~txmq.client.observe.hooks.SendHook`."""

    def __init__(self, metrics: ClientMetrics, group: str, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._about = {**_SYSTEM, _GROUP: group}

    def before_send(self, messages: Sequence[Message]) -> tuple[list[Message], AfterSend]:
        """Measure a send."""
        if not messages:
            return [], lambda _results, _error: None
        metrics, monotonic = self._metrics, self._clock.monotonic
        about = {**self._about, **_SEND, _TOPIC: messages[0].topic}
        count, began = len(messages), monotonic()

        def ended(_results: Sequence[SendResult], error: BaseException | None) -> None:
            if error is not None:
                about[_ERROR] = type(error).__qualname__
            metrics.sent.add(count, about)
            metrics.operations.record(monotonic() - began, about)

        return list(messages), ended

    def before_end(self, end: TransactionEnd) -> AfterEnd:
        """Measure the END of a transaction."""
        about = {**self._about, **_END, _TOPIC: end.message.topic, _STATE: end.state}
        return self._timer(lambda word: {**about, "txmq.transaction.reply": word})

    def _timer(self, describe: Callable[[str], Mapping[str, Any]]) -> AfterEnd:
        metrics, monotonic = self._metrics, self._clock.monotonic
        began = monotonic()
        return lambda word: metrics.operations.record(monotonic() - began, describe(word))

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
        self._about = {**_SYSTEM, **_PROCESS, **_group(group)}

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
                found = {**about, "txmq.verdict": "later"}
            metrics.handlers.record(monotonic() - began, found)

        return ended


class _TransactionTimer:
    """Measures one transaction; its steps are left to spans."""

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
