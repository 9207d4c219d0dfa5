"""Looking into brokers: over the wire while they serve, at copies of their disks after a crash."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from tests.simulation.checkers.recovery import AGAIN
from tests.simulation.history import (
    Acknowledged,
    Audited,
    Began,
    Copy,
    Found,
    History,
    Marker,
    OpenAudited,
    Recovered,
    Shape,
    Standing,
    mark,
)
from tests.simulation.node import BrokerNode, Tripwire
from tests.simulation.operators import open_transactions
from tests.simulation.workload import copy_of
from txmq.client import Admin, Session
from txmq.client.received_message import received
from txmq.errors import BrokerRefused, NotFound, ServiceUnavailable, TopicNotFound, TransportError
from txmq.message import Queue
from txmq.protocol.codes import SUCCESS, PullFlag, RequestCode
from txmq.protocol.headers import OffsetAnswer, OffsetQuery, PullMessage, QueueHeader
from txmq.protocol.record import Record, unpack_all
from txmq.protocol.topics import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq.testing import Loss, MemoryDisk, PowerCut, SeededEntropy, World
from txmq_broker.config import BrokerSettings
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.message_store import MessageStore

__all__ = ["Auditor", "recover_in_several_ways", "shape_of"]

ANSWER_S = 10.0

FAR_MS = 1 << 60
"""A time at which everything is due."""

ROUTE_TRIES = 60
"""So many seconds are enough for a broker to register again, which it does every 30."""


class Auditor:
    """Reads everything, from a machine of its own that nothing ever happens to."""

    def __init__(self, world: World, history: History, names: str) -> None:
        self._machine = world.machine("auditor")
        self._world = world
        self._history = history
        self._names = names

    async def audit(self, node: BrokerNode, queues: Iterable[Queue]) -> bool:
        """Read some queues of a broker from end to end; false where it does not answer.

        The queues must be all the broker has, or the history would say that messages are gone.
        """
        began = self._world.now()
        pool = ConnectionPool(self._machine.network, self._machine.clock)
        found: dict[Queue, tuple[Copy, ...]] = {}
        try:
            connection = await pool.connection(node.address)
            for queue in queues:
                found[queue] = await _read(connection, queue)
        except TransportError:
            return False
        finally:
            await pool.close()
        digest = 0
        for copies in found.values():
            for copy in copies:
                digest = zlib.crc32(f"{copy}".encode() + copy.body, digest)
        now = self._world.now()
        self._history.add(Audited(now, node.name, began, found, digest))
        return True

    async def audit_transactions(self, node: BrokerNode) -> bool:
        """Ask a broker for all it knows of transactions; false where it does not answer."""
        began = self._world.now()
        pool = ConnectionPool(self._machine.network, self._machine.clock)
        name = node.name
        try:
            connection = await pool.connection(node.address)
            listed = await open_transactions(connection)
            parked = await open_transactions(connection, "parked")
            # Whatever is decided between: each later read finds all that earlier ones name.
            markers = await _read_records(connection, OP_TOPIC)
            copies = await _read_records(connection, PARKED_TOPIC)
            halves = await _read_records(connection, HALF_TOPIC)
        except (TransportError, BrokerRefused):
            return False
        finally:
            await pool.close()
        now = self._world.now()
        told = (
            {
                item.transaction_id: Standing(
                    item.half_offset, item.commit_log_offset, item.state == "parked"
                )
                for item in listed
            },
            tuple(item.transaction_id for item in parked),
            tuple(copy_of(received(item, name)) for item in halves),
            tuple(Marker(int(item.body), item.property_map()["TXMQ_DECISION"]) for item in markers),
            tuple(item.property_map()["UNIQ_KEY"] for item in copies),
        )
        digest = zlib.crc32(f"{told}".encode())
        self._history.add(OpenAudited(now, name, began, *told, digest))
        return True

    async def undecided(self, node: BrokerNode) -> int:
        """How many transactions of a broker are open and not parked; asks until it answers."""
        pool = ConnectionPool(self._machine.network, self._machine.clock)
        try:
            while True:
                try:
                    connection = await pool.connection(node.address)
                    found = await open_transactions(connection)
                    return sum(transaction.state != "parked" for transaction in found)
                except (TransportError, BrokerRefused):
                    await asyncio.sleep(0.5)
        finally:
            await pool.close()

    async def ends(self, node: BrokerNode, queues: Iterable[Queue]) -> list[tuple[Queue, int]]:
        """Where the queues of a broker end now; asks until it answers."""
        pool = ConnectionPool(self._machine.network, self._machine.clock)
        try:
            while True:
                try:
                    connection = await pool.connection(node.address)
                    return [(queue, await _end(connection, queue)) for queue in queues]
                except TransportError:
                    await asyncio.sleep(0.5)
        finally:
            await pool.close()

    async def note_places(self, group: str, node: BrokerNode, queues: Iterable[Queue]) -> None:
        """Note where a group would begin now."""
        async for queue, offset in self.places(group, node, queues):
            self._history.add(Began(self._world.now(), group, queue, offset))

    async def places(
        self, group: str, node: BrokerNode, queues: Iterable[Queue]
    ) -> AsyncIterator[tuple[Queue, int]]:
        """Where a group would begin now."""
        pool = ConnectionPool(self._machine.network, self._machine.clock)
        try:
            connection = await pool.connection(node.address)
            for queue in queues:
                query = OffsetQuery(group, queue.topic, queue.number, set_zero_if_not_found=True)
                answer = await connection.request(
                    RequestCode.QUERY_CONSUMER_OFFSET, query, timeout_s=ANSWER_S
                )
                yield queue, answer.read(OffsetAnswer).offset
        finally:
            await pool.close()

    async def look_up(self, acknowledged: Iterable[Acknowledged], *, by_id: bool = True) -> None:
        """Look for some acknowledged messages by key, and by offset id.

        Args:
            acknowledged: The messages.
            by_id: Whether the broker that an offset id names has them.
        """
        machine = self._machine
        async with Session(
            self._names, machine.network, machine.clock, machine.entropy, answer_s=ANSWER_S
        ) as session:
            for promise in acknowledged:
                name = mark(promise.send, promise.attempt, 0)
                if by_id:
                    await self._view(session, promise, name)
                await self._look_up(session, promise, name)

    async def _view(self, session: Session, promise: Acknowledged, name: str) -> None:
        offset_id = promise.offset_ids[0]
        viewed = None
        with suppress(NotFound):
            viewed = copy_of(await Admin(session).view(offset_id))
        now = self._world.now()
        self._history.add(Found(now, "offset id", name, offset_id, viewed))

    async def _look_up(self, session: Session, promise: Acknowledged, name: str) -> None:
        offset_id = promise.offset_ids[0]
        by_key = await self._find(session, promise, name)
        self._history.add(Found(self._world.now(), "key", name, offset_id, by_key))

    async def _find(self, session: Session, promise: Acknowledged, name: str) -> Copy | None:
        """Search by key; again where a name server has yet to learn of the broker or its leader."""
        topic = promise.queue.topic
        for _ in range(ROUTE_TRIES):
            with suppress(TopicNotFound, ServiceUnavailable):
                for message in await Admin(session).query(topic, promise.send):
                    copy = copy_of(message)
                    if copy.mark == name:
                        return copy
            session.forget(topic)
            await asyncio.sleep(1)
        return None


async def _end(connection: Connection, queue: Queue) -> int:
    header = QueueHeader(queue.topic, queue.number)
    try:
        answer = await connection.request(RequestCode.GET_MAX_OFFSET, header, timeout_s=ANSWER_S)
    except TopicNotFound:
        return 0
    return answer.read(OffsetAnswer).offset


async def _read(connection: Connection, queue: Queue) -> tuple[Copy, ...]:
    found = await _read_records(connection, queue.topic, queue.number)
    return tuple(copy_of(received(message, queue.broker)) for message in found)


async def _read_records(connection: Connection, topic: str, number: int = 0) -> list[Record]:
    end = await _end(connection, Queue(topic, "", number))
    found: list[Record] = []
    while len(found) < end:
        pull = PullMessage(
            consumer_group="AUDIT",
            topic=topic,
            queue_id=number,
            queue_offset=found[-1].queue_offset + 1 if found else 0,
            max_msg_nums=32,
            sys_flag=int(PullFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            dead_letters=True,
        )
        answer = await connection.ask(RequestCode.PULL_MESSAGE, pull, timeout_s=ANSWER_S)
        if answer.code != SUCCESS:
            break
        found += unpack_all(answer.body)
    return found


# Disks after a crash


def recover_in_several_ways(
    node: BrokerNode,
    history: History,
    entropy: SeededEntropy,
    topics: Iterable[str],
    *,
    lost_power: bool,
) -> None:
    """Recover copies of a broker's disk and note what came of it; the disk itself is left alone.

    Args:
        node: The broker, which does not run.
        history: Where to note it.
        entropy: Decides when the power goes once more.
        topics: All topics there may be.
        lost_power: Whether it lost its power before. Otherwise there may be bytes that only the
            next power cut takes, and it must not come now.
    """
    disk, settings, topics = node.disk.clone(), node.settings, tuple(topics)
    disk.repair()
    disk.capacity = None
    first = disk.clone()
    once = shape_of(first, settings, topics)
    others = {AGAIN: shape_of(first, settings, topics)}

    bare = disk.clone()
    for name in bare.names("index"):
        bare.remove(f"index/{name}")
    others["without indexes"] = shape_of(bare, settings, topics)

    if lost_power:
        cut = disk.clone()
        wire = Tripwire(cut)
        wire.before(1 + entropy.below(6), _go_dark)
        with suppress(PowerCut):
            shape_of(cut, settings, topics)
        wire.clear()
        cut.crash(entropy, Loss.ANY)
        others["after a second power cut"] = shape_of(cut, settings, topics)
    history.add(Recovered(node.world.now(), node.name, once, others))


def shape_of(disk: MemoryDisk, settings: BrokerSettings, topics: Iterable[str]) -> Shape:
    """Open a store as a broker does, look at it, and let go as ``kill -9`` does."""
    store = MessageStore(disk, settings.store)
    try:
        store.take(SeededEntropy(1))
        recovery = store.open(Keeper(disk).floors().floors)
        queues = {
            (topic, queue.number): (
                queue.min_offset,
                queue.max_offset,
                _checksum(queue),
            )
            for topic in topics
            for queue in store.queues_of(topic)
            if queue.max_offset
        }
        pending = store.halves.pending
        halves = [pending.find(key) for key in pending]
        is_open = {half.offset: half.is_parked for half in halves if half is not None}
        waiting = _waiting(store.delays)
    finally:
        store.close()
    log = {name: (len(data), zlib.crc32(data)) for name, data in _files(disk)}
    return Shape(log, queues, recovery.cut_bytes, is_open, waiting)


def _waiting(delays: DelayStore) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    while (due := delays.first(FAR_MS)) is not None:
        found[due.line, due.offset] = due.due_ms
        delays.pass_over()
    return found


def _checksum(queue) -> int:
    checksum, at = 0, queue.min_offset
    while entries := queue.read(at, 1000):
        for entry in entries:
            checksum = zlib.crc32(f"{tuple(entry)}".encode(), checksum)
        at += len(entries)
    return checksum


def _files(disk: MemoryDisk):
    for name in disk.names("log"):
        file = disk.open(f"log/{name}")
        yield name, file.read(0, file.size())
        file.close()


def _go_dark() -> None:
    raise PowerCut
