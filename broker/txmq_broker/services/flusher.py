"""Group commit: all records staged in one turn of the event loop share one write and one sync.

A turn ends when the loop calls the flusher again, which then writes the staged records as a span; a
large turn is written in parts. With ``flush = "sync"`` its answers wait for the sync. Records
staged during a sync form the next span, which is written as soon as the disk is free. A failed sync
stops the broker, because the state of the disk is then unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from txmq.errors import BrokerBusy, CorruptRecord, ServiceUnavailable, StoreError, SyncFailed
from txmq.limits import SPAN_BYTES_MAX, UNSYNCED_BYTES_MAX
from txmq.protocol import command as commands
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.disk import Disk
from txmq.runtime.tasks import resolve
from txmq_broker.config import StoreSettings
from txmq_broker.core.admission import Admission
from txmq_broker.core.returning_clients import ReturningClients
from txmq_broker.core.statistics import durations
from txmq_broker.store.index_file import LogRange
from txmq_broker.store.log.commit_log import SyncPoint
from txmq_broker.store.message_store import MessageStore, Span

__all__ = ["Flusher", "HeldAnswers", "Tickets"]

log = logging.getLogger(__name__)

STUCK_S: Final = 1.0
"""If a sync takes longer, the disk is behind: sends are refused until it catches up."""

_EARLY_SPAN_BYTES: Final = 384 * 1024
"""Approximate maximum span size when syncing is off. The clients of an answered span continue while
the broker serves the rest; with larger spans the two would take turns.
"""

CHECKPOINT_RETRY_S: Final = 5.0
"""The pause after a failed save of the indexes, because each attempt encodes them again."""


Tickets: TypeAlias = dict[Connection, tuple[list[Command], list[bytes]]]
"""The requests of a span and their answers, sent once it is durable, by connection."""


class UnsyncedSpan(NamedTuple):
    """A span that is written but not durable yet."""

    span: Span
    tickets: Tickets
    since: float


class HeldAnswers(Protocol):
    """Holds the answers of durable spans until followers have a copy."""

    @property
    def is_full(self) -> bool:
        """True if too much is held."""
        ...

    @property
    def held(self) -> Tickets | None:
        """The answers of the newest span that is held, or ``None`` if none is."""
        ...

    def hold(self, span: Span, tickets: Tickets) -> None:
        """Take over a durable span, and :meth:`Flusher.release` it later."""
        ...


class RunningSync(NamedTuple):
    """A running sync: what it makes durable, the number of spans that wait for it, its start."""

    done: asyncio.Future[None]
    point: SyncPoint
    covered: int
    since: float


class Flusher:
    """Writes, syncs and releases spans for one store."""

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        clock: Clock,
        admission: Admission,
        settings: StoreSettings,
        on_published: Callable[[Span], None],
        on_fatal: Callable[[StoreError], None],
    ) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._admission = admission
        self._is_sync = settings.flush == "sync"
        self._turn_bytes = SPAN_BYTES_MAX if self._is_sync else _EARLY_SPAN_BYTES
        self._interval = settings.flush_interval
        self._on_published = on_published
        self._on_fatal = on_fatal
        self._tickets: Tickets = {}
        self._waiting: deque[UnsyncedSpan] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._turn_planned = False
        self._turn_ms = 0
        self.turn_end = 0
        """The position up to which records belong to this turn's span."""
        self._began = 0.0
        """When the first turn of the next span began."""
        self._arrivals: deque[float] = deque()
        """When the messages of each written span arrived; kept until the span is released."""
        self.send_times = durations()
        """Messages by the time from arrival to answer, as the mean of their span."""
        self.sync_times = durations()
        self._syncing: RunningSync | None = None
        self._unmarked: SyncPoint | None = None
        """The newest durable point, until the high-water mark has it."""
        self._returning: ReturningClients[Connection] = ReturningClients()
        self._checkpoint: asyncio.Task[None] | None = None
        self._checkpoint_after = 0.0
        self._saving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failed = self._is_stopped = False
        self._busy_refused = self._sends_refused = 0
        self.on_trouble: Callable[[str], None] = lambda _: None
        """Called with the reason when a write fails, and with "" when writes succeed again."""
        self._is_in_trouble = False
        self._written: Callable[[], None] | None = None
        self._copies: HeldAnswers | None = None
        self._finish = self.release
        """Called with a span once it is as durable as the settings require."""

    def figures(self) -> dict[str, int]:
        """What waits for the disk, and what was refused because of it since the start."""
        log_ = self._store.log
        return {
            "bytes_waiting_for_sync": log_.next_position - log_.durable,
            "busy_refused": self._busy_refused,
            "sends_refused": self._sends_refused,
            "halves_refused": self._admission.halves_refused,
        }

    def ship_with(self, written: Callable[[], None], copies: HeldAnswers | None) -> None:
        """Copy every span that is written from now on.

        Args:
            written: Called after each write.
            copies: Takes over durable spans; if it is ``None``, their answers are sent at once.
        """
        self._written = written
        if copies is not None:
            self._copies = copies
            self._finish = copies.hold

    def start(self) -> None:
        """Begin syncing."""
        if not self._is_sync:
            self._task = asyncio.create_task(self._sync_now_and_then(), name="flusher")
            self._task.add_done_callback(self._ended)

    async def drain(self) -> None:
        """Return when all staged records are written, synced and answered, with a checkpoint."""
        if self._store.log.staged:
            self._end_turn()
        if self._failed:
            return
        while not self._is_idle():
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)
        if self._checkpoint is not None:
            await self._checkpoint
        while not self._failed and await self._make_checkpoint():
            continue
        self._mark()

    async def stop(self) -> None:
        """Stop syncing. Waiting answers are never sent."""
        self._is_stopped = True
        self._mark()
        if self._syncing is not None:
            self._syncing.done.cancel()
        for task in (self._task, self._checkpoint):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # Called by handlers

    def turn_ms(self) -> int:
        """The time stamp of every record staged in this turn; the first call begins the turn.

        Raises:
            BrokerBusy: Too many bytes wait for the disk, or they have waited too long.
            ServiceUnavailable: Writes are refused now.
        """
        if self._turn_ms and self._store.log.next_position <= self.turn_end:
            return self._turn_ms
        refusal = self._begin_turn()
        if refusal is None:
            return self._turn_ms
        if isinstance(refusal, BrokerBusy):
            self._busy_refused += 1
        else:
            self._sends_refused += 1
        raise refusal

    def turn_ms_of_run(self) -> int:
        """:meth:`turn_ms` for several sends; 0 if they would be refused."""
        if not self._turn_ms or self._store.log.next_position > self.turn_end:
            self._begin_turn()
        return self._turn_ms

    def _begin_turn(self) -> BrokerBusy | ServiceUnavailable | None:
        """Begin a turn, or return the reason to refuse sends."""
        if self._turn_ms:
            self._end_turn()
        if self._waiting or self._admission.reasons or self._failed or self._copies is not None:
            refusal = self.refusal()
            if refusal is not None:
                return refusal
        self.turn_end = self._store.log.segments.end + self._turn_bytes
        self._turn_ms = self._plan_turn()
        return None

    def refusal(self) -> BrokerBusy | ServiceUnavailable | None:
        """Why a send is refused now; ``None`` if it would be stored."""
        if reasons := self._admission.reasons:
            return ServiceUnavailable("; ".join(reasons.values()))
        if self._failed:
            return ServiceUnavailable("the disk failed; the broker is stopping")
        if self._waiting:
            log_ = self._store.log
            if log_.next_position - log_.durable > UNSYNCED_BYTES_MAX:
                return _busy("too much waits for the disk")
            if self._clock.monotonic() - self._waiting[0].since > STUCK_S:
                return _busy("the disk is slow")
        if self._copies is not None and self._copies.is_full:
            return _busy("too much waits for the followers")
        return None

    def decision_ms(self) -> int:
        """The time stamp for decisions and deliveries, which free room, so no limit refuses them.

        Raises:
            ServiceUnavailable: The disk failed.
        """
        if self._turn_ms and self._store.log.next_position <= self.turn_end:
            return self._turn_ms
        refusal = self._begin_turn()
        if refusal is None:
            return self._turn_ms
        if self._failed:
            raise refusal
        if self._store.log.staged_bytes > SPAN_BYTES_MAX:
            # Commits may copy messages, and HalfStore.oldest_shown leaves room for a span of
            # limited size: write it now.
            self._end_turn()
        # This begins no turn, so the next send is still checked for admission.
        return self._plan_turn()

    def answer(
        self, connection: Connection, requests: Sequence[Command], answers: Sequence[bytes]
    ) -> None:
        """Send these answers once every record that is staged or written now is durable."""
        if not answers:
            return
        if self._store.log.staged:
            tickets = self._tickets
        elif self._waiting:
            tickets = self._waiting[-1].tickets
        elif self._copies is not None and self._copies.held is not None:
            tickets = self._copies.held
        else:
            connection.send(*answers)
            return
        known, given = tickets.setdefault(connection, ([], []))
        known += requests
        given += answers

    def _plan_turn(self) -> int:
        """End this turn when the loop is free; return the time stamp of its records."""
        if not self._turn_planned:
            self._turn_planned = True
            if not self._began:
                self._began = self._clock.monotonic()
            asyncio.get_running_loop().call_soon(self._end_turn)
        return max(self._clock.wall_ms(), self._store.log.last_ms)

    # Turns

    def _end_turn(self) -> None:
        """Write the staged records as one span, and begin its sync unless the disk is busy."""
        self._turn_planned = False
        self._turn_ms = 0
        log_ = self._store.log
        is_busy = self._syncing is not None or self._returning.is_awaiting
        if is_busy and log_.next_position <= self.turn_end:
            # Records that arrive until the next sync share one span, written when it starts.
            return
        if log_.staged and not self._failed:
            tickets, self._tickets = self._tickets, {}
            began, self._began = self._began, 0.0
            try:
                span = self._store.write()
            except StoreError as error:
                log.warning("a write failed: %s", error)
                self._refuse(tickets, str(error))
                self._is_in_trouble = True
                self.on_trouble(str(error))
            else:
                if self._is_in_trouble:
                    self._is_in_trouble = False
                    self.on_trouble("")
                if self._is_sync:
                    now = self._clock.monotonic()
                    # They arrived in all turns since the first one; a busy disk makes these many.
                    self._arrivals.append((began + now) / 2)
                    self._waiting.append(UnsyncedSpan(span, tickets, now))
                else:
                    self._arrivals.append(began)
                    self._finish(span, tickets)
                if self._written is not None:
                    self._written()
        else:
            self._began = 0.0
        if self._waiting and self._syncing is None and not (self._failed or self._is_stopped):
            self._syncing = syncing = self._begin_sync()
            # A callback, because a task would wake up a turn later and delay every answer.
            syncing.done.add_done_callback(self._finish_sync)
        if self._drained is not None and self._is_idle():
            self._end_drain()

    def _is_idle(self) -> bool:
        is_busy = self._waiting or self._turn_planned or self._syncing is not None
        is_held = self._copies is not None and self._copies.held is not None
        return self._failed or not (is_busy or is_held or self._store.log.staged)

    def _end_drain(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            resolve(drained, None, None)

    def _refuse(self, tickets: Tickets, remark: str) -> None:
        for connection, (requests, _) in tickets.items():
            connection.send(*[
                commands.answer(request, ServiceUnavailable.code, remark=remark)
                for request in requests
            ])  # fmt: skip

    def release(self, span: Span, tickets: Tickets) -> None:
        """Make a span visible to readers, and send its answers."""
        self._store.publish(span)
        for connection, (_, given) in tickets.items():
            connection.send(*given)
        waited = self._clock.monotonic() - self._arrivals.popleft()
        self.send_times.note(waited, span.messages)
        self._on_published(span)
        if (
            self._checkpoint is None
            and self._store.checkpoints.is_due()
            and self._clock.monotonic() >= self._checkpoint_after
        ):
            self._checkpoint = asyncio.create_task(self._save_indexes(), name="checkpoint")
        if self._drained is not None and self._is_idle():
            self._end_drain()

    # Syncs

    def _finish_sync(self, done: asyncio.Future[None]) -> None:
        syncing = self._syncing
        if syncing is None or done.cancelled():
            return
        error = done.exception()
        if self._is_stopped:
            return
        try:
            if not self._note_sync(syncing, error):
                return
            self._syncing = None
            # The answers need not wait for the mark, which costs as much as several answers. The
            # loop writes it before it takes the next request.
            self._unmarked = syncing.point
            asyncio.get_running_loop().call_soon(self._mark)
            durable = [self._waiting.popleft() for _ in range(syncing.covered)]
            answered = [connection for span in durable for connection in span.tickets]
            now = self._clock.monotonic()
            is_awaiting = self._copies is None and self._returning.expect(
                now - syncing.since, answered, self._tickets, now
            )
            if not is_awaiting:
                # The next sync starts before these answers are sent.
                self._end_turn()
            for span, tickets, _ in durable:
                self._finish(span, tickets)
            if is_awaiting:
                self._await_clients()
        except Exception as failure:  # noqa: BLE001 - the broker stops and says why
            self._break_down(failure)

    def _mark(self) -> None:
        point, self._unmarked = self._unmarked, None
        if point is not None:
            self._store.log.mark(point)

    def _await_clients(self) -> None:
        """Start the next sync when the clients return. Timers of the loop are too coarse here."""
        if self._is_stopped:
            return
        if self._returning.goes_on(self._tickets, self._clock.monotonic()):
            asyncio.get_running_loop().call_soon(self._await_clients)
        else:
            self._end_turn()

    async def _sync_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not await self._sync_log():
                return

    async def _sync_log(self) -> bool:
        log_ = self._store.log
        return log_.durable == log_.segments.end or await self._synced(self._begin_sync())

    def _begin_sync(self) -> RunningSync:
        point = self._store.log.sync_point()
        now = self._clock.monotonic()
        return RunningSync(self._disk.sync_soon(point.files), point, len(self._waiting), now)

    async def _synced(self, syncing: RunningSync) -> bool:
        try:
            await syncing.done
        except OSError as error:
            return self._note_sync(syncing, error)
        if not self._note_sync(syncing, None):
            return False
        self._store.log.mark(syncing.point)
        return True

    def _note_sync(self, syncing: RunningSync, error: BaseException | None) -> bool:
        """Record the end of a sync; return false if it did not make the log durable."""
        if isinstance(error, OSError):
            self._fail(SyncFailed(f"the disk could not make the log durable: {error}"))
            return False
        if error is not None:
            raise error
        if self._failed:
            # Another sync failed. A file reports a failure once, so the success of this sync means
            # nothing.
            return False
        self.sync_times.note(self._clock.monotonic() - syncing.since)
        self._store.log.confirm(syncing.point)
        return True

    async def _save_indexes(self) -> None:
        try:
            while self._store.checkpoints.is_due() and await self._make_checkpoint():
                continue
        finally:
            self._checkpoint = None

    async def _make_checkpoint(self) -> bool:
        async with self._saving:
            part = self._store.checkpoints.next_range()
            if part is None:
                return False
            if self._store.log.durable < part.end and not await self._sync_log():
                return False
            return await self._save_index(part)

    async def _save_index(self, part: LogRange) -> bool:
        try:
            pending = self._store.checkpoints.begin(part)
        except (OSError, CorruptRecord) as error:
            # A start can rebuild the indexes; the next one only takes longer.
            log.warning("the indexes could not be saved: %s", error)
            self._checkpoint_after = self._clock.monotonic() + CHECKPOINT_RETRY_S
            return False
        try:
            await self._disk.sync_soon([pending.file.file])
        except OSError as error:
            self._fail(SyncFailed(f"the disk could not keep the indexes: {error}"))
            return False
        self._store.checkpoints.confirm(pending)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Without the flusher no request is answered, so the broker stops and says why.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break_down(error)

    def _break_down(self, error: BaseException) -> None:
        log.error("the flusher broke down", exc_info=error)
        self._fail(SyncFailed(f"the flusher broke down: {error!r}"))

    def _fail(self, error: SyncFailed) -> None:
        if self._failed:
            return
        self._failed = True
        self._end_drain()
        log.critical("%s", error)
        self._on_fatal(error)


def _busy(reason: str) -> BrokerBusy:
    return BrokerBusy(f"[PCBUSY] {reason}; nothing was stored; try again later")
