"""Publishes the committed rows of an outbox; any number of relays share the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from txmq.client.client import Client
from txmq.client.lifecycle import Lifecycle
from txmq.client.send.producer import Producer
from txmq.client.settings import ProducerSettings
from txmq.databases.failures import words
from txmq.databases.postgres import LISTENING_PROBLEMS, likeness, listen
from txmq.databases.sources import adapter_of
from txmq.errors import ConfigError, DatabaseFailed, UsageError
from txmq.outbox.lanes import Lanes, Slots, fair_share
from txmq.outbox.metrics import Backlog, RelayTally
from txmq.outbox.publisher import PublishedRows, Publisher
from txmq.outbox.reader import OutboxReader
from txmq.outbox.settings import RelaySettings
from txmq.outbox.store import OutboxStore
from txmq.outbox.table import Outbox
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.process import until_stopped
from txmq.runtime.tasks import Tasks
from txmq.settings.values import settings_or
from txmq.text import quantity

__all__ = ["Relay", "WakeUp"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
ANSWER_S: Final = 10.0
"""The shortest time limit for an answer of the database; after it, the relay asks again."""


class Relay(Lifecycle):
    """Sends the messages of an outbox and deletes their rows; ``async with``.

    Every committed row is published at least once; repeats are rare, and a consumer recognizes
    them by the message's id. Rows of one lane are published in the order of their commits. Run
    any number of relays: they share the rows. If one dies, the others take over its rows when its
    ``lease`` expires.

    Args:
        source: An SQLAlchemy ``Engine``, ``sessionmaker``, ``AsyncEngine`` or
            ``async_sessionmaker``; a psycopg pool, or a function that connects;
            ``django.db.connection``.
        names: The name servers, ``host:port`` separated by ``;``, or a client or an open producer
            to share.
        settings: The settings.
        outbox: The tables.
        clock: The source of the time.
        entropy: The source of randomness.

    Raises:
        ConfigError: The source gives no sessions, or a send may outlast half a lease.
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
        self.settings: RelaySettings
        self.settings = chosen = settings_or(RelaySettings, settings)
        self._outbox = outbox or Outbox()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._adapter = adapter_of(source)
        self._producer, self._is_own = _producer_of(names, chosen)
        self._store = OutboxStore(
            self._outbox, self._adapter, self._entropy.token(12).hex(), chosen.lease,
            max(ANSWER_S, chosen.lease),
        )  # fmt: skip
        self._slots = Slots(chosen.lease)
        self._lanes = Lanes(
            chosen.rows_max, max(1, min(chosen.batch_rows, chosen.rows_max // 4)),
            chosen.batch_rows, chosen.batch_size, chosen.size_max,
        )  # fmt: skip
        self._beat_soon = asyncio.Event()
        self._send_soon = asyncio.Event()
        self._published = PublishedRows(self._store, self._backoff(), self._beat_soon.set)
        self._reader = OutboxReader(
            self._store, self._lanes, self._slots, self._published, chosen, self._clock,
            self._outbox.rows.name,
        )  # fmt: skip
        self._publisher = Publisher(
            self._lanes, self._slots, self._producer, self._store, self._published, chosen,
            self._clock, self._entropy, self._on_send_ended,
        )  # fmt: skip
        self._wake_up = WakeUp(chosen.poll_interval)
        self._tasks = Tasks()
        self._stopped: asyncio.Event | None = None
        self._is_stopping = False
        self._lost_leases = 0
        self._living = 1

    async def __aenter__(self) -> Self:
        """Check that the outbox exists, and start.

        Raises:
            TableMissing: It does not exist, or is incomplete.
            DatabaseFailed: The database does not answer, or does not let the relay write.
            UsageError: The relay was already opened once.
        """
        if self._stopped is not None:
            raise UsageError("a relay can be opened only once; create another one")
        self._stopped = asyncio.Event()
        try:
            await self._open()
        except BaseException:
            self._stopped.set()
            raise
        return self

    async def _open(self) -> None:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._store.close)
            await self._store.verify()
            if self._is_own:
                await undo.enter_async_context(self._producer)
            undo.push_async_callback(self._tasks.stop)
            try:
                await self._beat()
                await self._start()
            except self._store.problems as error:
                raise DatabaseFailed(
                    f"{self._outbox.name} cannot be relayed: {words(error)}"
                ) from error
            self._closing = undo.pop_all()

    async def _start(self) -> None:
        for work in (
            self._beat_loop, self._read_loop, self._send_loop, self._published.run,
        ):  # fmt: skip
            self._tasks.start(work(), f"a relay's {work.__name__}")
        if self._outbox.notifies and self._adapter.kind == "postgresql":
            like = await self._store.run(lambda db: likeness(db.session))
            if like is not None:
                listener = self._wake_up.listen(like, self._outbox.channel, self._backoff())
                self._tasks.start(listener, "a relay's listener")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Start no more sends, wait for those in flight, and release the leases."""
        is_here = self._producer.client.session.owner.is_current
        if self._stopped is None or self._stopped.is_set() or not is_here:
            return
        self._is_stopping = True
        self._stopped.set()
        async with self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.stop_timeout):
                    while len(self._publisher):
                        self._send_soon.clear()
                        await self._send_soon.wait()
                    await self._published.idle.wait()
            await self._publisher.stop()
            await self._tasks.stop()
            try:
                await self._store.leave()
            except self._store.problems as worse:
                log.warning("could not release the leases, which now expire: %s", words(worse))

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
        await until_stopped(self._stopped)

    @property
    def outbox(self) -> Outbox:
        """The tables that it reads."""
        return self._outbox

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._stopped is not None and not self._stopped.is_set()

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The client or producer that it shares, if any."""
        return self._producer.needs if self._is_own else (self._producer,)

    @property
    def tally(self) -> RelayTally:
        """Its counters so far."""
        return replace(
            self._publisher.tally,
            lost_leases=self._lost_leases,
            slots=len(self._slots),
            at_hand=len(self._lanes),
        )

    async def waiting(self) -> Backlog:
        """The rows that wait in the outbox now, in all slots; the database counts them.

        Raises:
            DatabaseFailed: The database does not answer.
        """
        try:
            return await self._store.waiting()
        except self._store.problems as error:
            raise DatabaseFailed(
                f"the rows of {self._outbox.name} cannot be counted: {words(error)}"
            ) from error

    # The loops

    async def _read_loop(self) -> None:
        backoff = self._backoff()
        while not self._is_stopping:
            count, has_more = 0, False
            try:
                has_reason = self._wake_up.take_notification()
                count = await self._reader.look(has_reason=has_reason)
            except self._store.problems as error:
                log.warning("the outbox cannot be read now: %s", words(error))
                await asyncio.sleep(backoff.next_pause())
            else:
                backoff.reset()
                has_more = self._reader.has_more and self._lanes.room > 0 and count > 0
            if count:
                self._send_soon.set()
            await self._wake_up.wait(count, has_more=has_more)

    async def _send_loop(self) -> None:
        while True:
            if not self._is_stopping:
                self._publisher.send()
            pause_s = LONGEST_PAUSE_S
            until = self._lanes.paused_until()
            if until is not None:
                pause_s = min(pause_s, max(0.01, until - self._clock.monotonic()))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._send_soon.wait()
            self._send_soon.clear()

    async def _beat_loop(self) -> None:
        backoff = self._backoff()
        while True:
            is_short = len(self._slots) < fair_share(self._living)
            pause_s = self.settings.lease / (10 if is_short else 3)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._beat_soon.wait()
            self._beat_soon.clear()
            try:
                await self._beat()
                await self._release_leaving()
            except self._store.problems as error:
                log.warning("the leases cannot be renewed now: %s", words(error))
                await asyncio.sleep(min(backoff.next_pause(), self.settings.lease / 10))
                self._beat_soon.set()
            else:
                backoff.reset()

    async def _beat(self) -> None:
        asked_at = self._clock.monotonic()
        held, self._living = await self._store.beat()
        change = self._slots.renew(held, self._living, asked_at)
        if change.lost:
            log.warning("another relay has taken over %s", quantity(len(change.lost), "slot"))
            self._lost_leases += len(change.lost)
            self._lanes.lose(change.lost)
        if change.leaving:
            self._lanes.close(change.leaving)
        if change.taken:
            self._lanes.open(change.taken - self._slots.leaving)
            self._reader.restart()
            self._wake_up.wake()
        self._send_soon.set()

    async def _release_leaving(self) -> None:
        """Release slots meant for other relays, once none of their rows is in flight here."""
        leaving = self._slots.leaving
        clear = [
            slot
            for slot in leaving
            if self._lanes.is_clear(slot) and self._published.is_clear(slot)
        ]
        if clear:
            await self._store.release(clear)
            for slot in clear:
                self._slots.release(slot)
        if leaving:
            self._beat_soon.set()

    def _on_send_ended(self, _: object) -> None:
        self._send_soon.set()
        if self._reader.has_more:
            self._wake_up.wake()

    def _backoff(self) -> Backoff:
        return Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)


def _producer_of(names: str | Client | Producer, settings: RelaySettings) -> tuple[Producer, bool]:
    if isinstance(names, Producer):
        if names.settings.timeout > settings.lease / 2:
            raise ConfigError(
                f"a send may take {names.settings.timeout} s, but a lease lasts only "
                f"{settings.lease} s: set lease to at least twice the send timeout"
            )
        return names, False
    own = ProducerSettings(timeout=min(ProducerSettings().timeout, settings.lease / 3))
    return Producer(settings.group, names, own), True


FIRST_LOOK_S: Final = 0.005
GAP_S: Final = 0.002
"""The pause between two looks; the rows committed during it are read together."""


class WakeUp:
    """The pauses between two looks at the outbox.

    Args:
        most_s: The longest pause. It also applies to a relay that listens: one notification may
            announce many transactions, and some of them commit later.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._pause_s = FIRST_LOOK_S
        self._woken = asyncio.Event()
        self._is_notified = False

    def notify(self) -> None:
        """Note a notification of new rows."""
        self._is_notified = True
        self._pause_s = FIRST_LOOK_S
        self._woken.set()

    def wake(self) -> None:
        """Look soon, without a notification."""
        self._woken.set()

    def take_notification(self) -> bool:
        """True if a notification came since the last call."""
        was_notified, self._is_notified = self._is_notified, False
        return was_notified

    async def wait(self, count: int, *, has_more: bool) -> None:
        """Wait until it is time to look again.

        Args:
            count: The number of rows that the last look found.
            has_more: Whether there are more rows, and memory for them.
        """
        if count:
            self._pause_s = FIRST_LOOK_S
        if has_more:
            await asyncio.sleep(0)
            return
        await asyncio.sleep(GAP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._woken.wait()
        self._woken.clear()
        self._pause_s = min(2 * self._pause_s, self._most_s)

    async def listen(self, like: str, channel: str, backoff: Backoff) -> None:
        """Receive PostgreSQL's notifications, until cancelled."""
        while True:
            try:
                await listen(like, channel, self._notify_over(backoff))
            except LISTENING_PROBLEMS as error:
                log.warning("no notifications of new rows, polling only: %s", words(error))
            self._pause_s = FIRST_LOOK_S
            self._woken.set()
            await asyncio.sleep(backoff.next_pause())

    def _notify_over(self, backoff: Backoff) -> Callable[[], None]:
        def notify() -> None:
            backoff.reset()
            self.notify()

        return notify
