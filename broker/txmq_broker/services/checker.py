"""Check-back: asks producers for the state of their open transactions, and counts the checks.

A check counts towards ``check_max`` if it has reached a producer: when the producer answers
"unknown", or when it has not answered by the next check although its connection is alive. An error
with one transaction is logged, and the round continues.

The schedule of the checks is in monotonic time, for any number of transactions. Transactions that
come due together share a bucket, so a round costs only what is due. A decided transaction stays in
its bucket until the bucket is emptied.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import sys
from array import array
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from txmq.errors import CorruptRecord, TransportError, TxmqError
from txmq.limits import CHECKS_MAX, CHECKS_PER_PRODUCER_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import CheckState
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq_broker.core.check_history import DECIDED, LOST, SILENT, UNKNOWN, CheckHistory, CheckNote
from txmq_broker.core.clients import Clients, Member
from txmq_broker.core.transactions import Transactions
from txmq_broker.store.message_store import Span
from txmq_broker.store.pending_transactions import Half

__all__ = ["CheckOutlook", "Checker", "Checks", "OpenCheck"]

C = TypeVar("C", bound=Hashable)

_WIDTH_S: Final = 0.05
"""The resolution of due times."""

_AT_ONCE: Final = 4096
"""Keys that one call takes from the buckets. This limits its time if a million are due."""

_CELLS: Final = 1 << 14
"""Cells of the hash table of waiting keys; a look-up reads one cell."""

_TIDIED: Final = 4
"""Keys of the queue that each removal checks, to drop the removed ones."""

_KEY_BYTES: Final = array("q").itemsize

_SEARCHED_MAX: Final = 500_000
"""Scheduled keys that a search for one of them may pass, which takes some milliseconds."""


class OpenCheck(NamedTuple, Generic[C]):
    """A check that was sent and is not answered yet."""

    connection: C
    at: float


class CheckOutlook(NamedTuple):
    """The latest checks of a transaction, and the next one."""

    checks: tuple[CheckNote, ...]
    next_ms: int
    """When the broker asks again; 0 if it will not, or if the schedule is too long to search."""
    waits_for_producer: bool


class _KeyQueue:
    """A first-in-first-out queue of keys, eight bytes each.

    Attributes:
        keys: The keys; the first ones may already be taken. Empty once all are taken.
    """

    def __init__(self) -> None:
        self.keys = array("q")
        self._gone = 0

    def take(self, count: int) -> array[int]:
        taken = self.keys[self._gone : self._gone + count]
        self._gone += len(taken)
        if self._gone * 2 > len(self.keys):
            del self.keys[: self._gone]
            self._gone = 0
        return taken

    def holds(self, key: int) -> bool:
        """Whether a key waits; the time grows with the queue."""
        # Comparing bytes is ten times as fast as comparing numbers.
        data, mark = self.keys.tobytes(), key.to_bytes(_KEY_BYTES, sys.byteorder)
        at = data.find(mark, self._gone * _KEY_BYTES)
        while at % _KEY_BYTES and at >= 0:
            at = data.find(mark, at + 1)
        return at >= 0


class _KeySet:
    """A first-in-first-out queue of distinct keys with removal; some twenty bytes each.

    To find a key in the queue, one would have to scan it. So a removed key stays in the queue and
    is skipped later; each removal also moves a few keys to a queue without removed keys.
    """

    def __init__(self) -> None:
        self._cells: dict[int, array[int]] = {}
        self._count = 0
        self._tidy = _KeyQueue()
        """The front of the queue, without removed keys."""
        self._queue = _KeyQueue()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return key in self._cells.get(key % _CELLS, ())

    def add(self, key: int) -> None:
        if key not in self:
            self._cells.setdefault(key % _CELLS, array("q")).append(key)
            self._count += 1
            self._queue.keys.append(key)

    def discard(self, key: int) -> None:
        if self._left(key):
            self._tidy.keys.extend([key for key in self._queue.take(_TIDIED) if key in self])
            if not self._queue.keys:
                self._queue, self._tidy = self._tidy, self._queue

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while self._count and len(taken) < count:
            some = (self._tidy if self._tidy.keys else self._queue).take(count - len(taken))
            taken += [key for key in some if self._left(key)]
        return taken

    def _left(self, key: int) -> bool:
        if key not in self:
            return False
        cell = self._cells[key % _CELLS]
        cell.remove(key)
        if not cell:
            del self._cells[key % _CELLS]
        self._count -= 1
        return True


class Checks(Generic[C]):
    """The checks of one broker: waiting, due, or open.

    Attributes:
        asked: The open checks.
        current: The bucket that counts, by transaction, for those rescheduled before they came due.
            They stay in their earlier bucket, too.
        stranded: The transactions that wait for a producer, by group.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, _KeyQueue] = {}
        self._order: list[int] = []
        self.current: dict[int, int] = {}
        self._again = _KeyQueue()
        """Transactions that are due again while their check is open; they need no new slot."""
        self._ready = _KeyQueue()
        self.asked: dict[int, OpenCheck[C]] = {}
        self._at: dict[C, dict[int, None]] = {}
        self.stranded: dict[str, _KeySet] = {}

    # Waiting

    def arm(self, key: int, due: float) -> bool:
        """Schedule a check for a time or soon after; returns the same as :meth:`arm_all`."""
        if key in self.current:
            self.current[key] = math.ceil(due / _WIDTH_S)
        return self.arm_all((key,), due)

    def arm_instead(self, key: int, due: float) -> None:
        """Schedule a check in place of an earlier schedule of it."""
        self.current[key] = -1
        self.arm(key, due)

    def forget(self, key: int) -> None:
        """Forget the schedule of a decided transaction."""
        self.current.pop(key, None)

    def wait_behind(self, key: int) -> bool:
        """Queue a due transaction behind those without a free slot; false if there are none."""
        if not self._ready.keys:
            return False
        self._ready.keys.append(key)
        return True

    def arm_all(self, keys: Iterable[int], due: float) -> bool:
        """Schedule checks of transactions that were never scheduled before.

        Returns:
            True if the time of the next check has changed.
        """
        number = math.ceil(due / _WIDTH_S)
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.keys.extend(keys)
            return False
        bucket = self._buckets[number] = _KeyQueue()
        bucket.keys.extend(keys)
        heapq.heappush(self._order, number)
        return self._order[0] == number

    def next_due(self) -> float | None:
        """The time of the next due check, or ``None``."""
        if self._again.keys or (self._ready.keys and len(self.asked) < CHECKS_MAX):
            return 0.0
        return self._order[0] * _WIDTH_S if self._order else None

    def due_of(self, key: int) -> float | None:
        """The time at which a transaction comes due.

        ``None`` if it is not scheduled, or if too many others come due before it.
        """
        number = self.current.get(key, -1)
        if number >= 0:
            return number * _WIDTH_S
        left = _SEARCHED_MAX - len(self._ready.keys) - len(self._again.keys)
        if left >= 0 and (self._ready.holds(key) or self._again.holds(key)):
            return 0.0
        for number in sorted(self._order):
            bucket = self._buckets[number]
            left -= len(bucket.keys)
            if left < 0:
                return None
            if bucket.holds(key):
                return number * _WIDTH_S
        return None

    def take_due(self, now: float, count_max: int) -> list[int]:
        """The next due transactions, as many as have free slots."""
        left = max(count_max, _AT_ONCE)
        while left > 0 and self._order and self._order[0] * _WIDTH_S <= now:
            left -= self._empty(self._order[0], left)
        again = self._again.take(count_max)
        free = max(0, CHECKS_MAX - len(self.asked))
        return [*again, *self._ready.take(min(count_max - len(again), free))]

    def _empty(self, number: int, count: int) -> int:
        bucket, current, asked = self._buckets[number], self.current, self.asked
        keys = bucket.take(count)
        if not bucket.keys:
            del self._buckets[number]
            heapq.heappop(self._order)
        if not current and not asked:
            self._ready.keys.extend(keys)
            return len(keys)
        for key in keys:
            if key in current:
                if current[key] != number:
                    continue
                current[key] = -1
            (self._again if key in asked else self._ready).keys.append(key)
        return len(keys)

    # Open checks

    def may_ask(self, connection: C) -> bool:
        """Return true if a producer has room for one more open check."""
        return len(self._at.get(connection, ())) < CHECKS_PER_PRODUCER_MAX

    def ask(self, key: int, connection: C, now: float) -> None:
        """Record a check sent to a producer."""
        self.asked[key] = OpenCheck(connection, now)
        self._at.setdefault(connection, {})[key] = None

    def settle(self, key: int) -> OpenCheck[C] | None:
        """End a transaction's open check and return it."""
        asked = self.asked.pop(key, None)
        if asked is not None:
            there = self._at[asked.connection]
            del there[key]
            if not there:
                del self._at[asked.connection]
        return asked

    def lost(self, connection: C) -> list[int]:
        """End all open checks at a lost connection; returns their keys."""
        keys = list(self._at.pop(connection, ()))
        for key in keys:
            del self.asked[key]
        return keys

    # Waiting for a producer

    def strand(self, group: str, key: int) -> bool:
        """Keep a transaction until its group has a producer; true if it is the group's first."""
        waiting = self.stranded.get(group)
        is_first = waiting is None
        if waiting is None:
            waiting = self.stranded[group] = _KeySet()
        waiting.add(key)
        return is_first

    def unstrand(self, group: str, key: int) -> None:
        """Stop waiting for a producer to check a transaction."""
        waiting = self.stranded.get(group)
        if waiting is not None:
            waiting.discard(key)
            if not waiting:
                del self.stranded[group]

    def found(self, group: str, count_max: int = CHECKS_MAX) -> int:
        """Make stranded checks due, because a producer has room for them; returns how many.

        ``count_max`` is that room: further checks would be stranded again at once.
        """
        waiting = self.stranded.get(group)
        if waiting is None:
            return 0
        keys = waiting.take(count_max)
        self._ready.keys.extend(keys)
        if not waiting:
            del self.stranded[group]
        return len(keys)


log = logging.getLogger(__name__)

STEP_S: Final = 60.0
"""The longest time for which one step postpones the check of a transaction."""

ROUND_MAX: Final = 500
"""Transactions checked in one round, before the loop runs other tasks."""


class Checker:
    """Checks one broker's open transactions."""

    def __init__(
        self,
        transactions: Transactions,
        clients: Clients[Connection],
        clock: Clock,
        decision_ms: Callable[[], int],
    ) -> None:
        self.checks: Checks[Connection] = Checks()
        self.history = CheckHistory()
        self._transactions = transactions
        self._pending = transactions.halves.pending
        self._clients = clients
        self._clock = clock
        self._decision_ms = decision_ms
        self.may_check: Callable[[Connection, Half], bool] = lambda _connection, _half: True
        """Whether a producer may see a half message; a check shows it."""
        self.on_damage: Callable[[CorruptRecord], None] = lambda _error: None
        """Notes a damaged half message, which no check can show."""
        self._wake = asyncio.Event()
        self._forced: set[int] = set()
        self._immune_until: dict[int, float] = {}

    @property
    def check_max(self) -> int:
        """The number of checks without a decision after which a transaction is parked."""
        return self._transactions.settings.check_max

    def figures(self) -> dict[str, int]:
        """What the broker keeps for checks."""
        return {
            "checks_open": len(self.checks.asked),
        }

    async def run(self) -> None:
        """Check due transactions until cancelled."""
        now = self._clock.monotonic()
        # In parts, as there may be a million. Some are decided or rechecked in between.
        for number, key in enumerate(list(self._pending), 1):
            self._arm_first(key, now)
            if number % ROUND_MAX == 0:
                await asyncio.sleep(0)
        while True:
            due = self.checks.next_due()
            if due is None or due > self._clock.monotonic():
                await self._sleep_until(due)
            self.round()
            await asyncio.sleep(0)

    async def _sleep_until(self, due: float | None) -> None:
        self._wake.clear()
        delay = None if due is None else max(0.0, due - self._clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()

    def _arm_first(self, key: int, now: float) -> None:
        half = self._pending.find(key)
        if half is None or half.is_parked or key in self.checks.current:
            return
        if half.immunity_s:
            self._arm_immune(key, half.immunity_s, now)
        else:
            self.checks.arm(key, now + self._transactions.settings.timeout)

    def _arm_immune(self, key: int, seconds: int, now: float) -> bool:
        # In small steps, so that a transaction that is decided early does not stay in memory until
        # the end.
        if seconds > STEP_S:
            self._immune_until[key] = now + seconds
        return self.checks.arm(key, now + min(seconds, STEP_S))

    # Events

    def published(self, span: Span) -> None:
        """Schedule the checks of new half messages, and end those of decided ones."""
        checks, timeout = self.checks, self._transactions.settings.timeout
        if span.halves:
            now = self._clock.monotonic()
            is_next = False
            for keys, _, immune in span.halves:
                for key, immunity_s in immune.items():
                    is_next |= self._arm_immune(key, immunity_s, now)
                others = [key for key in keys if key not in immune] if immune else keys
                is_next |= checks.arm_all(others, now + timeout)
            if is_next:
                self._wake.set()
        if checks.asked or checks.current or checks.stranded or self._immune_until:
            for decisions, _, is_parking in span.markers:
                if not is_parking:
                    for key, _, (_, group, *_), *_ in decisions:
                        self._forget(key, group)

    def _forget(self, key: int, group: str) -> None:
        checks = self.checks
        checks.forget(key)
        checks.unstrand(group, key)
        self._immune_until.pop(key, None)
        if checks.settle(key) is not None:
            self.history.note_answer(key, DECIDED, self._clock.wall_ms())
            self._has_time(group)

    def producers_seen(self, groups: Iterable[str]) -> None:
        """Check the transactions that wait for a producer of these groups.

        Called when such a producer has sent a heartbeat.
        """
        for group in groups:
            if self.checks.found(group):
                self._wake.set()

    def _has_time(self, group: str) -> None:
        """Check one more transaction of a group, because a producer has answered."""
        self.checks.found(group, 1)
        self._wake.set()

    def lost(self, connection: Connection) -> None:
        """Repeat the open checks of a connection that closed; they do not count."""
        now = self._clock.monotonic()
        for key in self.checks.lost(connection):
            self._transactions.tally.checks_lost += 1
            self.history.note_answer(key, LOST, self._clock.wall_ms())
            self.checks.arm_instead(key, now)
        self._wake.set()

    def note_unknown(self, key: int) -> None:
        """Note that a producer answered a check with "unknown"."""
        if self.checks.settle(key) is None:
            # No check is open: there was none, or it has ended.
            return
        self._transactions.tally.checks_unknown += 1
        self.history.note_answer(key, UNKNOWN, self._clock.wall_ms())
        half = self._pending.find(key)
        if half is not None:
            self._has_time(half.group)
            self._spend(key, half)

    def recheck(self, key: int) -> None:
        """Check a transaction now for an operator; its checks count from 0 again."""
        self._pending.count_checks(key, 0)
        self._forced.add(key)
        self.checks.arm_instead(key, self._clock.monotonic())
        self._wake.set()

    def outlook(self, key: int, half: Half | None) -> CheckOutlook:
        """The checks of a transaction; ``half`` is ``None`` if it is decided."""
        checks, next_ms, waits = self.history.checks_of(key), 0, False
        if half is not None and (not half.is_parked or key in self._forced):
            waits = key in self.checks.stranded.get(half.group, ())
            due = None if waits else self.checks.due_of(key)
            if due is not None:
                due = max(due, self._immune_until.get(key, due))
                wait_s = max(0.0, due - self._clock.monotonic())
                next_ms = self._clock.wall_ms() + int(wait_s * 1000)
        return CheckOutlook(checks, next_ms, waits)

    # Checking

    def round(self) -> int:
        """Check some due transactions; returns how many."""
        now = self._clock.monotonic()
        due = self.checks.take_due(now, ROUND_MAX)
        for key in due:
            try:
                self._check(key, now)
            except Exception as error:
                # One bad transaction must not keep the others from being checked.
                if isinstance(error, CorruptRecord) and (half := self._pending.find(key)):
                    self.on_damage(error)  # This counts as a check, so it is parked in the end.
                    self._spend(key, half)
                elif isinstance(error, (TxmqError, OSError)):
                    log.error("a check failed: %s", error)  # noqa: TRY400
                else:
                    log.exception("a check failed")
                self.checks.arm(key, now + self._transactions.settings.check_interval)
        return len(due)

    def _check(self, key: int, now: float) -> None:
        half = self._pending.find(key)
        halves, interval = self._transactions.halves, self._transactions.settings.check_interval
        if half is None:
            self._forced.discard(key)
            self.checks.forget(key)
            return
        if key in halves.closing or key in halves.parking:
            # If the disk refuses the write, the transaction is open as before.
            self.checks.arm(key, now + interval)
            return
        if half.is_parked and key not in self._forced:
            return
        until = self._immune_until.get(key)
        if until is not None and key not in self._forced:
            if now < until:
                self.checks.arm(key, min(until, now + STEP_S))
                return
            del self._immune_until[key]
        earlier = self.checks.settle(key)
        if earlier is not None and earlier.connection.active_at > earlier.at:
            self._transactions.tally.checks_unanswered += 1
            self.history.note_answer(key, SILENT, self._clock.wall_ms())
            half = self._spend(key, half)
            if half is None:
                self.checks.arm(key, now + interval)
                return
        if earlier is None or not self.checks.wait_behind(key):
            self._ask_producer(key, half, None if earlier is None else earlier.connection, now)

    def _ask_producer(self, key: int, half: Half, avoided: Connection | None, now: float) -> None:
        member = self._choose(half, avoided)
        if member is None:
            is_first = self.checks.strand(half.group, key)
            if is_first and not self._clients.producers(half.group):
                log.warning(
                    "no producer of %s is connected; waiting for one",
                    half.group,
                )
            return
        try:
            self._ask(half, member.connection)
        except TransportError:
            self.checks.arm(key, now)
            return
        self.checks.ask(key, member.connection, now)
        address = member.connection.address
        self.history.note_asked(key, self._clock.wall_ms(), member.client_id, address)
        self.checks.arm(key, now + self._transactions.settings.check_interval)

    def _spend(self, key: int, half: Half) -> Half | None:
        """Count a check without a decision; returns the transaction unless it was parked."""
        transactions = self._transactions
        if transactions.spend_check(key, half):
            transactions.park(key, self._decision_ms())
            return None
        if half.is_parked and half.checks + 1 >= transactions.settings.check_max:
            self._forced.discard(key)
            return None
        return msgspec.structs.replace(half, checks=half.checks + 1)

    def _choose(self, half: Half, avoided: Connection | None) -> Member[Connection] | None:
        """Return the producer to ask: first the sender, then the other producers of its group.

        Whose turn it is follows from the number of checks without a decision, so it needs no state.
        The transaction's offset spreads the first turns over the members.
        """
        others = self._clients.producers(half.group)
        place = next(
            (at for at, other in enumerate(others) if other.client_id == half.origin), None
        )
        first = [] if place is None else [others.pop(place)]
        start = half.offset % len(others) if others else 0
        line = [*first, *others[start:], *others[:start]]
        turn = half.checks % len(line) if line else 0
        # Stops early: a group may have thousands of producers and a million transactions.
        order = (*line[turn:], *line[:turn])
        able = (
            producer
            for producer in order
            if self._is_able(producer.connection) and self.may_check(producer.connection, half)
        )
        last: Member[Connection] | None = None
        for producer in able:
            if producer.connection is not avoided:
                return producer
            last = producer
        return last

    def _is_able(self, connection: Connection) -> bool:
        is_listening = connection.is_open and not connection.is_backed_up
        return is_listening and self.checks.may_ask(connection)

    def _ask(self, half: Half, connection: Connection) -> None:
        record = self._transactions.halves.record_of(half)
        unique = properties.find(record.properties, properties.UNIQUE_KEY)
        more = f"{properties.CHECK_TIMES}\x01{half.checks + 1}\x02"
        shown = msgspec.structs.replace(record, properties=properties.join(record.properties, more))
        header = CheckState(half.offset, half.position, unique, unique, record.offset_id)
        connection.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body=records.pack(shown))
        self._transactions.tally.checks_sent += 1
