"""Decides when a leader may acknowledge: which followers are in sync, and what they have.

With ``replication.mode = "sync"`` an answer waits for every follower in the in-sync set. Under a
coordinator an answer is sent only while the leadership is certain. The answer to a change of a
table waits until every follower in the set has the changed table.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import ReplicaTimeout, ReplicaUnavailable
from txmq.limits import UNSYNCED_BYTES_MAX
from txmq.protocol import command as commands
from txmq.protocol.bodies import DataVersion
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import RESPONSE, FrameReader
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import LogEnd
from txmq.runtime.tasks import resolve
from txmq_broker.config import ReplicationSettings
from txmq_broker.core.admission import COPIES, Admission
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.services.flusher import Tickets
from txmq_broker.store.message_store import MessageStore, Span

__all__ = ["Acknowledgements", "HeldChanges", "InSyncSet", "TableVersions"]

log = logging.getLogger(__name__)

_CONNECT_S: Final = 1.0
"""How long a new leader waits for the members of its set to connect."""

_SETTLE_S: Final = 2.0
"""How long a leader that stops waits for its followers."""

_SENDS: Final = frozenset((
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_DELAYED_HALF,
))  # fmt: skip


class HeldSpan(NamedTuple):
    """A span that is durable here but not yet on every in-sync follower."""

    span: Span
    tickets: Tickets
    since: float


class CopyLag(NamedTuple):
    """A copy's lag: the time since the leader's log ended where the copy ends now."""

    seconds: float
    is_longer: bool
    """True if the lag is longer than this; earlier ends of the log are forgotten."""


class Acknowledgements:
    """The in-sync set of a leader, and the answers that wait for it.

    Args:
        store: The log.
        clock: Measures the lag of followers.
        settings: How long a follower may lag, and how many copies a send needs.
        admission: Refuses sends while too few copies are in sync.
        release: Makes a span visible and sends its answers.
        leadership: The leadership, if a coordinator decides who leads.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        settings: ReplicationSettings,
        admission: Admission,
        release: Callable[[Span, Tickets], None],
        leadership: HeldLeadership | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._admission = admission
        self._release = release
        self._leadership = leadership
        self._awaits = settings.is_sync
        self._wait_max = min(settings.wait_max, settings.lag_max)
        self._followers_min = settings.min_in_sync - 1
        self.holds_answers = self._awaits or leadership is not None
        """Whether durable spans are passed to :meth:`hold`."""
        self._set = InSyncSet()
        self._began = LogEnd(0, store.log.end)
        """The end of the log when this leadership began."""
        if leadership is not None:
            last = store.last_span()
            self._began = LogEnd(0 if last is None else last.epoch, store.log.end)
            self._set = InSyncSet(leadership.in_sync, leadership.former)
            leadership.acknowledged = self.acknowledged_end
        self._held: deque[HeldSpan] = deque()
        self._answered = store.log.end
        """The end of the answered spans. A new leader begins at the end of its log, because the
        previous leader may have answered all of it.
        """
        self._acknowledged = -1
        self._began_at = clock.monotonic()
        self._ends: deque[tuple[float, int]] = deque()
        """The times of the recent ticks, and where the log ended then."""
        self._recording: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None
        """Resolved when a follower has copied more, or the set has changed."""
        self._adjust()

    def figures(self) -> dict[str, int]:
        """The number of followers in sync, and of held answers."""
        return {
            "followers_in_sync": len(self._set.confirmed),
            "answers_waiting_for_followers": len(self._held),
        }

    @property
    def awaited(self) -> frozenset[str]:
        """The followers that changes of topics and groups wait for, even with "async"."""
        return self._set.awaited if self.holds_answers else frozenset()

    @property
    def has_tokens(self) -> bool:
        """Whether the name of each member ends with a token of its directory."""
        return self._leadership is not None

    def is_certain(self) -> bool:
        """True unless another member may lead now."""
        return self._leadership is None or self._leadership.is_certain()

    def copied_to(self, member: str) -> int:
        """The end of a follower's durable copy; -1 if it is unknown."""
        return self._set.copied_to(member)

    @property
    def in_sync(self) -> frozenset[str]:
        """The followers in the confirmed in-sync set."""
        return self._set.confirmed

    def lag_of(self, position: int) -> CopyLag:
        """The lag of a copy that ends at a position, accurate to one tick."""
        if position >= self._store.log.end:
            return CopyLag(0.0, is_longer=False)
        now = self._clock.monotonic()
        for moment, end in reversed(self._ends):
            if end <= position:
                return CopyLag(now - moment, is_longer=False)
        oldest = self._ends[0][0] if self._ends else now
        return CopyLag(now - oldest, is_longer=True)

    @property
    def acknowledged(self) -> int:
        """The position up to which readers see the log and no fail-over cuts it.

        Every member that may lead has the log durably up to here. -1 until that is known.
        """
        ends = [self._set.copied_to(member) for member in self._set.awaited]
        end = min([self._store.checkpoints.published, self._store.log.durable, *ends])
        self._acknowledged = max(self._acknowledged, end)
        return self._acknowledged

    def acknowledged_end(self) -> LogEnd | None:
        """The end of the log that every in-sync member has.

        ``None`` until they have the whole log that this leader began with: before that, the epoch
        of the end is unknown.
        """
        position = self.acknowledged
        if position <= self._began.position:
            return self._began if position == self._began.position else None
        return LogEnd(self._store.log.epoch, position)

    @property
    def is_full(self) -> bool:
        """True if too many bytes of the log wait for the followers."""
        held = self._held
        return bool(held) and held[-1].span.end - held[0].span.end > UNSYNCED_BYTES_MAX

    async def until_start_copied(self) -> None:
        """Wait until every follower in the set has the log that this leader began with.

        Until then readers see nothing, because messages that only one copy has may still be lost.
        """
        if self._awaits:
            await self._until_copied(self._answered)

    async def until_all_copied(self) -> None:
        """Wait up to two seconds until every follower in the set has the whole log."""
        if self.holds_answers:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self._until_copied(self._store.log.end)

    async def _until_copied(self, end: int) -> None:
        while not self._set.has_copied(end):
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed

    # What the shipper learns

    def note_epoch(self, epoch: int) -> None:
        """Note that a follower has seen a newer epoch."""
        if self._leadership is not None:
            self._leadership.end(f"a follower has seen epoch {epoch}")

    def note_copied(self, member: str, position: int) -> None:
        """Note that a follower has the log durably up to a position."""
        answered = self._answered if self._awaits else self._store.checkpoints.published
        self._set.note_copied(member, position, answered)
        self._adjust()

    def leave(self, member: str) -> None:
        """Forget a follower, because its connection is lost."""
        self._set.leave(member)
        self._adjust()

    @property
    def watches(self) -> bool:
        """Whether :meth:`tick` must be called."""
        return bool(self._held) or self._leadership is not None

    def tick(self, connected: Iterable[str]) -> None:
        """Drop followers that lag too far or have not reconnected.

        Args:
            connected: The connected followers.
        """
        now = self._clock.monotonic()
        if now - self._began_at >= _CONNECT_S:
            for member in self._set.present.difference(connected):
                self._set.leave(member)
        self._ends.append((now, self._store.log.end))
        while self._ends[0][0] < now - self._settings.lag_max:
            _, end = self._ends.popleft()
            self._drop_behind(end, self._settings.lag_max)
        if self._awaits and self._held and self._is_late(self._held[0]):
            self._drop_behind(self._held[0].span.end, self._wait_max)
        self._adjust()

    def _drop_behind(self, end: int, seconds: float) -> None:
        if late := self._set.drop_behind(end):
            log.warning("no longer in sync, %g s behind: %s", seconds, ", ".join(late))

    def _is_late(self, held: HeldSpan) -> bool:
        return self._clock.monotonic() - held.since >= self._wait_max

    # The set

    def _adjust(self) -> None:
        wanted = self._set.next_change()
        if wanted is not None:
            if self._leadership is None:
                self._note_set(wanted)
            else:
                self._recording = asyncio.create_task(
                    self._record(self._leadership, wanted), name="record the in-sync set"
                )
        in_sync = 1 + len(self._set.confirmed & self._set.present)
        if in_sync < self._settings.min_in_sync:
            self._admission.set_cause(
                COPIES,
                f"{in_sync} of {self._settings.min_in_sync} copies are in sync; nothing was stored",
            )
        else:
            self._admission.clear_cause(COPIES)
        self._release_held()
        if self._changed is not None:
            resolve(self._changed, None, None)
            self._changed = None

    async def _record(self, leadership: HeldLeadership, wanted: frozenset[str]) -> None:
        try:
            confirmed = await leadership.record(wanted)
        except Exception as error:
            # Answers would wait forever for a set that no longer changes.
            log.exception("the in-sync set could not be changed")
            leadership.end(f"it cannot change its in-sync set: {error!r}")
            return
        if confirmed is not None:
            self._note_set(confirmed)
            self._adjust()

    def _note_set(self, confirmed: frozenset[str]) -> None:
        self._set.confirm(confirmed)
        log.info("in sync: %s", ", ".join(sorted(confirmed)) or "no follower")

    # Held answers

    @property
    def held(self) -> Tickets | None:
        """The answers of the newest held span, or ``None`` without one."""
        return self._held[-1].tickets if self._held else None

    def hold(self, span: Span, tickets: Tickets) -> None:
        """Send a durable span's answers once every in-sync follower has it.

        An answer promises ``min_in_sync`` copies. So if followers leave and too few copies remain,
        the answers wait until more followers have the span.
        """
        self._held.append(HeldSpan(span, tickets, self._clock.monotonic()))
        self._release_held()

    def _release_held(self) -> None:
        while self._held:
            held = self._held[0]
            span, tickets = held.span, held.tickets
            if self._awaits and not self._set.has_copied(span.end, self._followers_min):
                return
            if not self.is_certain():
                return
            self._held.popleft()
            self._answered = span.end
            if self._awaits and not self._set.awaited:
                missing = ReplicaTimeout if self._is_late(held) else ReplicaUnavailable
                _change_codes(tickets, missing.code)
            self._release(span, tickets)

    def close(self) -> None:
        """Give up: held answers are never sent."""
        self._held.clear()
        if self._recording is not None:
            self._recording.cancel()
        if self._changed is not None:
            self._changed.cancel()


def _change_codes(tickets: Tickets, code: int) -> None:
    """Put a code into the answers to sends, because only the leader has the messages."""
    for requests, answers in tickets.values():
        for number, request in enumerate(requests):
            if request.code in _SENDS:
                answers[number] = _with_code(answers[number], code, request.kind)


def _with_code(answer: bytes, code: int, kind: int) -> bytes:
    (frame,) = FrameReader().feed(answer)
    found = commands.decode_whole(frame)
    fields = found.field_map()
    return commands.encode(
        code, found.opaque, fields, body=found.body, flag=RESPONSE, remark=found.remark, kind=kind
    )


NEAR_BYTES: Final = 1024 * 1024
"""Once a joining follower lacks no more bytes than this, answers wait for it."""


class InSyncSet:
    """The followers of one leader.

    Args:
        confirmed: The followers in the set that the store has recorded.
        former: The previous leader. It is gone, so it leaves the set.
    """

    def __init__(self, confirmed: Iterable[str] = (), former: str = "") -> None:
        self.confirmed = frozenset(confirmed)
        """The set that the store has confirmed."""
        self._asked: frozenset[str] | None = None
        """The set that the store was asked to record; it may have done so already."""
        self._present = set(self.confirmed) - {former}
        self._joining: set[str] = set()
        """Followers about to join: answers already wait for them, but they still lack spans that
        were answered before.
        """
        self._copied: dict[str, int] = {}

    @property
    def awaited(self) -> frozenset[str]:
        """The followers that answers wait for."""
        asked = frozenset() if self._asked is None else self._asked
        return self.confirmed | asked | self._present | self._joining

    @property
    def present(self) -> frozenset[str]:
        """The followers that should be in the set."""
        return frozenset(self._present)

    def copied_to(self, member: str) -> int:
        """The end of a follower's durable copy; -1 if it is unknown."""
        return self._copied.get(member, -1)

    def has_copied(self, end: int, least: int = 0) -> bool:
        """True if every follower that answers wait for has the log up to a position.

        Args:
            end: The position.
            least: The minimum number of followers that must have it.
        """
        copied, awaited = self._copied, self.awaited
        return len(awaited) >= least and all(copied.get(one, -1) >= end for one in awaited)

    # What happens to followers

    def note_copied(self, member: str, position: int, answered: int) -> None:
        """Note that a follower has the log durably up to a position.

        Once a follower is close, answers wait for it; under load it would otherwise never catch up.

        Args:
            member: The follower.
            position: The end of its durable copy.
            answered: The end of the answered spans; a follower joins once it has all of them.
        """
        self._copied[member] = position
        if position >= answered:
            self._joining.discard(member)
            self._present.add(member)
        elif position >= answered - NEAR_BYTES and member not in self._present:
            self._joining.add(member)

    def leave(self, member: str) -> None:
        """Forget a follower, because its connection is lost."""
        self._copied.pop(member, None)
        self._present.discard(member)
        self._joining.discard(member)

    def drop_behind(self, position: int) -> list[str]:
        """Drop followers that lack a part of the log before a position, and return them."""
        near = self._present | self._joining
        late = sorted(member for member in near if self.copied_to(member) < position)
        self._present.difference_update(late)
        self._joining.difference_update(late)
        return late

    # Changes of the set

    def next_change(self) -> frozenset[str] | None:
        """The set that the store should record now; ``None`` if it need not change."""
        if self._asked is not None or self._present == self.confirmed:
            return None
        self._asked = frozenset(self._present)
        return self._asked

    def confirm(self, members: Iterable[str]) -> None:
        """Note the set that the store has recorded."""
        self.confirmed = frozenset(members)
        self._asked = None


TableVersions: TypeAlias = tuple[DataVersion, DataVersion, DataVersion]
"""The versions of the topics, the groups and the accounts."""


class HeldChange(NamedTuple):
    """The answer to a change that some followers do not have yet."""

    versions: TableVersions
    connection: Connection
    answer: bytes


class HeldChanges:
    """The answers to changes of tables, held until every follower in the set has the changes.

    Args:
        answers: Knows which followers to wait for, and whether this member leads.
        taken_by: Returns the versions that a follower has saved; ``None`` before the first.
    """

    def __init__(
        self, answers: Acknowledgements, taken_by: Callable[[str], TableVersions | None]
    ) -> None:
        self._answers = answers
        self._taken_by = taken_by
        self._held: deque[HeldChange] = deque()

    @property
    def are_held(self) -> bool:
        """Whether any answer is held."""
        return bool(self._held)

    def hold(self, versions: TableVersions, connection: Connection, answer: bytes) -> None:
        """Hold an answer until the followers have at least these versions."""
        self._held.append(HeldChange(versions, connection, answer))

    def release(self) -> None:
        """Send the answers whose changes every follower in the set has."""
        while self._held and self._answers.is_certain():
            versions, connection, answer = self._held[0]
            if not all(self._has(member, versions) for member in self._answers.awaited):
                return
            self._held.popleft()
            connection.send(answer)

    def _has(self, member: str, wanted: TableVersions) -> bool:
        taken = self._taken_by(member)
        return taken is not None and all(
            own.counter >= version.counter for own, version in zip(taken, wanted, strict=True)
        )

    def clear(self) -> None:
        """Give up: held answers are never sent."""
        self._held.clear()
