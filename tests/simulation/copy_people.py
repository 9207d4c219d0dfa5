"""Clients of a broker set: they look for the leader again after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.simulation.copy_history import FollowerRead, LeaderAnswered
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_node import MemberNode, SetNode
from tests.simulation.history import ClientDown, History
from tests.simulation.transactor import Transactor
from tests.simulation.workload import TROUBLE, Client, Producer, copy_of
from txmq.client import Admin, Session
from txmq.client.received_message import opened
from txmq.errors import BrokerRefused, TransportError
from txmq.message import Queue
from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.codes import PullFlag, RequestCode
from txmq.protocol.headers import PullAnswer, PullMessage
from txmq.protocol.record import unpack_all
from txmq.testing import World

__all__ = ["FollowerReader", "LeaderProbe", "Pulse", "SetTransactor"]

PATIENCE_S = 20.0
"""How long an answer of a member may take; longer than a pause."""


class LeaderProbe(Client):
    """Asks every member again and again, whether it leads or not."""

    mix: CopyMix

    def __init__(
        self,
        world: World,
        names: str,
        mix: CopyMix,
        history: History,
        members: Sequence[MemberNode],
    ) -> None:
        super().__init__(world, "probe", names, mix, history)
        self._members = members

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                for member in self._members:
                    tasks.create_task(self._ask(session, member))
                await asyncio.sleep(self.mix.probe_s * (0.5 + self._draw.fraction()))

    async def _ask(self, session: Session, member: MemberNode) -> None:
        asked = self.now()
        try:
            await session.request(member.address, RequestCode.SHOW_COPIES, timeout_s=PATIENCE_S)
        except (TransportError, BrokerRefused):
            return  # Only followers refuse the request.
        self.history.add(LeaderAnswered(self.now(), member.name, asked))


class LeaderSession(Session):
    """Knows at once who leads, so that only the set decides how long a send takes to succeed."""

    set: SetNode

    async def address_of(self, queue: Queue) -> str:
        """The address of the leader."""
        return self.set.address


class Pulse(Producer):
    """Sends a small message to the leader again and again, so that it shows when sends work."""

    mix: CopyMix

    def __init__(
        self,
        world: World,
        names: str,
        mix: CopyMix,
        history: History,
        members: SetNode,
        queue: Queue,
    ) -> None:
        super().__init__(world, "pulse", names, mix, history, [queue])
        self._set = members

    def end(self) -> None:
        """Stop sending; the outcome of the last sends does not matter."""
        self.is_enough = True
        self.history.add(ClientDown(self.now(), self.name))

    async def _live(self) -> None:
        machine = self.machine
        ports = (machine.network, machine.clock, machine.entropy)
        async with LeaderSession(self._names, *ports) as session:
            session.set = self._set
            await self._work(session)

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self.is_enough:
                tasks.create_task(self._beat(session))
                await asyncio.sleep(self.mix.probe_s * (0.5 + self._draw.fraction()))

    async def _beat(self, session: Session) -> None:
        (queue,) = self._queues
        send = self.compose(session, queue.topic, queue, 1, is_batch=False)
        await self.attempt(Admin(session), send, 0)


class FollowerReader(Client):
    """Reads every queue again and again, from any member that does not lead."""

    mix: CopyMix

    def __init__(
        self,
        world: World,
        names: str,
        mix: CopyMix,
        history: History,
        members: Sequence[MemberNode],
        queues: Sequence[Queue],
    ) -> None:
        super().__init__(world, "reader", names, mix, history)
        self._members = members
        self._queues = queues

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            for queue in self._queues:
                tasks.create_task(self._read(session, queue))

    async def _read(self, session: Session, queue: Queue) -> None:
        offset = 0
        while True:
            member = self._members[self._draw.below(len(self._members))]
            try:
                offset = await self._pull(session, member, queue, offset)
            except TransportError:
                await self._pause()
            if self._draw.chance(0.05):
                offset = 0

    async def _pull(self, session: Session, member: MemberNode, queue: Queue, offset: int) -> int:
        if member.is_leading:
            await self._pause()
            return offset
        hold_ms = int(1000 * self.mix.hold_s * self._draw.fraction())
        flags = int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND)
        header = PullMessage(
            "readers", queue.topic, queue.number, offset, 32, flags, 0, hold_ms, 0, "*"
        )
        connection = await session.connection(member.address)
        answer = await connection.ask(RequestCode.PULL_MESSAGE, header, timeout_s=PATIENCE_S)
        if answer.code != 0 or member.is_leading:
            await self._pause()
            return offset
        copies = tuple(copy_of(opened(record, queue.broker)) for record in unpack_all(answer.body))
        self.history.add(FollowerRead(self.now(), member.name, queue, copies))
        return answer.read(PullAnswer).next_begin_offset


class SetTransactor(Transactor):
    """A transactional producer of a broker set."""

    async def _pause(self, attempt: int = 0) -> None:
        for queue in self._queues:
            self._session.forget(queue.topic)
        await super()._pause(attempt)

    async def _work(self, session: Session) -> None:
        self._session = session
        await super()._work(session)

    async def _beat(self, session: Session) -> None:
        client_id = f"{self.name}@{self._lives}"
        body = Heartbeat(client_id, [ProducerRegistration(self._ledger.group)]).write()
        while True:
            await self._awake.wait()
            with suppress(*TROUBLE):
                address = await session.address_of(self._queues[0])
                await session.request(address, RequestCode.HEART_BEAT, body=body)
            await asyncio.sleep(self.dials.beat_s)
