"""The logs of a cluster's brokers, read over the wire in ranges that are fixed beforehand.

The planner asks each queue for its bounds, and finds the range that matters for the day. One task
reads one broker: it fills a temporary file for each range, in any order, and merges the files.

This is the only module of the reconciliation that uses the client (ADR 22).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, ParamSpec, TypeVar

from txmq.client.admin.admin import Admin
from txmq.client.session import Session
from txmq.client.values import PullOutcome
from txmq.errors import (
    ConfigError,
    InternalError,
    ReconcileRefused,
    RequestNotSupported,
    TopicNotFound,
    TxmqError,
)
from txmq.limits import PULL_MESSAGES_MAX
from txmq.message import Queue
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import ListTransactions
from txmq.protocol.record import Record, queue_offset_of, stored_ms_of, unpack
from txmq.protocol.span import Decision
from txmq.protocol.topics import DLQ, HALF_TOPIC, OP_TOPIC, PARKED_TOPIC, RETRY, WAITING_TOPICS
from txmq.reconcile.extract.books import Piece, notes
from txmq.reconcile.log import pulled_records as pulled
from txmq.reconcile.log.collapse import RECORDS_A_BATCH, Collapse, LogRequest, rows_at
from txmq.reconcile.tables import OFFSETS, GroupOffset
from txmq.runtime.backoff import Backoff

__all__ = ["ClusterPart", "number_brokers", "plan_cluster"]

RECORDS_A_FILE: Final = 50_000
PATIENCE_S: Final = 120.0
"""How long a broker may be unavailable; a restart takes seconds."""
_PAUSES_S: Final = (0.1, 5.0)
_ANSWER_S: Final = 10.0
_MARGIN_MS: Final = 3_600_000
"""How far before and after the day the log is read. Earlier half messages are read one by one."""
_READ_AT_ONCE: Final = 8
_READ_TO_THE_END: Final = (RETRY, DLQ, *WAITING_TOPICS)
"""Topics that are read to their end: a message counts as failed whenever it failed."""
_OF_TRANSACTIONS: Final = (OP_TOPIC, HALF_TOPIC)
"""Without these the end of a transaction is unknown: they are read even if pulls are refused."""
_NUMBERS: Final = 1 << 15
"""How many brokers can be numbered: the next higher bit of positions and queues is the sign."""

T = TypeVar("T")
P = ParamSpec("P")


class QueueRange(NamedTuple):
    """Offsets of one queue: from ``start`` up to, but not including, ``end``."""

    queue: Queue
    start: int
    end: int
    is_hidden: bool = False
    """True if the broker refuses pulls, so that the queue is read through its index instead."""


class ClusterPart(NamedTuple):
    """The part of a broker's log to read."""

    number: int
    name: str
    notes: list[tuple[str, str, str]]
    """Those of the first broker include the notes about the whole cluster."""
    offsets: list[GroupOffset]
    ranges: list[QueueRange]
    is_txmq: bool = True
    """True for a txmq broker, which records who decided a transaction."""

    def read(self, request: LogRequest) -> Iterator[Piece]:
        """The rows of the log."""
        yield notes(self.notes)
        yield rows_at(self.number, OFFSETS, self.offsets)
        names = request.log.cluster
        half_of = partial(_earlier_half, names, self)
        collapse = Collapse(request, self.number, half_of, tells_who=self.is_txmq)
        with TemporaryDirectory(prefix="txmq-log-") as folder:
            queues = [
                _files(Path(folder), place, wanted) for place, wanted in enumerate(self.ranges)
            ]
            _fetch_ranges(names, chain.from_iterable(queues))
            paths = [[path for path, _ in queue] for queue in queues]
            records = pulled.merged_records(paths, is_txmq=self.is_txmq)
            found = (pulled.decided_records if self.is_txmq else pulled.marked_records)(records)
            for count, item in enumerate(found, 1):
                collapse.take(item)
                if count % RECORDS_A_BATCH == 0:
                    yield from collapse.take_rows()
            collapse.finish()
            yield from collapse.take_rows()


def plan_cluster(request: LogRequest) -> list[ClusterPart]:
    """Plan the part to read of each broker's log.

    Raises:
        ReconcileRefused: A topic or a group does not exist, a broker does not keep the whole day,
            or the cluster does not answer.
    """
    return _ask_cluster(request.log.cluster, lambda session: _Planner(session, request).plan())


def number_brokers(names: Iterable[str]) -> dict[str, int]:
    """Number a cluster's brokers by their names, so that a new broker does not change the numbers
    of the others.

    If two names get the same number, as one pair in 30,000 does, one takes the next number.
    """
    numbers: dict[str, int] = {}
    for name in sorted(names):
        number = crc32(name.encode()) % _NUMBERS
        while number in numbers.values():
            number = (number + 1) % _NUMBERS
        numbers[name] = number
    return numbers


def _files(folder: Path, place: int, whole: QueueRange) -> list[tuple[Path, QueueRange]]:
    """The files of a queue's records, in the order of offsets."""
    ends = [*range(whole.start, whole.end, RECORDS_A_FILE), whole.end]
    return [
        (folder / f"{place}-{start}", whole._replace(start=start, end=end))
        for start, end in pairwise(ends)
    ]


class _ClusterReader:
    """Sends requests to a cluster, and waits while a broker restarts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.admin = Admin(session)

    async def ask(self, call: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> T:
        """The answer to a call, which is retried while a retry may succeed."""
        clock = self.session.clock
        pauses = Backoff(self.session.entropy, *_PAUSES_S)
        deadline = clock.monotonic() + PATIENCE_S
        while True:
            try:
                return await call(*args, **named)
            except TxmqError as error:
                # A broker that restarts is unknown to the name servers for a moment.
                may_pass = error.retryable or isinstance(error, TopicNotFound | ConfigError)
                if not may_pass or isinstance(error, InternalError) or clock.monotonic() > deadline:
                    where = f"the cluster {';'.join(self.session.names)}"
                    raise ReconcileRefused(f"{where} cannot be read: {error}") from error
            await asyncio.sleep(pauses.next_pause())

    async def ask_hidden(self, queue: Queue, call: Callable[[Queue], Awaitable[T]]) -> T:
        """The answer to a call about a queue of a broker that refuses pulls of it."""
        try:
            return await self.ask(call, queue)
        except ReconcileRefused as error:
            where = f"{queue.broker} refuses pulls of {queue.topic}, and reading its index failed"
            why = "rolled-back transactions would count as open"
            remedy = "permit the requests 30, 31, 33 and 321"
            raise ReconcileRefused(f"{where}; without it {why}, so {remedy}: {error}") from error

    async def read(self, wanted: QueueRange, *, is_search: bool = False) -> list[bytes]:
        """The next records of a range; empty if it has none.

        A search gets one record, and accepts that earlier ones were deleted.
        """
        queue, at, end, is_hidden = wanted
        most = 1 if is_search else PULL_MESSAGES_MAX
        while at < end:
            count = min(end - at, most)
            if is_hidden:
                call = partial(self.admin.read_index, offset=at, count=count)
                batch = await self.ask_hidden(queue, call)
            else:
                batch = await self.ask(self.admin.pull_stored, queue, at, count)
            is_gone = batch.outcome is PullOutcome.MOVED and not is_search
            if is_gone or batch.next_offset <= at:
                why = f"{queue} has no message {at} any more, and had it when the reading began"
                remedy = "let the brokers keep their log for longer, and run the day again"
                raise ReconcileRefused(f"{why}: {remedy}")
            offsets = [at - 1, *map(queue_offset_of, batch.records)]
            if offsets != sorted(set(offsets)):
                raise ReconcileRefused(f"{queue} has no order at its message {at}")
            if found := [one for one in batch.records if queue_offset_of(one) < end]:
                return found
            at = batch.next_offset
        return []

    async def fetch(self, path: Path, wanted: QueueRange, limit: asyncio.Semaphore) -> None:
        """Read a range into its file."""
        async with limit:
            with path.open("wb") as file:
                while records := await self.read(wanted):
                    file.writelines(records)
                    wanted = wanted._replace(start=queue_offset_of(records[-1]) + 1)


def _ask_cluster(names: str, work: Callable[[Session], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with Session(names, answer_s=_ANSWER_S) as session:
            return await work(session)

    return asyncio.run(opened())


class _Planner(_ClusterReader):
    def __init__(self, session: Session, request: LogRequest) -> None:
        super().__init__(session)
        self._request = request
        self._window = request.window
        self._groups = {flow.topic: flow.group for flow in request.log.flow}
        self._notes: list[str] = []

    async def plan(self) -> list[ClusterPart]:
        """A part for each broker, with all records from before the moment in the notes."""
        known, subscribed = set(await self.ask(self.admin.topics)), set[str]()
        for name in {broker.cluster for broker in await self.ask(self.admin.cluster)}:
            subscribed.update(await self.ask(self.admin.groups, cluster=name))
        remedy = "list all of them with: txmq {} list"
        self._request.check_names("cluster", known, subscribed, remedy)
        own = [queue for topic in self._groups for queue in await self._queues(topic)]
        brokers = {
            name: ClusterPart(number, name, [("broker", name, "")], [], [])
            for name, number in number_brokers({queue.broker for queue in own}).items()
        }
        # Ask for offsets first, so that every message that counts as delivered is in the plan.
        for queue in own:
            group = self._groups[queue.topic]
            offset = await self.ask(self.admin.committed_offset, group, queue) if group else None
            if offset is not None:
                row = GroupOffset(group, queue.topic, queue.number, offset)
                brokers[queue.broker].offsets.append(row)
        groups = sorted({*self._groups.values()} - {""})
        of_groups = [prefix + group for group in groups for prefix in (RETRY, DLQ)]
        # The half topic comes last, so that it includes the half message of each decision.
        topics = (OP_TOPIC, *self._groups, *of_groups, *WAITING_TOPICS, PARKED_TOPIC, HALF_TOPIC)
        for topic in topics:
            for queue in await self._queues(topic) if topic in known else ():
                if queue.broker in brokers:
                    high = await self.ask(self.admin.max_offset, queue)
                    low = await self.ask(self.admin.min_offset, queue)
                    brokers[queue.broker].ranges.append(QueueRange(queue, low, max(low, high)))
            if topic in _OF_TRANSACTIONS:
                await self._add_hidden(topic, brokers.values())
        moment_ms = self.session.clock.wall_ms()
        parts = [await self._of_day(broker) for broker in brokers.values()]
        for part in parts[:1]:
            part.notes.append(("taken_ms", "", str(moment_ms)))
            part.notes.extend(("note", "", text) for text in dict.fromkeys(self._notes))
        return parts

    async def _add_hidden(self, topic: str, brokers: Iterable[ClusterPart]) -> None:
        """Add a topic to the plans of brokers that refuse pulls of it.

        Before version 5, Apache RocketMQ never creates a config for the op topic, and creates one
        for the half topic only in its first round of checks. It uses queue 0 of both.
        """
        for broker in brokers:
            if not any(one.queue.topic == topic for one in broker.ranges):
                queue = Queue(topic, broker.name, 0)
                low, high = await self.ask_hidden(queue, self.admin.index_bounds)
                broker.ranges.append(QueueRange(queue, low, max(low, high), is_hidden=True))

    async def _queues(self, topic: str) -> list[Queue]:
        route = await self.ask(self.admin.route, topic)
        queues, closed = await self.ask(self.admin.readable_queues, route)
        for broker in closed:
            remedy = f"permit it: txmq topic permit {topic} rw"
            text = f"{broker} lets nobody read {topic}; {remedy}"
            if topic in self._groups:
                raise ReconcileRefused(text)
            if topic not in _OF_TRANSACTIONS:
                self._notes.append(text)
        return sorted(queues)

    async def _of_day(self, broker: ClusterPart) -> ClusterPart:
        """Cut the ranges of a broker to the records that can matter for the day."""
        name, ranges = broker.name, broker.ranges
        # A queue may begin late because it was quiet, so the age of the whole log counts.
        stats = await self.ask(self.admin.broker_stats, name)
        first = stats.get("earliestMessageTimeStamp", "")
        is_late = first.isdecimal() and int(first) > self._window.start_ms
        if is_late and any(one.start for one in ranges):
            why = f"its first record is of {first}, and the day begins at {self._window.start_ms}"
            keys = "(retention.keep, or fileReservedTime of RocketMQ)"
            remedy = f"let the broker keep its log for longer {keys}"
            raise ReconcileRefused(f"the log of {name} begins too late: {why}; {remedy}")
        known = next(one.queue for one in ranges if not one.is_hidden)
        is_txmq = await self.ask(self._is_txmq, known)
        if is_txmq:  # Its op topic shows what is parked.
            ranges = [one for one in ranges if one.queue.topic != PARKED_TOPIC]
        else:
            text = f"{name} does not keep who decided a transaction, and why: decided_by and reason"
            text = f"{text} are empty; a delayed message counts from its delivery on"
            self._notes.append(text)
        ranges = await asyncio.gather(*map(self._cut, ranges))
        return broker._replace(ranges=ranges, is_txmq=is_txmq)

    async def _is_txmq(self, queue: Queue) -> bool:
        address = await self.session.address_of(queue)
        header = ListTransactions("", "", 0, 1)
        try:
            await self.session.request(address, RequestCode.LIST_TRANSACTIONS, header)
        except RequestNotSupported:
            return False
        return True

    async def _cut(self, found: QueueRange) -> QueueRange:
        start_ms, end_ms = self._window.start_ms - _MARGIN_MS, self._window.end_ms + _MARGIN_MS
        found = found._replace(start=await self._find(found, start_ms))
        if found.queue.topic.startswith(_READ_TO_THE_END):
            return found
        return found._replace(end=await self._find(found, end_ms))

    async def _find(self, found: QueueRange, since_ms: int) -> int:
        """The first offset of a range with a record of this time or later; else its end."""
        low, high = found.start, found.end
        while low < high:
            middle = (low + high) // 2
            wanted = found._replace(start=middle, end=high)
            records = await self.read(wanted, is_search=True)
            if not records or stored_ms_of(records[0]) >= since_ms:
                high = middle
            else:
                low = queue_offset_of(records[0]) + 1
        return low


def _fetch_ranges(names: str, todo: Iterable[tuple[Path, QueueRange]]) -> None:
    """Read ranges into their files, a few at a time."""

    async def fetch(session: Session) -> None:
        reader, limit = _ClusterReader(session), asyncio.Semaphore(_READ_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for path, wanted in todo:
                group.create_task(reader.fetch(path, wanted, limit))

    try:
        _ask_cluster(names, fetch)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _earlier_half(names: str, part: ClusterPart, decision: Decision) -> Record | None:
    """The half message of a decision; ``None`` if it was deleted, or is part of the plan."""
    offset = decision.half_offset
    halves = next(one for one in part.ranges if one.queue == Queue(HALF_TOPIC, part.name, 0))
    if not 0 <= offset < halves.start:
        return None
    wanted = halves._replace(start=offset, end=offset + 1)
    records = _ask_cluster(
        names, lambda session: _ClusterReader(session).read(wanted, is_search=True)
    )
    return pulled.half_of(unpack(records[0], errors="replace")[0]) if records else None
