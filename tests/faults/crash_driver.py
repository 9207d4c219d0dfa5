"""A client of a broker that is about to die; it knows afterwards what the broker acknowledged.

The same for real processes and simulated ones. One life of the broker is: :meth:`Driver.verify`
what earlier lives have promised, and then :meth:`Driver.drive` it until it is gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.faults.crash_points import CHECK, DELIVER, PARK, RECALL, SAVE, WAIT
from tests.faults.delay_driver import Delays
from txmq.errors import TransportError
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.bodies import Heartbeat, ProducerRegistration, TransactionEntry
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import (
    EndTransaction,
    Header,
    NamedTransaction,
    PullMessage,
    SendMessage,
    TopicSettings,
)
from txmq.protocol.record import Record, split_offset_id
from txmq.remoting.connection import Connection
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import Clock
from txmq.runtime.network import Network

__all__ = ["Driver", "Peer", "connected"]

TOPIC, GROUP = "T", "P"
PARKED = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMITTED, ROLLED_BACK, UNKNOWN = 8, 12, 0
_CONTRARY = {COMMITTED: (ROLLED_BACK, 200), ROLLED_BACK: (COMMITTED, 201)}
_HALF = 4
_HOLD_S = 2.0
_CYCLES = 4
_LARGE = 40_000


class Peer:
    """One connection to the broker, and the checks that came over it."""

    def __init__(self) -> None:
        self.checks: asyncio.Queue[str] = asyncio.Queue()
        self.connection: Connection

    def serve(self, connection: Connection, request: Command) -> None:
        """Note what the broker asks."""
        del connection
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.checks.put_nowait(request.field_map()["transactionId"])

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Ask, and wait longer than a pull is held."""
        return await self.connection.ask(code, header, body=body, timeout_s=_HOLD_S + 3)

    async def beat(self) -> None:
        """Say that a producer is here."""
        beat = Heartbeat("driver", [ProducerRegistration(GROUP)], [])
        await self.ask(RequestCode.HEART_BEAT, body=beat.write())

    async def pull(self, topic: str, offset: int, *, hold: bool = False) -> list[Record]:
        """The records of a queue from an offset on."""
        flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold else 0)
        hold_ms = int(_HOLD_S * 1000) if hold else 0
        header = PullMessage("G", topic, 0, offset, 32, int(flags), 0, hold_ms, 0, "*")
        answer = await self.ask(RequestCode.PULL_MESSAGE, header)
        return list(records.unpack_all(answer.body)) if answer.code == 0 else []

    async def everything(self, topic: str, offset: int = 0) -> list[Record]:
        """All records of a queue, from an offset on."""
        records: list[Record] = []
        while batch := await self.pull(topic, offset + len(records)):
            records += batch
        return records


@asynccontextmanager
async def connected(network: Network, clock: Clock, address: str) -> AsyncIterator[Peer]:
    """A peer of the broker at an address."""
    peer = Peer()
    pool = ConnectionPool(network, clock, peer.serve)
    try:
        peer.connection = await pool.connection(address)
        yield peer
    finally:
        await pool.close()


@dataclass(slots=True)
class Known:
    """A transaction, and what the broker has acknowledged of it."""

    unique: str
    body: bytes
    place: tuple[int, int] | None = None
    asked: int | None = None
    told: int | None = None
    was_parked: bool = False


class Driver:
    """Prepares, ends, delays, pulls and answers checks, one after the other."""

    def __init__(self) -> None:
        self._count = 0
        self._fresh: list[Known] = []
        self._all: list[Known] = []
        self._consumed: dict[int, bytes] = {}
        self._visible: list[bytes] = []
        self._delays = Delays()

    # Until it is gone

    async def drive(self, peer: Peer, phase: str) -> bool:
        """Use the broker so that a phase comes again and again; return whether it is gone."""
        consuming = asyncio.create_task(self._consume(peer))
        working = asyncio.create_task(self._work(peer, phase))
        try:
            await asyncio.wait((consuming, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (consuming, working):
                task.cancel()
            ends = await asyncio.gather(consuming, working, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(
                end, (TransportError, asyncio.CancelledError)
            ):
                raise end
        return any(isinstance(end, TransportError) for end in ends)

    async def _work(self, peer: Peer, phase: str) -> None:
        if phase in (WAIT, DELIVER, RECALL):
            await self._delays.work(peer, phase)
            return
        await peer.beat()
        for _ in range(_CYCLES):
            if phase in (CHECK, PARK):
                await self._leave_open(peer)
                continue
            size = _LARGE if phase == SAVE else 100
            for what in (COMMITTED, ROLLED_BACK):
                known = self._new(size)
                await self._prepare(peer, known, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
                known.asked = what
                assert await self._end(peer, known, what) == 0
                known.told = what

    async def _leave_open(self, peer: Peer) -> None:
        """Say "unknown" until it is parked."""
        parked = len(await peer.everything(PARKED))
        known = self._new(100)
        await self._prepare(peer, known)
        while await peer.checks.get() != known.unique:
            continue
        assert await self._end(peer, known, UNKNOWN, is_check=True) == 0
        while not await peer.pull(PARKED, parked, hold=True):
            continue
        known.was_parked = True

    async def _consume(self, peer: Peer) -> None:
        offset = len(self._visible)
        while True:
            for record in await peer.pull(TOPIC, offset, hold=True):
                assert record.queue_offset == offset
                self._consumed[offset] = record.body
                offset += 1

    def _new(self, size: int) -> Known:
        self._count += 1
        unique = f"U{self._count}"
        known = Known(unique, unique.encode() + b"." * size)
        self._fresh.append(known)
        self._all.append(known)
        return known

    async def _prepare(self, peer: Peer, known: Known, **more: str) -> None:
        told = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": known.unique} | more
        text = properties.render(told)
        header = SendMessage(GROUP, TOPIC, "TBW102", 1, 0, _HALF, 0, 0, text, 0)
        answer = await peer.ask(RequestCode.SEND_MESSAGE, header, known.body)
        assert answer.code == 0, (known, answer.code, answer.remark)
        fields = answer.field_map()
        *_, position = split_offset_id(fields["msgId"])
        place = int(fields["queueOffset"]), position
        assert known.place in (None, place)
        known.place = place

    async def _end(self, peer: Peer, known: Known, what: int, *, is_check: bool = False) -> int:
        assert known.place is not None
        header = EndTransaction(GROUP, *known.place, what, is_check, known.unique, known.unique)
        return (await peer.ask(RequestCode.END_TRANSACTION, header)).code

    # When it is back

    async def verify(self, peer: Peer) -> None:
        """All that was acknowledged holds, and what was left open can be brought to its end."""
        settings = TopicSettings(TOPIC, "TBW102", 1, 1, 6)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, settings)).code == 0
        for known in self._fresh:
            await self._verify(peer, known)
        fresh = await peer.everything(TOPIC, len(self._visible))
        self._visible += [record.body for record in fresh]
        for offset, body in self._consumed.items():
            assert self._visible[offset] == body, "what a consumer was given is not there"
        count = Counter(self._visible)
        for known in self._fresh:
            assert count[known.body] == (known.told == COMMITTED), known
        await self._verify_parked(peer)
        await self._delays.verify(peer)
        self._fresh.clear()
        self._consumed.clear()

    async def _verify(self, peer: Peer, known: Known) -> None:
        was_acknowledged = known.place is not None
        state = await self._state(peer, known)
        if known.told is not None:
            assert state is None, known
        elif was_acknowledged and known.asked is None:
            assert state == "parked" if known.was_parked else state is not None, known
        if not was_acknowledged:
            await self._prepare(peer, known)  # A producer without an answer does the same.
        what = known.told or known.asked or (COMMITTED, ROLLED_BACK)[self._count % 2]
        contrary, code = _CONTRARY[what]
        for _ in range(2):
            assert await self._end(peer, known, what) == 0, known
            assert await self._end(peer, known, contrary) == code, known
        known.told = what

    async def _state(self, peer: Peer, known: Known) -> str | None:
        header = NamedTransaction(known.unique)
        answer = await peer.ask(RequestCode.SHOW_TRANSACTION, header)
        if answer.code != 0:
            assert answer.code == 22, (answer.code, answer.remark)
            return None
        return TransactionEntry.read(answer.field_map()["transaction"].encode()).state

    async def _verify_parked(self, peer: Peer) -> None:
        count = Counter([record.body for record in await peer.everything(PARKED)])
        assert all(number == 1 for number in count.values())
        for known in self._all:
            assert known.body in count or not known.was_parked, known

    async def verify_all(self, peer: Peer) -> None:
        """Verify everything that ever was, reading from the first message on."""
        await self.verify(peer)
        assert [record.body for record in await peer.everything(TOPIC)] == self._visible
        count = Counter(self._visible)
        for known in self._all:
            assert count[known.body] == (known.told == COMMITTED), known
        assert len(self._visible) == sum(known.told == COMMITTED for known in self._all)
        await self._delays.verify_all(peer)
