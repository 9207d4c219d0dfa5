"""The logs of a cluster's brokers, read over the wire in ranges that are fixed beforehand.

A plan asks each queue for its end, and finds the part of it that matters for the day. Reading fills
one file for each range, in any order and on any machine. A file gets its name when it is complete,
so a reading that was killed continues with the missing files.

This is the only module of the reconciliation that uses the client (ADR 22).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from txmq.client.admin.admin import Admin
from txmq.client.session import Session
from txmq.client.values import PullOutcome
from txmq.errors import (
    InternalError,
    NotFound,
    ReconcileRefused,
    RemoteProtocolError,
    RequestNotSupported,
    TopicNotFound,
    TxmqError,
)
from txmq.limits import PULL_MESSAGES_MAX
from txmq.message import Queue
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ListTransactions, MessagePosition
from txmq.protocol.record import Record, queue_offset_of, unpack
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.log.log_rows import GroupOffset
from txmq.reconcile.log.pulled_records import half_of
from txmq.reconcile.rules import DayWindow, Flow
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock

__all__ = [
    "BrokerPlan",
    "ClusterPlan",
    "QueueRange",
    "RangeFile",
    "earlier_half",
    "fetch_ranges",
    "plan_reading",
]

PATIENCE_S: Final = 120.0
"""How long a broker may be away; a restart takes seconds."""
_PAUSES_S: Final = (0.1, 5.0)
_ANSWER_S: Final = 10.0
_MARGIN_MS: Final = 3_600_000
"""How much more than the day is read. Half messages from before it are read one by one."""
_READ_AT_ONCE: Final = 8
_READ_TO_THE_END: Final = (RETRY, DLQ, *WAITING_TOPICS)
"""A message counts as failed whenever that happened."""

T = TypeVar("T")

RangeFile: TypeAlias = tuple[Path, "QueueRange"]
"""The file for the records of a range."""


class QueueRange(Struct, frozen=True):
    """Offsets of one queue: from ``start`` on, and before ``end``."""

    topic: str
    broker: str
    number: int
    start: int
    end: int

    @property
    def queue(self) -> Queue:
        """The queue."""
        return Queue(self.topic, self.broker, self.number)


class BrokerPlan(Struct, frozen=True):
    """What is read of one broker."""

    name: str
    is_txmq: bool
    """True if it tells who decided a transaction."""
    offsets: tuple[GroupOffset, ...]
    ranges: tuple[QueueRange, ...]


class ClusterPlan(Struct, frozen=True):
    """What is read of a cluster."""

    key: str
    """A hash of the inputs that it was made for."""
    moment_ms: int
    """All records from before this time are in the plan."""
    brokers: tuple[BrokerPlan, ...]
    notes: tuple[str, ...]
    """What the cluster cannot tell."""


class _ClusterReader:
    """Requests to a cluster that wait while a broker restarts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.admin = Admin(session)

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to a call, which is repeated while repeating makes sense.

        Raises:
            ReconcileRefused: The cluster refuses, or does not answer for too long.
        """
        clock = self.session.clock
        pauses = Backoff(self.session.entropy, *_PAUSES_S)
        deadline = clock.monotonic() + PATIENCE_S
        while True:
            try:
                return await call()
            except TxmqError as error:
                # A broker that restarts is unknown to the name servers for a moment.
                may_pass = error.retryable or isinstance(error, TopicNotFound)
                is_over = isinstance(error, InternalError) or clock.monotonic() > deadline
                if is_over or not may_pass:
                    raise ReconcileRefused(
                        f"the cluster {';'.join(self.session.names)} cannot be read: {error}"
                    ) from error
            await asyncio.sleep(pauses.next_pause())

    async def read(
        self, queue: Queue, start: int, end: int, most: int = PULL_MESSAGES_MAX
    ) -> list[bytes]:
        """The next records of a queue in a range of offsets; empty if it has none there.

        Raises:
            ReconcileRefused: They were deleted, or are broken, or the cluster does not answer.
        """
        at = start
        while at < end:
            pull = partial(self.admin.pull_stored, queue, at, min(end - at, most))
            batch = await self.ask(pull)
            if batch.outcome is PullOutcome.MOVED or batch.next_offset <= at:
                raise ReconcileRefused(
                    f"{queue} has no message {at} any more, and had it when the reading began: let "
                    "the brokers keep their log for longer, and run the day again"
                )
            if records := [one for one in _split(batch.data) if at <= queue_offset_of(one) < end]:
                return records
            at = batch.next_offset
        return []

    async def find(self, found: QueueRange, is_after: Callable[[Record], bool]) -> int:
        """The first offset of a range whose record is after some point; its end if none is."""
        low, high = found.start, found.end
        while low < high:
            middle = (low + high) // 2
            records = await self.read(found.queue, middle, high, 1)
            if not records or is_after(unpack(records[0])[0]):
                high = middle
            else:
                low = queue_offset_of(records[0]) + 1
        return low


def _split(data: bytes) -> Iterator[bytes]:
    """The records in the answer to a pull.

    Raises:
        ReconcileRefused: A record is broken.
    """
    start = 0
    while start < len(data):
        try:
            _, end = unpack(data, start)
        except RemoteProtocolError as error:
            raise ReconcileRefused(f"the cluster sent a broken record: {error}") from error
        yield data[start:end]
        start = end


# Planning


def plan_reading(
    names: str, flows: Sequence[Flow], window: DayWindow, key: str, clock: Clock
) -> ClusterPlan:
    """Fix what is read of a cluster for a day.

    Raises:
        ReconcileRefused: A topic or a group does not exist, a broker does not keep the whole day,
            or the cluster does not answer.
    """

    async def plan() -> ClusterPlan:
        async with Session(names, answer_s=_ANSWER_S) as session:
            return await _Planner(_ClusterReader(session), flows, window).plan(key, clock)

    return asyncio.run(plan())


class _Planner:
    def __init__(self, reader: _ClusterReader, flows: Sequence[Flow], window: DayWindow) -> None:
        self._reader = reader
        self._admin = reader.admin
        self._window = window
        self._topics = {flow.topic: flow.group for flow in flows}
        self._groups = sorted({flow.group for flow in flows} - {""})
        self._notes: list[str] = []

    async def plan(self, key: str, clock: Clock) -> ClusterPlan:
        known = set(await self._reader.ask(self._admin.topics))
        _check_known("topic", self._topics, known)
        await self._check_groups(known)
        queues = {topic: await self._queues(topic) for topic in self._topics}
        names = sorted({queue.broker for found in queues.values() for queue in found})
        # First, so that every message that counts as delivered is in the plan.
        offsets = [one for found in queues.values() for one in await self._offsets(found)]
        own = [prefix + group for group in self._groups for prefix in (RETRY, DLQ)]
        ranges: list[QueueRange] = []
        # The half topic is last, so that it has the half message of each decision.
        for topic in (OP_TOPIC, *self._topics, *own, *WAITING_TOPICS, PARKED_TOPIC, HALF_TOPIC):
            if topic in known:
                found = queues.get(topic) or await self._queues(topic)
                ranges += [await self._range(queue) for queue in found if queue.broker in names]
        moment_ms = clock.wall_ms()
        brokers = []
        for name in names:
            of_groups = tuple(row for broker, row in offsets if broker == name)
            of_broker = [one for one in ranges if one.broker == name]
            brokers.append(await self._broker(name, of_groups, of_broker))
        return ClusterPlan(key, moment_ms, tuple(brokers), tuple(self._notes))

    async def _check_groups(self, topics: set[str]) -> None:
        known = {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
        brokers = await self._reader.ask(self._admin.cluster)
        for name in sorted({broker.cluster for broker in brokers}):
            known.update(await self._reader.ask(partial(self._admin.groups, cluster=name)))
        _check_known("group", self._groups, known)

    async def _queues(self, topic: str) -> list[Queue]:
        route = await self._reader.ask(partial(self._admin.route, topic))
        hidden = set(route.brokers) - {queue.broker for queue in route.readable}
        for broker in sorted(hidden):
            text = f"{broker} lets nobody read {topic}: permit reading it with txmq topic create"
            if topic in self._topics:
                raise ReconcileRefused(text)
            self._notes.append(text)
        return sorted(route.readable)

    async def _offsets(self, queues: list[Queue]) -> list[tuple[str, GroupOffset]]:
        found = []
        for queue in queues:
            if group := self._topics[queue.topic]:
                ask = partial(self._admin.committed_offset, group, queue)
                if (offset := await self._reader.ask(ask)) is not None:
                    row = GroupOffset(group, queue.topic, queue.number, offset)
                    found.append((queue.broker, row))
        return found

    async def _range(self, queue: Queue) -> QueueRange:
        high = await self._reader.ask(partial(self._admin.max_offset, queue))
        low = await self._reader.ask(partial(self._admin.min_offset, queue))
        return QueueRange(queue.topic, queue.broker, queue.number, low, max(low, high))

    async def _broker(
        self, name: str, offsets: tuple[GroupOffset, ...], ranges: list[QueueRange]
    ) -> BrokerPlan:
        await self._check_reach(name, ranges)
        is_txmq = await self._reader.ask(partial(self._is_txmq, ranges[0].queue))
        if is_txmq:  # Its op topic tells what is parked.
            ranges = [one for one in ranges if one.topic != PARKED_TOPIC]
        else:
            self._notes.append(
                f"{name} does not keep who decided a transaction, and why: decided_by and reason "
                "are empty; a delayed message counts from its delivery on"
            )
        ranges = list(await asyncio.gather(*map(self._of_day, ranges)))
        return BrokerPlan(name, is_txmq, offsets, tuple(ranges))

    async def _is_txmq(self, queue: Queue) -> bool:
        address = await self._reader.session.address_of(queue)
        header = ListTransactions("", "", 0, 1)
        try:
            await self._reader.session.request(address, RequestCode.LIST_TRANSACTIONS, header)
        except RequestNotSupported:
            return False
        return True

    async def _check_reach(self, name: str, ranges: list[QueueRange]) -> None:
        """Refuse a broker that has deleted records of the day.

        A queue may begin late because it was quiet, so the age of the whole log counts.
        """
        stats = await self._reader.ask(partial(self._admin.broker_stats, name))
        first = stats.get("earliestMessageTimeStamp", "")
        is_late = first.isdecimal() and int(first) > self._window.start_ms
        if is_late and any(one.start for one in ranges):
            raise ReconcileRefused(
                f"the log of {name} begins too late: its first record is of {first}, and the day "
                f"begins at {self._window.start_ms}; let the broker keep its log for longer "
                "(retention.keep, or fileReservedTime of RocketMQ)"
            )

    async def _of_day(self, found: QueueRange) -> QueueRange:
        """The part of a queue that can matter for the day."""
        start_ms, end_ms = self._window.start_ms - _MARGIN_MS, self._window.end_ms + _MARGIN_MS
        start = await self._reader.find(found, lambda record: record.stored_ms >= start_ms)
        found = replace(found, start=start)
        if found.topic.startswith(_READ_TO_THE_END):
            return found
        end = await self._reader.find(found, lambda record: record.stored_ms >= end_ms)
        return replace(found, end=end)


def _check_known(what: str, wanted: Iterable[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]!r}? List" if near else "list"
            raise ReconcileRefused(
                f"the cluster has no {what} {name!r}; {hint} all of them with: txmq {what} list"
            )


# Reading


def fetch_ranges(names: str, todo: Iterable[RangeFile]) -> list[str]:
    """Read ranges into their files; returns why some cannot be read."""
    failed: list[str] = []

    async def fetch() -> None:
        limit = asyncio.Semaphore(_READ_AT_ONCE)
        async with Session(names, answer_s=_ANSWER_S) as session, asyncio.TaskGroup() as group:
            for path, wanted in todo:
                group.create_task(_fetch(_ClusterReader(session), path, wanted, limit))

    try:
        asyncio.run(fetch())
    except* TxmqError as errors:
        failed = [str(error) for error in errors.exceptions]
    return failed


async def _fetch(
    reader: _ClusterReader, path: Path, wanted: QueueRange, limit: asyncio.Semaphore
) -> None:
    # Spark may repeat a task while the first attempt still runs; both read the same bytes.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    at = wanted.start
    async with limit:
        with draft.open("wb") as file:
            while records := await reader.read(wanted.queue, at, wanted.end):
                offsets = [at - 1, *map(queue_offset_of, records)]
                if offsets != sorted(set(offsets)):
                    raise ReconcileRefused(f"{wanted.queue} has no order at its message {at}")
                file.writelines(records)
                at = offsets[-1] + 1
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)


def earlier_half(names: str, plan: BrokerPlan, place: int) -> Record | None:
    """A half message from before a plan; ``None`` if it was deleted, or is part of the plan.

    Args:
        names: The name servers.
        plan: What is read of the broker.
        place: The position in the log of a txmq broker; in another, the offset in the half topic.
    """
    queue = Queue(HALF_TOPIC, plan.name, 0)

    async def view(session: Session) -> bytes:
        address = await session.address_of(queue)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        try:
            return (await session.request(address, code, MessagePosition(place))).body
        except (InternalError, NotFound):
            return b""

    async def pull(session: Session) -> bytes:
        data = (await Admin(session).pull_stored(queue, place, 1)).data
        return data if data and queue_offset_of(data) == place else b""

    async def ask() -> bytes:
        async with Session(names, answer_s=_ANSWER_S) as session:
            read = partial(view if plan.is_txmq else pull, session)
            return await _ClusterReader(session).ask(read)

    is_planned = any(one.topic == HALF_TOPIC and place >= one.start for one in plan.ranges)
    if is_planned and not plan.is_txmq:
        return None
    data = asyncio.run(ask())
    return half_of(unpack(data)[0]) if data else None
