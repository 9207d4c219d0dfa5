"""A client that only looks: what state transactions are in, and where queues end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.simulation.history import EndShown, HalfSending, History, TransactionShown
from tests.simulation.mix import Mix
from tests.simulation.workload import TROUBLE, Client
from tests.traffic.linearizability import ABSENT
from txmq.client import Session
from txmq.errors import NotFound
from txmq.message import Queue
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import NamedTransaction, OffsetAnswer, QueueHeader
from txmq.protocol.operations import TransactionHistory
from txmq.testing import World

__all__ = ["Observer"]

PATIENCE_S = 20.0
"""How long an answer may take; longer than a pause of a broker."""

LATEST = 6
"""Most questions are about this many of the newest transactions, which are being decided."""


class Observer(Client):
    """Asks the broker at every address about one transaction after another, as `txmq tx show` does.

    Args:
        addresses: Those of all members of a set, whether they lead or not.
        queues: The queues whose ends it asks for.
    """

    def __init__(
        self,
        world: World,
        names: str,
        mix: Mix,
        history: History,
        addresses: Sequence[str],
        queues: Sequence[Queue],
        *,
        pause_s: float,
    ) -> None:
        super().__init__(world, "observer", names, mix, history)
        self._addresses = addresses
        self._queues = queues
        self._pause_s = pause_s
        self._xids: list[str] = []
        self._read = 0

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._pause_s * (0.5 + self._draw.fraction()))
                xid = self._drawn()
                for address in self._addresses:
                    if xid:
                        tasks.create_task(self._show(session, address, xid))
                    if self._queues:
                        queue = self._queues[self._draw.below(len(self._queues))]
                        tasks.create_task(self._find_end(session, address, queue))

    def _drawn(self) -> str:
        """A transaction that somebody began, mostly one of the newest; empty if none did."""
        events = self.history.events
        new = [event.xid for event in events[self._read :] if isinstance(event, HalfSending)]
        self._read = len(events)
        self._xids += dict.fromkeys(xid for xid in new if xid not in self._xids[-LATEST:])
        some = self._xids[-LATEST:] if self._draw.chance(0.8) else self._xids
        return some[self._draw.below(len(some))] if some else ""

    async def _show(self, session: Session, address: str, xid: str) -> None:
        asked = self.now()
        try:
            code, header = RequestCode.SHOW_TRANSACTION_HISTORY, NamedTransaction(xid)
            answer = await session.request(address, code, header, timeout_s=PATIENCE_S)
        except NotFound:
            state = ABSENT
        except TROUBLE:
            return
        else:
            shown = TransactionHistory.read(answer.field_map()["history"].encode())
            state = shown.transaction.state
        self.history.add(TransactionShown(self.now(), address, asked, xid, state))

    async def _find_end(self, session: Session, address: str, queue: Queue) -> None:
        asked = self.now()
        try:
            code, header = RequestCode.GET_MAX_OFFSET, QueueHeader(queue.topic, queue.number)
            answer = await session.request(address, code, header, timeout_s=PATIENCE_S)
        except TROUBLE:
            return
        offset = answer.read(OffsetAnswer).offset
        self.history.add(EndShown(self.now(), address, asked, queue, offset))
