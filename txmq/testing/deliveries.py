"""Handlers tried with everything that a consumer may do to them: messages that come several times,
out of order, at the same moment, and consumers that die in between.

A handler of yours, with the database that it works in::

    from txmq.testing.deliveries import Deliveries, received

    def test_an_order_is_billed_once():
        orders = [received("Orders", b"tea", key=f"order-{number}") for number in range(100)]
        report = Deliveries(orders, times=5, seed=7).run(bill)
        report.see_once(bills_by_order())

Where a handler has a guard (:func:`txmq.idempotent.guard.idempotent`), consumers die inside it too:
between the claim and the function, and between the function and the commit. What is put around it
by further decorators is passed by then, so give it as ``idempotent`` made it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from txmq.errors import ConfigError, UsageError
from txmq.idempotent.guard import is_async
from txmq.message import LogPosition, Queue, QueueOffset, ReceivedMessage
from txmq.testing.entropy import SeededEntropy
from txmq.testing.killing import Killed, Point, guarded_of
from txmq.testing.reports import Attempted, End, Report
from txmq.testing.rounds import Call, Delivery, Rounds

__all__ = ["Attempted", "Deliveries", "End", "Killed", "Point", "Report", "received"]

M = TypeVar("M")

CRASHES_MAX: Final = 0.9
"""With more of them a message would be tried for ever."""

_TOGETHER: Final = 0.5
"""How many deliveries of a message come side by side, so that callers have them at once."""


def received(
    topic: str, body: bytes, key: str = "", *, tags: str = "", **properties: str
) -> ReceivedMessage:
    """A message as a handler is given it; the same arguments make the same message."""
    told = "\0".join([topic, key, tags, *(f"{name}={properties[name]}" for name in properties)])
    found = blake2b(body, digest_size=16, key=blake2b(told.encode()).digest()).hexdigest().upper()
    return ReceivedMessage(
        topic=topic,
        body=body,
        tags=tags,
        keys=(key,) if key else (),
        properties=properties,
        queue=Queue(topic, "test", 0),
        offset=QueueOffset(0),
        position=LogPosition(0),
        id=found,
        offset_id=found,
        born_ms=0,
        stored_ms=0,
        attempts=0,
    )


class Deliveries(Generic[M]):
    """Every message several times, in an order by lot, to several callers at once.

    A delivery is over when the handler has returned and its caller has lived on. One that died, or
    whose handler has raised or said :class:`txmq.Later`, comes again behind others: ``attempts`` of
    a message is counted up then. Where somebody else is at work on its key, or a version in between
    is missing, it rests a little longer each time. After 16 failures it is given up, as it would be
    by a consumer.

    The seed says in which order messages come and who dies where. Threads and databases have a will
    of their own, so that a run is not the same to the last step.

    Args:
        messages: What is delivered: messages as handlers get them, see :func:`received`, or what
            else your function is called with.
        times: How often each.
        seed: Decides what is left to chance.
        callers: How many at once.
        crashes: How many of the attempts end with the death of their caller, from 0 to 0.9.
        patience_s: How long a delivery may rest in all because it is not its turn: longer than the
            lease of a consumer that has died, where your guard has leases.
        key: What is to have one effect; by default the key of the handler's guard, or the message's
            ``key`` where it has no guard.

    Raises:
        ConfigError: There is nothing to deliver, or a number that cannot work.
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
            raise ConfigError("there are messages, times and callers, at least one of each")
        if not 0 <= crashes <= CRASHES_MAX:
            raise ConfigError(f"crashes are from 0 to {CRASHES_MAX} of all attempts")

    def run(
        self, handler: Callable[[M], object], *, pause: Callable[[float], object] = time.sleep
    ) -> Report:
        """Deliver to a function that blocks, by threads.

        Args:
            handler: The function.
            pause: Called with seconds where a caller has nothing to do.

        Returns:
            What came of it; ask it whether all is well.

        Raises:
            UsageError: It is an async function.
            BaseException: What the handler has raised and no consumer survives.
        """
        if is_async(handler):
            raise UsageError("an async function is delivered to by run_async()")
        rounds = self._rounds(handler)

        def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    pause(found)
                    continue
                with found:
                    found.said(found.handler()(found.message))

        with ThreadPoolExecutor(self._callers, "caller") as threads:
            list(threads.map(call, range(1, self._callers + 1)))
        return rounds.report()

    async def run_async(
        self,
        handler: Callable[[M], Awaitable[object]],
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> Report:
        """The same for an async function, by tasks.

        Raises:
            UsageError: It is none.
            BaseException: What the handler has raised and no consumer survives.
        """
        if not is_async(handler):
            raise UsageError("a function that blocks is delivered to by run()")
        rounds = self._rounds(handler)

        async def call(caller: int) -> None:
            while (found := rounds.take(caller)) is not None:
                if not isinstance(found, Call):
                    await pause(found)
                    continue
                with found:
                    found.said(await found.handler()(found.message))

        async with asyncio.TaskGroup() as callers:
            for caller in range(1, self._callers + 1):
                callers.create_task(call(caller))
        return rounds.report()

    def _rounds(self, handler: Callable[[M], object]) -> Rounds:
        return Rounds(
            handler,
            self._shuffled(handler),
            seed=self._seed,
            crashes=self._crashes,
            patience_s=self._patience_s,
        )

    def _shuffled(self, handler: Callable[[M], object]) -> list[Delivery]:
        """All deliveries in their order: some of a message in a row, some anywhere."""
        key = self._key or _key_of(handler)
        chance = SeededEntropy(self._seed).fork("order")
        placed: list[tuple[float, Delivery]] = []
        for number, message in enumerate(self._messages):
            home, of = chance.fraction(), key(message)
            for copy in range(1, self._times + 1):
                place = home if chance.chance(_TOGETHER) else chance.fraction()
                placed.append((place, Delivery(message, of, number, copy)))
        placed.sort(key=lambda pair: pair[0])
        return [delivery for _, delivery in placed]


def _key_of(handler: object) -> Callable[[Any], Hashable]:
    guarded = guarded_of(handler)
    if guarded is not None:
        return guarded.key
    return lambda message: getattr(message, "key", message)
