"""Tests of handlers: each message comes several times, out of order and concurrently, and consumers
die in the middle.

A test of a handler and its database::

    from txmq.testing.deliveries import Deliveries, received

    def test_an_order_is_billed_once():
        orders = [received("Orders", b"tea", key=f"order-{number}") for number in range(100)]
        report = Deliveries(orders, times=5, seed=7).run(bill)
        report.see_once(bills_by_order())

Where a handler has a guard (:func:`txmq.idempotent.guard.idempotent`), consumers die inside it too:
between the claim and the function, and between the function and the commit. Further decorators
around it are skipped then, so pass the function as ``idempotent`` returned it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from txmq.errors import ConfigError, PayloadInvalid, UsageError
from txmq.settings.extras import named_extra

with named_extra():
    from txmq.idempotent.guard import is_async

from txmq.message import LogPosition, Queue, QueueOffset, ReceivedMessage
from txmq.testing.entropy import SeededEntropy
from txmq.testing.kill_points import Killed, Point, guarded_of
from txmq.testing.reports import DeliveryAttempt, End, Report
from txmq.testing.rounds import Call, Rounds, ScheduledDelivery, argument_maker

__all__ = ["Deliveries", "DeliveryAttempt", "End", "Killed", "Point", "Report", "received"]

M = TypeVar("M")

CRASHES_MAX: Final = 0.9
"""With a larger share a message could be retried for ever."""

_TOGETHER: Final = 0.5
"""The share of a message's deliveries that come one after the other, so that callers get them
concurrently.
"""


def received(
    topic: str, body: bytes, key: str = "", *, tags: str = "", **properties: str
) -> ReceivedMessage:
    """A message as a handler receives it; the same arguments make the same message."""
    head = "\0".join([topic, key, tags, *(f"{name}={properties[name]}" for name in properties)])
    digest = blake2b(body, digest_size=16, key=blake2b(head.encode()).digest())
    message_id = digest.hexdigest().upper()
    return ReceivedMessage(
        topic=topic,
        body=body,
        tags=tags,
        keys=(key,) if key else (),
        properties=properties,
        queue=Queue(topic, "test", 0),
        offset=QueueOffset(0),
        position=LogPosition(0),
        id=message_id,
        offset_id=message_id,
        born_ms=0,
        stored_ms=0,
        attempts=0,
    )


class Deliveries(Generic[M]):
    """Delivers every message several times, in random order, to several concurrent callers.

    A delivery is over when the handler has returned and its caller has survived. If the caller
    died, or the handler raised or returned :class:`txmq.Later`, the message comes again after
    others, with ``attempts`` counted up. If another caller works on its key, or an earlier version
    is missing, the delivery waits a little longer each time. After 16 failures it counts as stuck,
    because a consumer would give up.

    The seed decides the order of messages and where callers die. Threads and databases add their
    own timing, so a run does not repeat to the last step.

    Args:
        messages: The messages to deliver, see :func:`received`, or other arguments of your
            function.
        times: The number of deliveries of each message.
        seed: Decides all random choices.
        callers: The number of concurrent callers.
        crashes: The share of attempts in which the caller dies, from 0 to 0.9.
        patience_s: The total time that a delivery may wait for its turn. If your guard has leases,
            it must be longer than the lease of a consumer that died.
        key: Returns the key that must have exactly one effect; by default the key of the handler's
            guard, or the message's ``key`` without a guard.

    Raises:
        ConfigError: There is nothing to deliver, or a number is out of range.
    """

    def __init__(
        self,
        messages: Iterable[M],
        *,
        times: int = 5,
        seed: int = 0,
        callers: int = 8,
        crashes: float = 0.2,
        patience_s: float = 45.0,
        key: Callable[[M], Hashable] | None = None,
    ) -> None:
        self._messages = list(messages)
        self._times = times
        self._seed = seed
        self._callers = callers
        self._crashes = crashes
        self._patience_s = patience_s
        self._key = key
        if not self._messages or times < 1 or callers < 1:
            raise ConfigError("give at least one message, and at least 1 for times and callers")
        if not 0 <= crashes <= CRASHES_MAX:
            raise ConfigError(f"crashes is a share from 0 to {CRASHES_MAX}, not {crashes}")

    def run(
        self, handler: Callable[[M], object], *, pause: Callable[[float], object] = time.sleep
    ) -> Report:
        """Deliver to a blocking function, with threads.

        Args:
            handler: The function.
            pause: Called with seconds when a caller must wait.

        Returns:
            The report; it checks the effects.

        Raises:
            UsageError: It is an async function.
            BaseException: The handler raised an error that no consumer survives.
        """
        if is_async(handler):
            raise UsageError("the handler is an async function; use run_async()")
        rounds = self._rounds(handler)

        def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    pause(found)
                    continue
                with found:
                    found.returned(found.handler()(*found.arguments))

        with ThreadPoolExecutor(self._callers, "caller") as threads:
            list(threads.map(call, range(1, self._callers + 1)))
        return rounds.report()

    async def run_async(
        self,
        handler: Callable[[M], Awaitable[object]],
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> Report:
        """The same for an async function, with tasks.

        Raises:
            UsageError: It is a blocking function.
            BaseException: The handler raised an error that no consumer survives.
        """
        if not is_async(handler):
            raise UsageError("the handler is a blocking function; use run()")
        rounds = self._rounds(handler)

        async def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    await pause(found)
                    continue
                with found:
                    found.returned(await found.handler()(*found.arguments))

        async with asyncio.TaskGroup() as callers:
            for caller in range(1, self._callers + 1):
                callers.create_task(call(caller))
        return rounds.report()

    def _rounds(self, handler: Callable[[M], object]) -> Rounds:
        return Rounds(
            handler,
            self._shuffle(handler),
            seed=self._seed,
            crashes=self._crashes,
            patience_s=self._patience_s,
        )

    def _shuffle(self, handler: Callable[[M], object]) -> list[ScheduledDelivery]:
        """All deliveries in order: some of a message's deliveries are adjacent, the others
        anywhere.
        """
        key = self._key or _key_of(handler, argument_maker(handler, self._messages))
        chance = SeededEntropy(self._seed).fork("order")
        placed: list[tuple[float, ScheduledDelivery]] = []
        for number, message in enumerate(self._messages):
            home, of = chance.fraction(), key(message)
            for copy in range(1, self._times + 1):
                place = home if chance.chance(_TOGETHER) else chance.fraction()
                placed.append((place, ScheduledDelivery(message, of, number, copy)))
        placed.sort(key=lambda pair: pair[0])
        return [delivery for _, delivery in placed]


def _key_of(
    handler: object, arguments: Callable[[Any], tuple[object, ...]]
) -> Callable[[Any], Hashable]:
    guarded = guarded_of(handler)

    def key(message: Any) -> Hashable:
        with suppress(PayloadInvalid):
            if guarded is not None:
                found: Hashable = guarded.key(*arguments(message))
                return found
        own: Hashable = getattr(message, "key", message)
        return own

    return key
