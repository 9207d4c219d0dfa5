"""11, 361: consumers pull messages, or wait at the queue's end until one arrives."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from txmq.errors import (
    CorruptRecord,
    InternalError,
    NoPermission,
    OffsetMoved,
    PullNotFound,
    PullRetryImmediately,
    SubscriptionMissing,
    SubscriptionStale,
    TxmqError,
)
from txmq.limits import HELD_FILTERS_CHARS_MAX, HELD_PULLS_MAX, PULL_BYTES_MAX, WOKEN_TOGETHER_MAX
from txmq.protocol import command, templates
from txmq.protocol.bodies import SubscriptionData
from txmq.protocol.codes import SUCCESS, PullFlag, RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import PullMessage
from txmq.protocol.topics import DLQ
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.text import quantity
from txmq_broker.core.fetch import FetchOutcome, FetchResult, fetch
from txmq_broker.core.filter.condition import Condition
from txmq_broker.core.filter.filters import Filter
from txmq_broker.core.topics import Topic
from txmq_broker.parts import ReadParts
from txmq_broker.store.message_store import MessageStore, Span
from txmq_broker.store.queue_store import ConsumeQueue

__all__ = ["HeldPulls", "PullHandlers", "ReplicaChoice"]

log = logging.getLogger(__name__)

_CODES: Final = {
    FetchOutcome.NO_MATCH: PullRetryImmediately.code,
    FetchOutcome.AT_END: PullNotFound.code,
    FetchOutcome.EMPTY: PullNotFound.code,
    FetchOutcome.PAST_END: OffsetMoved.code,
    FetchOutcome.TOO_SMALL: OffsetMoved.code,
}
_FOUND: Final[str] = FetchOutcome.FOUND.value
_WAITING: Final = (FetchOutcome.AT_END, FetchOutcome.EMPTY)
_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_NO_FIELDS: Final = msgspec.Raw(b"")
_SUSPEND: Final = int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)


class HeldPull(NamedTuple):
    """A pull that waits for its queue to grow."""

    connection: Connection
    request: Command
    header: PullMessage
    queue: ConsumeQueue
    offset: int
    wanted: Filter | None
    chars: int
    deadline: float


P = TypeVar("P")

_STALE_MAX: Final = 1024


class HeldPulls(Generic[P]):
    """Held pulls by queue and by deadline.

    Attributes:
        held: The queue and the pull, by number.
    """

    def __init__(self, limit: int = HELD_PULLS_MAX) -> None:
        self._limit = limit
        self.held: dict[int, tuple[tuple[str, int], P]] = {}
        self._by_queue: dict[tuple[str, int], dict[int, None]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0

    @property
    def is_full(self) -> bool:
        """True if the limit is reached; a further pull is answered at once."""
        return len(self.held) >= self._limit

    def hold(self, topic: str, queue: int, pull: P, deadline: float) -> None:
        """Hold a pull until its queue grows or its deadline passes."""
        number = self._next
        self._next += 1
        key = (topic, queue)
        self.held[number] = (key, pull)
        self._by_queue.setdefault(key, {})[number] = None
        heapq.heappush(self._deadlines, (deadline, number))
        if len(self._deadlines) > 2 * len(self.held) + _STALE_MAX:
            # Woken pulls leave stale deadlines in the heap.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.held]
            heapq.heapify(self._deadlines)

    def wake(self, topic: str, queue: int) -> list[P]:
        """Remove and return the pulls of a queue, oldest first."""
        numbers = self._by_queue.pop((topic, queue), None)
        if numbers is None:
            return []
        return [self.held.pop(number)[1] for number in numbers]

    def queues(self) -> list[tuple[str, int]]:
        """The queues at which pulls wait."""
        return list(self._by_queue)

    def expired(self, now: float) -> list[P]:
        """Remove and return the pulls whose deadline has passed, earliest first."""
        over: list[P] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            number = heapq.heappop(self._deadlines)[1]
            held = self.held.pop(number, None)
            if held is not None:
                self._forget(held[0], number)
                over.append(held[1])
        return over

    def release_all(self) -> list[P]:
        """Remove and return all pulls."""
        held = [pull for _, pull in self.held.values()]
        self.held.clear()
        self._by_queue.clear()
        self._deadlines.clear()
        return held

    def next_deadline(self) -> float | None:
        """The earliest deadline, or ``None`` without held pulls."""
        while self._deadlines and self._deadlines[0][1] not in self.held:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _forget(self, key: tuple[str, int], number: int) -> None:
        numbers = self._by_queue[key]
        del numbers[number]
        if not numbers:
            del self._by_queue[key]


class ReplicaChoice:
    """Sends consumers that read old messages to a follower.

    Old messages come from the disk. Reading them at the leader would take disk bandwidth and memory
    from new messages.

    Args:
        store: The log.
        far_behind: The distance from the end of the log, in bytes, beyond which messages are old.
        reader: Returns the id of the follower to read from, or 0 without one.
    """

    def __init__(self, store: MessageStore, far_behind: int, reader: Callable[[], int]) -> None:
        self._store = store
        self._far_behind = far_behind
        self._reader = reader

    def replica_for(self, queue: ConsumeQueue, offset: int) -> int:
        """The replica for a consumer whose next message has this offset."""
        reader = self._reader()
        if not reader:
            return 0
        try:
            entries = queue.read(queue.next_kept(offset), 1)
        except CorruptRecord:
            return 0  # The next pull reports it; this one has its messages.
        is_far = bool(entries) and self._store.log.end - entries[0][0] > self._far_behind
        return reader if is_far else 0


class PullHandlers:
    """Serves stored messages to consumers."""

    def __init__(self, parts: ReadParts) -> None:
        self._broker = parts.identity.name
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._filters = parts.filters
        self._offsets = parts.offsets
        self._store = parts.store
        self._statistics = parts.statistics
        self._served = parts.statistics.meter("BROKER_GET_NUMS", "")
        self._served_bytes = parts.statistics.meter("BROKER_GET_SIZE", "")
        self._found = parts.statistics.meter("PULLS_FOUND", "")
        self._missed = parts.statistics.meter("PULLS_MISSED", "")
        self._clock = parts.clock
        self.wait_max = parts.settings.pull_wait_max
        self.choice: ReplicaChoice | None = None
        """Chooses the replica that a consumer pulls from next; without it, consumers stay here."""
        self.is_copy = False
        """Whether the queues may end before the leader's."""
        self._ends: dict[tuple[str, int], int] = {}
        """Where the queues of a copy ended when pulls were last woken."""
        self._holds: HeldPulls[HeldPull] = HeldPulls()
        self._held_chars = self._not_held = 0
        self._woken: deque[HeldPull] = deque()
        self._is_resuming = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._timer_at = 0.0

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    @property
    def held(self) -> int:
        """The number of waiting pulls."""
        return len(self._holds.held) + len(self._woken)

    def figures(self) -> dict[str, int]:
        """What the broker keeps for waiting pulls, and how often it had no room for one."""
        return {
            "pulls_waiting": self.held,
            "filter_characters_waiting": self._held_chars,
            "pulls_not_held": self._not_held,
        }

    def pull(self, connection: Connection, request: Command) -> bytes | None:
        """11 and 361: answer with messages, or hold the pull until some arrive."""
        header = request.read(PullMessage)
        topic = self._permitted(header)
        queue = topic.queues[header.queue_id]
        wanted = self._wanted(header)
        if header.sys_flag & _COMMIT and header.commit_offset >= 0 and not self.is_copy:
            self._offsets.put(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        deadline = 0.0
        may_hold = header.sys_flag & _SUSPEND and not request.is_oneway
        if may_hold and header.suspend_timeout_millis > 0:
            wait = min(header.suspend_timeout_millis / 1000, self.wait_max)
            deadline = self._clock.monotonic() + wait
        chars, offset = _size_of(wanted), header.queue_offset
        pull = HeldPull(connection, request, header, queue, offset, wanted, chars, deadline)
        return self._serve(pull, may_hold=deadline > 0.0)

    def _permitted(self, header: PullMessage) -> Topic:
        group = self._groups.get(header.consumer_group, self._clock.wall_ms())
        if not group.consume_enable:
            raise NoPermission(f"the group {group.group_name} may not consume")
        topic = self._topics.get(header.topic)
        if not topic.is_readable and not (header.dead_letters and topic.name.startswith(DLQ)):
            raise NoPermission(f"the topic {topic.name} does not permit consuming")
        if not 0 <= header.queue_id < topic.config.read_queue_nums:
            raise InternalError(
                f"topic {topic.name} has "
                f"{quantity(topic.config.read_queue_nums, 'queue')} to read, "
                f"no queue {header.queue_id}"
            )
        return topic

    def _wanted(self, header: PullMessage) -> Filter | None:
        if not header.sys_flag & _SUBSCRIPTION:
            return self._filters.of(self._subscription(header))
        kind = header.expression_type or "TAG"
        text = header.subscription or ""
        return self._filters.of(SubscriptionData(header.topic, text, expression_type=kind))

    def _subscription(self, header: PullMessage) -> SubscriptionData:
        group = self._clients.consumer_group(header.consumer_group)
        if group is None:
            raise SubscriptionMissing(f"the group {header.consumer_group} is not online")
        if group.message_model == "BROADCASTING":
            config = self._groups.find(header.consumer_group)
            if config is not None and not config.consume_broadcast_enable:
                raise NoPermission(f"the group {header.consumer_group} may not broadcast")
        known = group.subscriptions.get(header.topic)
        if known is None:
            raise SubscriptionMissing(
                f"the group {header.consumer_group} does not subscribe to {header.topic}"
            )
        if known.sub_version < header.sub_version:
            raise SubscriptionStale(f"the subscription of {header.consumer_group} is newer")
        return known

    # One pull, now or when woken

    def _serve(self, pull: HeldPull, *, may_hold: bool, is_woken: bool = False) -> bytes | None:
        header = pull.header
        bytes_max = header.max_msg_bytes or PULL_BYTES_MAX
        began = self._clock.monotonic()
        found = fetch(
            self._store, pull.queue, pull.offset, header.max_msg_nums, bytes_max, pull.wanted
        )
        if found.damage is not None:
            return self._answer_damaged(pull, found.next_offset, found.damage)
        if self.is_copy and found.outcome is FetchOutcome.PAST_END:
            # The consumer has read messages at the leader that are not copied yet. It keeps its
            # offset.
            found = FetchResult(FetchOutcome.AT_END, pull.offset, [])
        if may_hold and not self._is_closing:
            waits = found.outcome in _WAITING and found.next_offset == pull.offset
            at_end = found.next_offset >= pull.queue.max_offset
            # If the new messages do not match, the pull waits for later ones.
            waits |= is_woken and found.outcome is FetchOutcome.NO_MATCH and at_end
            if waits and self._has_room(pull):
                self._hold(pull._replace(offset=found.next_offset))
                return None
        if found.records:
            self._statistics.pull_times.note(self._clock.monotonic() - began)
        return self._answer(pull, found)

    def _answer(self, pull: HeldPull, found: FetchResult) -> bytes:
        queue = pull.queue
        code, remark = SUCCESS, _FOUND
        if found.records:
            key = f"{queue.topic}@{pull.header.consumer_group}"
            size = sum(map(len, found.records))
            self._statistics.meter("GROUP_GET_NUMS", key).total += found.messages
            self._statistics.meter("GROUP_GET_SIZE", key).total += size
            self._served.total += found.messages
            self._served_bytes.total += size
            self._found.total += 1
        else:
            self._missed.total += 1
            code, remark = _CODES[found.outcome], found.outcome.value
        bounds = (found.next_offset, queue.min_offset, queue.max_offset)
        replica = 0
        if self.choice is not None:
            replica = self.choice.replica_for(queue, found.next_offset)
        return templates.pulled(pull.request, code, bounds, remark, found.records, replica)

    def _answer_damaged(self, pull: HeldPull, offset: int, damage: CorruptRecord) -> bytes:
        """The answer to a pull that begins with a damaged message."""
        queue, group = pull.queue, pull.header.consumer_group
        if self._offsets.skips(group, queue.topic, queue.number, offset):
            return self._answer(pull, FetchResult(FetchOutcome.NO_MATCH, offset + 1, []))
        self._store.damage.note(damage)
        self._missed.total += 1
        remark = (
            f"message {offset} of {queue.topic}/{queue.number} at {self._broker} is damaged "
            f"({damage}); restore the log, or have the group go on behind the message: "
            f"txmq group skip {group} {queue.topic} --broker {self._broker} "
            f"--queue {queue.number} --offset {offset} --reason TEXT"
        )
        # Stock clients ignore the offsets in an error; txmq's tools continue after the message.
        bounds = (offset + 1, queue.min_offset, queue.max_offset)
        return templates.pulled(pull.request, InternalError.code, bounds, remark, [])

    def _has_room(self, pull: HeldPull) -> bool:
        # A held filter takes about as much memory as its text.
        if self._held_chars + pull.chars <= HELD_FILTERS_CHARS_MAX and not self._holds.is_full:
            return True
        self._not_held += 1
        return False

    def _hold(self, pull: HeldPull) -> None:
        self._held_chars += pull.chars
        # The answer needs only the numbers. The texts may be long, and the wait too.
        pull.request.ext, pull.request.fields, pull.request.body = _NO_FIELDS, None, b""
        pull.header.subscription = None
        self._holds.hold(pull.queue.topic, pull.queue.number, pull, pull.deadline)
        if self._timer is None or pull.deadline < self._timer_at:
            self._watch()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._holds.next_deadline()
        if deadline is None:
            self._timer = None
            return
        self._timer_at = deadline
        delay = max(0.0, deadline - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        for pull in self._holds.expired(self._clock.monotonic()):
            self._resume(pull, may_hold=False)
        self._watch()

    def arrived(self, span: Span) -> None:
        """Wake the pulls that wait at the queues of a span."""
        if not self._holds.held:
            return
        reached = {(queue.topic, queue.number) for queue in {entry[0] for entry in span.staged}}
        self._wake(sorted(reached))

    def copied(self) -> None:
        """Wake the pulls that wait at queues which have grown by copying."""
        grown: list[tuple[str, int]] = []
        for topic, number in self._holds.queues():
            end = self._store.end_of(topic, number) or 0
            if self._ends.get((topic, number)) != end:
                self._ends[topic, number] = end
                grown.append((topic, number))
        self._wake(grown)

    def _wake(self, queues: Iterable[tuple[str, int]]) -> None:
        for topic, number in queues:
            self._woken += self._holds.wake(topic, number)
        if not self._is_resuming:
            self._resume_woken()

    def _resume_woken(self) -> None:
        """Serve woken pulls, in portions, so that the loop serves other requests in between."""
        room = WOKEN_TOGETHER_MAX
        while self._woken and room > 0:
            pull = self._woken.popleft()
            room -= pull.wanted.operands if isinstance(pull.wanted, Condition) else 1
            self._resume(pull, may_hold=True)
        self._is_resuming = bool(self._woken)
        if self._is_resuming:
            asyncio.get_running_loop().call_soon(self._resume_woken)

    def _resume(self, pull: HeldPull, *, may_hold: bool) -> None:
        self._held_chars -= pull.chars
        connection = pull.connection
        if not connection.is_open:
            return
        try:
            answer = self._serve(self._renewed(pull), may_hold=may_hold, is_woken=True)
        except (TxmqError, OSError) as error:
            if isinstance(error, CorruptRecord):
                self._store.damage.note(error)
            log.error("a held pull of %s failed: %s", pull.queue.topic, error)  # noqa: TRY400
            answer = command.answer(pull.request, InternalError.code, remark=str(error))
        if answer is not None:
            connection.send(answer)

    def _renewed(self, pull: HeldPull) -> HeldPull:
        """The pull with its group's current filter, unless it has a filter of its own."""
        if pull.header.sys_flag & _SUBSCRIPTION:
            return pull
        try:
            wanted = self._wanted(pull.header)
        except TxmqError:
            return pull  # The group has left, or its filter is invalid.
        return pull._replace(wanted=wanted, chars=_size_of(wanted))

    def release(self) -> None:
        """Answer all held pulls and hold no more, because the broker stops.

        Otherwise some clients would wait half a minute for an answer over the lost connection.
        """
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        woken = list(self._woken)
        self._woken.clear()
        for pull in woken + self._holds.release_all():
            self._resume(pull, may_hold=False)


def _size_of(wanted: Filter | None) -> int:
    """The length of a filter's text."""
    if isinstance(wanted, Condition):
        return len(wanted.expression)
    return 0 if wanted is None else sum([len(word) + 2 for word in wanted.words])
