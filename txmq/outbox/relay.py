"""Publishes what is committed to an outbox; any number of relays share the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from txmq.client.client import Client
from txmq.client.lifecycle import Lifecycle
from txmq.client.producer import Producer
from txmq.client.settings import ProducerSettings, settings_or
from txmq.databases.door import Borrowed
from txmq.databases.failures import words
from txmq.databases.notifications import likeness
from txmq.databases.sources import door_of
from txmq.errors import ConfigError, DatabaseFailed, UsageError
from txmq.outbox.carrying import Carrying
from txmq.outbox.finishing import Done, Finishing
from txmq.outbox.lanes import Lanes, Row
from txmq.outbox.ledger import Ledger
from txmq.outbox.reading import Reading
from txmq.outbox.settings import RelaySettings
from txmq.outbox.slots import Slots, fair_share
from txmq.outbox.table import Outbox
from txmq.outbox.tally import RelayTally, Waiting
from txmq.outbox.wakening import Wakening
from txmq.quantity import quantity
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.tasks import Tasks

__all__ = ["Relay"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
ANSWER_S: Final = 10.0
"""How long the database may take at least, before it is asked anew."""


class Relay(Lifecycle):
    """Sends the messages of an outbox and deletes their rows; ``async with``.

    Every committed row is published at least once, and seldom more than that: a consumer tells
    repeats by the message's id. Rows of one lane are published in the order of their commits. Run
    as many as you like: they share the rows, and what one that dies has left is taken over after
    ``lease_s``.

    Args:
        source: An SQLAlchemy ``Engine``, ``sessionmaker``, ``AsyncEngine`` or
            ``async_sessionmaker``; a pool of psycopg's, or a function that connects;
            ``django.db.connection``.
        names: The name servers, ``host:port`` separated by ``;``, or a client or an open producer
            to share.
        settings: How it works.
        outbox: The tables.
        clock: Where the time comes from.
        entropy: Where chance comes from.

    Raises:
        ConfigError: The source gives no sessions, or the producer takes longer than a lease lasts.
    """

    def __init__(
        self,
        source: Any,
        names: str | Client | Producer,
        settings: RelaySettings | None = None,
        *,
        outbox: Outbox | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings = chosen = settings_or(RelaySettings, settings)
        self._outbox = outbox or Outbox()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._door = door_of(source)
        self._producer, self._is_own = _producer_of(names, chosen)
        self._ledger = Ledger(
            self._outbox, self._door, self._entropy.token(12).hex(), chosen.lease_s,
            max(ANSWER_S, chosen.lease_s),
        )  # fmt: skip
        self._slots = Slots(chosen.lease_s)
        self._lanes = Lanes(
            chosen.rows_max, max(1, min(chosen.batch_rows, chosen.rows_max // 4)),
            chosen.batch_rows, chosen.batch_bytes, chosen.bytes_max,
        )  # fmt: skip
        self._done = Done()
        self._reading = Reading(
            self._ledger, self._lanes, self._slots, self._done, chosen, self._clock,
            self._outbox.rows.name,
        )  # fmt: skip
        self._carrying = Carrying(
            self._lanes, self._producer, self._ledger, self._done, chosen, self._clock,
            self._entropy, self._published, self._landed,
        )  # fmt: skip
        self._finishing = Finishing(self._done, self._ledger, self._backoff(), self._look_at_slots)
        self._wakening = Wakening(chosen.poll_s)
        self._tasks = Tasks()
        self._beat_soon = asyncio.Event()
        self._send_soon = asyncio.Event()
        self._stopped: asyncio.Event | None = None
        self._is_stopping = False
        self._lost_leases = 0
        self._living = 1

    async def __aenter__(self) -> Self:
        """See that the outbox is there, and begin.

        Raises:
            TableMissing: It is not.
            DatabaseFailed: The database does not answer, or lets it only read.
            UsageError: The relay was opened before.
        """
        if self._stopped is not None:
            raise UsageError("a relay is opened once; make another")
        self._stopped = asyncio.Event()
        try:
            await self._open()
        except BaseException:
            self._stopped.set()
            raise
        return self

    async def _open(self) -> None:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._ledger.close)
            await self._ledger.verify()
            if self._is_own:
                await undo.enter_async_context(self._producer)
            undo.push_async_callback(self._tasks.stop)
            try:
                await self._beat()
                await self._start()
            except self._ledger.problems as problem:
                raise DatabaseFailed(
                    f"{self._outbox.name} cannot be relayed: {words(problem)}"
                ) from problem
            self._closing = undo.pop_all()

    async def _start(self) -> None:
        for work in (
            self._beat_always, self._read_always, self._send_always, self._finishing.run,
        ):  # fmt: skip
            self._tasks.start(work(), f"a relay's {work.__name__}")
        if self._outbox.notifies and self._door.kind == "postgresql":
            like = await self._ledger.run(_likeness)
            if like is not None:
                listening = self._wakening.listen(like, self._outbox.channel, self._backoff())
                self._tasks.start(listening, "a relay's listening")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Begin nothing more, wait for what is on its way, and let others have the rest."""
        is_here = self._producer.client.session.owner.is_current
        if self._stopped is None or self._stopped.is_set() or not is_here:
            return
        self._is_stopping = True
        self._stopped.set()
        async with self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.stop_s):
                    while len(self._carrying):
                        self._send_soon.clear()
                        await self._send_soon.wait()
                    await self._finishing.wait()
            await self._carrying.stop()
            await self._tasks.stop()
            try:
                await self._ledger.release(list(self._slots.turns()), leaves=True)
            except self._ledger.problems as worse:
                log.warning("others wait for the leases of this relay to end: %s", words(worse))

    async def wait(self) -> None:
        """Wait until the relay is closed.

        Raises:
            UsageError: It is not open yet.
        """
        if self._stopped is None:
            raise UsageError(
                "this relay is not open; use it with 'async with', or await its start()"
            )
        self._producer.client.session.owner.check()
        await self._stopped.wait()

    @property
    def tally(self) -> RelayTally:
        """What it has done so far."""
        counts = self._carrying.counts
        return RelayTally(
            published=counts.published,
            requests=counts.requests,
            deferred=counts.deferred,
            failed=counts.failed,
            dead_letters=counts.dead_letters,
            lost_leases=self._lost_leases,
            slots=len(self._slots),
            at_hand=len(self._lanes),
        )

    async def waiting(self) -> Waiting:
        """What is in the outbox now, of all slots; the database counts it.

        Raises:
            DatabaseFailed: It does not answer.
        """
        try:
            return await self._ledger.waiting()
        except self._ledger.problems as problem:
            raise DatabaseFailed(f"nobody can say what waits: {words(problem)}") from problem

    # The four that go on for ever

    async def _read_always(self) -> None:
        backoff = self._backoff()
        while not self._is_stopping:
            count, has_more = 0, False
            try:
                count = await self._reading.look(has_reason=self._wakening.reason())
            except self._ledger.problems as problem:
                log.warning("the outbox cannot be read now: %s", words(problem))
                await asyncio.sleep(backoff.failed())
            else:
                backoff.worked()
                has_more = self._reading.has_more and self._lanes.room > 0 and count > 0
            if count:
                self._send_soon.set()
            await self._wakening.wait(count, has_more=has_more)

    async def _send_always(self) -> None:
        while True:
            if not self._is_stopping:
                self._carrying.send(self._may_send)
            pause_s = LONGEST_PAUSE_S
            until = self._lanes.paused_until()
            if until is not None:
                pause_s = min(pause_s, max(0.01, until - self._clock.monotonic()))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._send_soon.wait()
            self._send_soon.clear()

    def _may_send(self, now: float) -> bool:
        return self._slots.are_safe(now + self._producer.settings.timeout_s)

    async def _beat_always(self) -> None:
        backoff = self._backoff()
        while True:
            is_short = len(self._slots) < fair_share(self._living)
            pause_s = self.settings.lease_s / (10 if is_short else 3)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._beat_soon.wait()
            self._beat_soon.clear()
            try:
                await self._beat()
                await self._let_go()
            except self._ledger.problems as problem:
                log.warning("the lease is not renewed for now: %s", words(problem))
                await asyncio.sleep(min(backoff.failed(), self.settings.lease_s / 10))
                self._beat_soon.set()
            else:
                backoff.worked()

    async def _beat(self) -> None:
        asked_at = self._clock.monotonic()
        held, self._living = await self._ledger.beat()
        change = self._slots.renewed(held, self._living, asked_at)
        if change.lost:
            log.warning("another relay has taken over %s", quantity(len(change.lost), "slot"))
            self._lost_leases += len(change.lost)
            self._lanes.lose(change.lost)
        if change.leaving:
            self._lanes.close(change.leaving)
        if change.taken:
            self._lanes.open(change.taken - self._slots.leaving)
            self._reading.restart()
            self._wakening.wake()
        self._send_soon.set()

    async def _let_go(self) -> None:
        """Of what another relay is to have, what nothing is left of."""
        leaving = self._slots.leaving
        clear = [
            each for each in leaving if self._lanes.is_clear(each) and self._done.is_clear(each)
        ]
        if clear:
            await self._ledger.release(clear)
            for each in clear:
                self._slots.let_go(each)
        if leaving:
            self._beat_soon.set()

    # What they tell each other

    def _published(self, rows: Sequence[Row]) -> None:
        self._finishing.add(rows)

    def _landed(self) -> None:
        self._send_soon.set()
        if self._reading.has_more:
            self._wakening.wake()

    def _look_at_slots(self) -> None:
        self._beat_soon.set()

    def _backoff(self) -> Backoff:
        return Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)


async def _likeness(borrowed: Borrowed[Any]) -> str | None:
    return await likeness(borrowed.session)


def _producer_of(names: str | Client | Producer, settings: RelaySettings) -> tuple[Producer, bool]:
    if isinstance(names, Producer):
        if names.settings.timeout_s > settings.lease_s / 2:
            raise ConfigError(
                f"a send may take {names.settings.timeout_s} s, and a lease lasts "
                f"{settings.lease_s} s: it lasts twice as long at least"
            )
        return names, False
    own = ProducerSettings(timeout_s=min(ProducerSettings().timeout_s, settings.lease_s / 3))
    return Producer(settings.group, names, own), True
