"""The logs of a cluster's brokers, read over the wire in ranges that are fixed beforehand.

A plan asks each queue for its end, and cuts the day's part of every broker's log into pieces at
positions. Reading fills one file for each piece and queue, in any order and on any machine. A file
gets its name when it is complete, so a reading that was killed continues with the missing files.

This is the only module of the reconciliation that uses the client (ADR 22).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from msgspec import Struct

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
from txmq.reconcile.log.parts import GroupOffset
from txmq.reconcile.log.pulled_records import half_of
from txmq.reconcile.rules import DayWindow, Flow
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock

__all__ = [
    "BrokerPlan",
    "ClusterPlan",
    "EarlierHalves",
    "LogPiece",
    "QueueRange",
    "RangeFile",
    "fetch_ranges",
    "plan_reading",
]

PATIENCE_S: Final = 120.0
"""How long a broker may be away; a restart takes seconds."""
_PAUSES_S: Final = (0.1, 5.0)
_ANSWER_S: Final = 10.0
_MARGIN_MS: Final = 3_600_000
"""How much more than the day is read of decisions and messages. Earlier half messages are read
one by one."""
_RECORDS_A_PIECE: Final = 50_000
_READ_AT_ONCE: Final = 8

T = TypeVar("T")


class QueueRange(Struct, frozen=True):
    """Offsets of one queue: from ``start`` on, and before ``end``."""

    topic: str
    queue: int
    start: int
    end: int


class LogPiece(Struct, frozen=True):
    """A broker's log between two positions: the same part of all its queues."""

    ranges: tuple[QueueRange, ...]


class BrokerPlan(Struct, frozen=True):
    """What is read of one broker."""

    name: str
    is_txmq: bool
    """True if it tells who decided a transaction."""
    first_half: int
    """The offset at which the half topic is read from."""
    offsets: tuple[GroupOffset, ...]
    pieces: tuple[LogPiece, ...]


class ClusterPlan(Struct, frozen=True):
    """What is read of a cluster."""

    moment_ms: int
    """The time before which everything in the log is read."""
    brokers: tuple[BrokerPlan, ...]
    notes: tuple[str, ...]
    """What the cluster cannot tell."""


class RangeFile(NamedTuple):
    """A range to read, and the file for its records."""

    path: str
    broker: str
    range: QueueRange


class _Bounds(NamedTuple):
    queue: Queue
    low: int
    high: int


class _ClusterReader:
    """Requests to a cluster that wait while a broker restarts."""

    def __init__(self, names: str) -> None:
        self.session = Session(names, answer_s=_ANSWER_S)
        self.admin = Admin(self.session)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.session)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

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
                may_pass = isinstance(error, TopicNotFound) or (
                    error.retryable and not isinstance(error, InternalError)
                )
                if not may_pass or clock.monotonic() > deadline:
                    raise ReconcileRefused(
                        f"the cluster {';'.join(self.session.names)} cannot be read: {error}"
                    ) from error
            await asyncio.sleep(pauses.next_pause())

    async def read(
        self, queue: Queue, start: int, end: int, most: int = PULL_MESSAGES_MAX
    ) -> list[bytes]:
        """The next records of a queue from an offset on, at most up to another one; empty if the
        queue has none there.

        Raises:
            ReconcileRefused: They were deleted, or are broken, or the cluster does not answer.
        """
        at = start
        while at < end:
            count = min(end - at, most)
            batch = await self.ask(partial(self.admin.pull_stored, queue, at, count))
            if batch.outcome is PullOutcome.MOVED or batch.next_offset <= at:
                raise ReconcileRefused(
                    f"{queue} has no message {at} any more, and had it when the reading began: let "
                    "the brokers keep their log for longer, and run the day again"
                )
            records = [
                record for record in _split(batch.data) if at <= queue_offset_of(record) < end
            ]
            if records:
                return records
            at = batch.next_offset
        return []

    async def find(self, bounds: _Bounds, is_after: Callable[[Record], bool]) -> int:
        """The first offset of a queue whose record is after some point; the end if none is."""
        low, high = bounds.low, bounds.high
        while low < high:
            middle = (low + high) // 2
            found = await self.read(bounds.queue, middle, high, 1)
            if not found or is_after(unpack(found[0])[0]):
                high = middle
            else:
                low = queue_offset_of(found[0]) + 1
        return low


def _split(data: bytes) -> Iterator[bytes]:
    """The records in the answer to a pull.

    Raises:
        ReconcileRefused: The answer ends within a record.
    """
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        try:
            _, end = unpack(data, at)
        except RemoteProtocolError as error:
            raise ReconcileRefused(f"the cluster sent a broken record: {error}") from error
        yield data[at : at + size]
        at = end


# Planning


def plan_reading(
    names: str,
    flows: Sequence[Flow],
    window: DayWindow,
    clock: Clock,
    piece_records: int = _RECORDS_A_PIECE,
) -> ClusterPlan:
    """Fix what is read of a cluster for a day.

    The offsets of the groups come first, and the half topic last: so every delivered message and
    the half message of every decision is in the plan.

    Raises:
        ReconcileRefused: A topic or a group does not exist, a broker does not keep the whole day,
            or the cluster does not answer.
    """

    async def plan() -> ClusterPlan:
        async with _ClusterReader(names) as reader:
            return await _Planner(reader, flows, window, piece_records).plan(clock)

    return asyncio.run(plan())


class _Planner:
    def __init__(
        self, reader: _ClusterReader, flows: Sequence[Flow], window: DayWindow, size: int
    ) -> None:
        self._reader = reader
        self._admin = reader.admin
        self._window = window
        self._size = size
        self._topics = {flow.topic: flow.group for flow in flows}
        self._groups = sorted({flow.group for flow in flows} - {""})
        self._notes: list[str] = []

    async def plan(self, clock: Clock) -> ClusterPlan:
        known = set(await self._reader.ask(self._admin.topics))
        _check_known("topic", self._topics, known, "txmq topic list")
        await self._check_groups(known)
        queues = {topic: await self._queues(topic) for topic in self._topics}
        names = sorted({queue.broker for found in queues.values() for queue in found})
        offsets = [
            offset for topic in self._topics for offset in await self._of_group(queues[topic])
        ]
        own = [prefix + group for group in self._groups for prefix in (RETRY, DLQ)]
        bounds: list[_Bounds] = []
        # The half topic is last, so that it has the half message of each decision.
        for topic in (OP_TOPIC, *self._topics, *own, *WAITING_TOPICS, PARKED_TOPIC, HALF_TOPIC):
            if topic in known:
                found = queues.get(topic) or await self._queues(topic)
                bounds += [await self._bounds(queue) for queue in found if queue.broker in names]
        moment_ms = clock.wall_ms()
        brokers = [
            await self._broker(
                name,
                tuple(row for broker, row in offsets if broker == name),
                [one for one in bounds if one.queue.broker == name],
            )
            for name in names
        ]
        return ClusterPlan(moment_ms, tuple(brokers), tuple(self._notes))

    async def _check_groups(self, topics: set[str]) -> None:
        known = {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
        clusters = await self._reader.ask(self._admin.cluster)
        for name in sorted({broker.cluster for broker in clusters}):
            known.update(await self._reader.ask(partial(self._admin.groups, cluster=name)))
        _check_known("group", self._groups, known, "txmq group list")

    async def _queues(self, topic: str) -> list[Queue]:
        route = await self._reader.ask(partial(self._admin.route, topic))
        for broker in set(route.brokers) - {queue.broker for queue in route.readable}:
            self._notes.append(
                f"{broker} lets nobody read {topic}, so its messages are missing: permit reading "
                f"with txmq topic update {topic}"
            )
        return sorted(route.readable)

    async def _of_group(self, queues: list[Queue]) -> list[tuple[str, GroupOffset]]:
        rows = []
        for queue in queues:
            if group := self._topics[queue.topic]:
                ask = partial(self._admin.committed_offset, group, queue)
                offset = await self._reader.ask(ask)
                if offset is not None:
                    row = GroupOffset(group, queue.topic, queue.number, offset)
                    rows.append((queue.broker, row))
        return rows

    async def _bounds(self, queue: Queue) -> _Bounds:
        high = await self._reader.ask(partial(self._admin.max_offset, queue))
        low = await self._reader.ask(partial(self._admin.min_offset, queue))
        return _Bounds(queue, low, max(low, high))

    async def _broker(
        self, name: str, offsets: tuple[GroupOffset, ...], bounds: list[_Bounds]
    ) -> BrokerPlan:
        is_txmq = await self._is_txmq(bounds[0].queue)
        await self._check_reach(name, bounds)
        todo = [await self._of_day(one, is_txmq=is_txmq) for one in bounds]
        first_half = min((one.low for one in todo if one.queue.topic == HALF_TOPIC), default=0)
        if not is_txmq:
            self._notes.append(
                f"{name} keeps only that a transaction ended: decided_by and reason are empty, "
                "decided_ms is the time at which the broker noted the end, and a delayed message "
                "counts from its delivery on"
            )
        return BrokerPlan(name, is_txmq, first_half, offsets, await self._pieces(todo))

    async def _is_txmq(self, queue: Queue) -> bool:
        async def ask() -> bool:
            address = await self._reader.session.address_of(queue)
            header = ListTransactions("", "", 0, 1)
            try:
                await self._reader.session.request(address, RequestCode.LIST_TRANSACTIONS, header)
            except RequestNotSupported:
                return False
            return True

        return await self._reader.ask(ask)

    async def _check_reach(self, name: str, bounds: list[_Bounds]) -> None:
        """Refuse a broker that has deleted records of the day.

        A queue may begin late because it was quiet, so the age of the whole log counts.
        """
        stats = await self._reader.ask(partial(self._admin.broker_stats, name))
        earliest = stats.get("earliestMessageTimeStamp", "")
        if (
            earliest.isdecimal()
            and int(earliest) > self._window.start_ms
            and any(one.low for one in bounds)
        ):
            raise ReconcileRefused(
                f"the log of {name} begins too late, {int(earliest) - self._window.start_ms} ms "
                "after the day: let the broker keep its log for longer (retention.keep, or "
                "fileReservedTime of RocketMQ)"
            )

    async def _of_day(self, bounds: _Bounds, *, is_txmq: bool) -> _Bounds:
        """The part of a queue that can matter for the day."""
        start_ms, end_ms = self._window.start_ms - _MARGIN_MS, self._window.end_ms + _MARGIN_MS
        if bounds.queue.topic == PARKED_TOPIC and is_txmq:
            return bounds._replace(low=bounds.high)  # The op topic has the decision.
        low = await self._reader.find(bounds, lambda record: record.stored_ms >= start_ms)
        bounds = bounds._replace(low=low)
        if bounds.queue.topic.startswith((RETRY, DLQ)) or bounds.queue.topic in WAITING_TOPICS:
            return bounds  # A message counts as failed whenever that happened.
        high = await self._reader.find(bounds, lambda record: record.stored_ms >= end_ms)
        return bounds._replace(high=high)

    async def _pieces(self, todo: list[_Bounds]) -> tuple[LogPiece, ...]:
        """Cut a broker's log at the positions of some records of its longest queue."""
        total = sum(one.high - one.low for one in todo)
        count = -(-total // self._size)
        longest = max(todo, key=lambda one: one.high - one.low)
        step = (longest.high - longest.low) / max(count, 1)
        cuts = [
            [one.low for one in todo],
            *[
                await self._cut(todo, longest, longest.low + int(index * step))
                for index in range(1, count)
            ],
            [one.high for one in todo],
        ]
        pieces = [
            LogPiece(
                tuple(
                    QueueRange(one.queue.topic, one.queue.number, start, end)
                    for one, start, end in zip(todo, before, after, strict=True)
                    if start < end
                )
            )
            for before, after in pairwise(cuts)
        ]
        return tuple(piece for piece in pieces if piece.ranges)

    async def _cut(self, todo: list[_Bounds], longest: _Bounds, offset: int) -> list[int]:
        """The offset of each queue at the position of a record."""
        found = await self._reader.read(longest.queue, offset, longest.high, 1)
        if not found:
            return [one.high for one in todo]
        position = unpack(found[0])[0].position
        return [
            await self._reader.find(one, lambda record: record.position >= position) for one in todo
        ]


def _check_known(what: str, wanted: Iterable[str], known: set[str], command: str) -> None:
    for name in wanted:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise ReconcileRefused(
                f"the cluster has no {what} {name!r}{hint} list all of them with: {command}"
            )


# Reading


def fetch_ranges(names: str, todo: Iterable[RangeFile]) -> None:
    """Read ranges into their files, and skip those that are complete.

    Raises:
        ReconcileRefused: A range cannot be read.
    """
    missing = [item for item in todo if not Path(item.path).exists()]

    async def fetch() -> None:
        limit = asyncio.Semaphore(_READ_AT_ONCE)
        async with _ClusterReader(names) as reader, asyncio.TaskGroup() as group:
            for item in missing:
                group.create_task(_fetch(reader, item, limit))

    try:
        asyncio.run(fetch())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _fetch(reader: _ClusterReader, item: RangeFile, limit: asyncio.Semaphore) -> None:
    wanted, path = item.range, Path(item.path)
    queue = Queue(wanted.topic, item.broker, wanted.queue)
    # Two workers may read the same range, because Spark repeats tasks; both read the same bytes.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{id(item)}")
    at = wanted.start
    async with limit:
        with draft.open("wb") as file:
            while records := await reader.read(queue, at, wanted.end):
                offsets = [queue_offset_of(record) for record in records]
                if offsets != sorted(set(offsets)):
                    raise ReconcileRefused(f"{queue} returned messages out of order at {at}")
                file.writelines(records)
                at = offsets[-1] + 1
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)


class EarlierHalves:
    """Reads half messages from before a plan, one by one, from one broker.

    Args:
        names: The name servers.
        plan: What is read of the broker.
    """

    def __init__(self, names: str, plan: BrokerPlan) -> None:
        self._names = names
        self._plan = plan

    def at_position(self, position: int) -> Record | None:
        """The half message at a position of a txmq broker's log; ``None`` if it was deleted."""

        async def ask(reader: _ClusterReader) -> Record | None:
            address = await reader.session.address_of(self._queue)
            header = MessagePosition(position)
            code = RequestCode.VIEW_MESSAGE_BY_ID
            try:
                answer = await reader.session.request(address, code, header)
            except (InternalError, NotFound):
                return None
            return half_of(unpack(answer.body)[0])

        return self._run(ask)

    def at_offset(self, offset: int) -> Record | None:
        """The half message at an offset of the half topic; ``None`` if it was deleted, or is part
        of the plan and was decided.
        """
        if offset >= self._plan.first_half:
            return None

        async def ask(reader: _ClusterReader) -> Record | None:
            batch = await reader.admin.pull_stored(self._queue, offset, 1)
            found = batch.data and unpack(batch.data)[0]
            return half_of(found) if found and found.queue_offset == offset else None

        return self._run(ask)

    @property
    def _queue(self) -> Queue:
        return Queue(HALF_TOPIC, self._plan.name, 0)

    def _run(self, ask: Callable[[_ClusterReader], Awaitable[Record | None]]) -> Record | None:
        async def run() -> Record | None:
            async with _ClusterReader(self._names) as reader:
                return await reader.ask(partial(ask, reader))

        return asyncio.run(run())
