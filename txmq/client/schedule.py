"""Messages that a client sends periodically.

The scheduled times of an interval are its multiples since 1970, so every process computes the same
ones. A message's key names its schedule and its time: if two processes send for the same time, both
messages have the same key, and an idempotent consumer drops the second.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypedDict

from txmq.client.body import encode_body
from txmq.client.names import check_name
from txmq.client.observe.worker_process import CURRENT
from txmq.client.send.producer import Producer
from txmq.errors import TxmqError, UsageError
from txmq.message import Message
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.signatures import signature_of
from txmq.runtime.tasks import Threads
from txmq.settings.units import DurationLike, seconds

__all__ = [
    "SCHEDULED_AT",
    "Daily",
    "Interval",
    "MadeBody",
    "ScheduleOptions",
    "ScheduleRunner",
    "ScheduledMessage",
    "Timetable",
    "timetable_of",
]

log = logging.getLogger(__name__)

SCHEDULED_AT: Final = "TXMQ_SCHEDULED_AT"
"""The property with the scheduled time, in milliseconds since 1970."""

LONGEST_SLEEP_S: Final = 60.0
"""Longer waits check the clock again after this time, because it may have been set."""

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""Pauses between attempts to send."""

_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")

MadeBody: TypeAlias = Callable[..., Awaitable[Any] | Any]
"""Makes the body: bytes, text, a value for JSON, or ``None`` to send nothing this time."""


class ScheduleOptions(TypedDict, total=False):
    """The options of :meth:`txmq.Client.every`."""

    interval: DurationLike | None
    daily: str | None
    zone: tzinfo
    tags: str
    name: str | None


class Timetable(Protocol):
    """When messages are sent."""

    def next_ms(self, after_ms: int) -> int:
        """The first scheduled time after a moment; both in milliseconds since 1970."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """At a fixed interval."""

    period_ms: int

    def next_ms(self, after_ms: int) -> int:
        """See :meth:`Timetable.next_ms`."""
        return (after_ms // self.period_ms + 1) * self.period_ms


@dataclass(frozen=True, slots=True)
class Daily:
    """Once a day. When clocks are set forward, a time that does not exist moves an hour later."""

    at: time
    zone: tzinfo

    def next_ms(self, after_ms: int) -> int:
        """See :meth:`Timetable.next_ms`."""
        day = datetime.fromtimestamp(after_ms / 1000, self.zone).date() - timedelta(days=1)
        while True:
            moment = datetime.combine(day, self.at, self.zone)
            found_ms = int(moment.timestamp()) * 1000
            if found_ms > after_ms:
                return found_ms
            day += timedelta(days=1)


def timetable_of(interval: DurationLike | None, daily: str | None, zone: tzinfo) -> Timetable:
    """The timetable for the arguments of ``every``.

    Raises:
        UsageError: Neither or both are given, or ``daily`` is not a time.
        ConfigError: The interval is invalid.
    """
    if (interval is None) == (daily is None):
        raise UsageError('give either interval="60s" or daily="02:00"')
    if interval is not None:
        return Interval(round(seconds("interval", interval, least=1.0) * 1000))
    match = _TIME.fullmatch(daily or "")
    if match is None:
        raise UsageError(f'daily is a time such as "02:00" or "23:59:30", not {daily!r}')
    hour, minute, second = (int(part or 0) for part in match.groups())
    return Daily(time(hour, minute, second), zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMessage:
    """A message that is sent periodically.

    Raises:
        LocalProtocolError: The topic's name is invalid.
        UsageError: The function cannot be called with the scheduled time, or with nothing.
    """

    name: str
    topic: str
    tags: str
    timetable: Timetable
    make: MadeBody
    takes_time: bool

    def __post_init__(self) -> None:
        """Check the topic."""
        check_name("topic", self.topic)

    @classmethod
    def of(
        cls, make: MadeBody, name: str | None, topic: str, tags: str, timetable: Timetable
    ) -> ScheduledMessage:
        """The periodic message whose body a function makes."""
        own = getattr(make, "__qualname__", "")
        chosen = name or own.replace("<locals>.", "")
        if not chosen or any(sign.isspace() or sign in "<>" for sign in chosen):
            raise UsageError(
                f"a schedule needs a name without blanks, not {chosen!r}; give one with name=..."
            )
        try:
            signature = signature_of(make)
            takes_time = bool(signature.parameters)
            signature.bind(*[object()] * takes_time)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{chosen} is called with the scheduled time, or nothing") from error
        return cls(
            name=chosen, topic=topic, tags=tags, timetable=timetable, make=make,
            takes_time=takes_time,
        )  # fmt: skip

    def message(self, body: object, at_ms: int) -> Message:
        """The message for one scheduled time.

        Raises:
            LocalProtocolError: JSON cannot carry the body.
        """
        if isinstance(body, str):
            body = body.encode()
        moment = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
        key = f"{self.name}@{moment.replace('+00:00', 'Z')}"
        properties = {SCHEDULED_AT: str(at_ms)}
        return Message(
            topic=self.topic,
            body=encode_body(body),
            tags=self.tags,
            keys=(key,),
            properties=properties,
        )


class ScheduleRunner:
    """Sends the message of one schedule at its times, until it is cancelled.

    A time that passes while the process does not run, or before the previous message is sent, is
    skipped.

    Args:
        schedule: The schedule.
        producer: Sends the messages; open.
        threads: Run plain functions.
        clock: Gives the time.
        entropy: Gives randomness.
    """

    def __init__(
        self,
        schedule: ScheduledMessage,
        producer: Producer,
        threads: Threads,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._schedule = schedule
        self._producer = producer
        self._threads = threads
        self._clock = clock
        self._entropy = entropy
        self._sent_ms = 0

    async def run(self) -> None:
        """Send at every scheduled time."""
        timetable = self._schedule.timetable
        while True:
            # If the clock is set back, times already served do not come again.
            due_ms = timetable.next_ms(max(self._clock.wall_ms(), self._sent_ms))
            await self._sleep_until(due_ms)
            self._sent_ms = due_ms
            await self._serve(due_ms, timetable.next_ms(due_ms))

    async def _sleep_until(self, due_ms: int) -> None:
        while True:
            left_ms = due_ms - self._clock.wall_ms()
            if left_ms <= 0:
                return
            await asyncio.sleep(min(left_ms / 1000, LONGEST_SLEEP_S))

    async def _serve(self, due_ms: int, next_ms: int) -> None:
        """Send the message of one time, before the next one."""
        name = self._schedule.name
        try:
            body = await self._make(due_ms)
            if body is None:
                return
            message = self._schedule.message(body, due_ms)
        except Exception:
            log.exception("%s made no message", name)
            self._note(has_failed=True)
            return
        backoff = Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                await self._producer.send(message)
            except TxmqError as error:
                self._note(has_failed=True)
                log.warning("%s: the message of %s is not sent: %s", name, message.keys[0], error)
                pause_s = backoff.next_pause()
                if self._clock.wall_ms() + pause_s * 1000 >= next_ms:
                    return
                await asyncio.sleep(pause_s)
            else:
                self._note(has_failed=False)
                return

    async def _make(self, due_ms: int) -> object:
        make = self._schedule.make
        moment = datetime.fromtimestamp(due_ms / 1000, UTC)
        call = partial(make, moment) if self._schedule.takes_time else make
        if inspect.iscoroutinefunction(make):
            return await call()
        return await self._threads.run(partial(copy_context().run, call))

    def _note(self, *, has_failed: bool) -> None:
        worker = CURRENT.get()
        if worker is not None:
            worker.observer.sent(self._schedule.name, has_failed=has_failed)
