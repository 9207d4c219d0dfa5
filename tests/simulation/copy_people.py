"""Clients of a broker set: they look for the leader again after each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.simulation.copy_history import LeaderAnswered
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_node import MemberNode
from tests.simulation.history import History
from tests.simulation.transactor import Transactor
from tests.simulation.workload import TROUBLE, Client
from txmq.client import Session
from txmq.errors import BrokerRefused, ServiceUnavailable, TransportError
from txmq.message import Queue
from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import QueueHeader
from txmq.testing import World

__all__ = ["LeaderProbe", "SetTransactor"]

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
        queue: Queue,
    ) -> None:
        super().__init__(world, "probe", names, mix, history)
        self._members = members
        self._queue = queue

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                for member in self._members:
                    tasks.create_task(self._ask(session, member))
                await asyncio.sleep(self.mix.probe_s * (0.5 + self._draw.fraction()))

    async def _ask(self, session: Session, member: MemberNode) -> None:
        asked = self.now()
        header = QueueHeader(self._queue.topic, self._queue.number)
        try:
            await session.request(
                member.address, RequestCode.GET_MAX_OFFSET, header, timeout_s=PATIENCE_S
            )
        except (TransportError, ServiceUnavailable):
            return  # Followers refuse it so: they serve no reads here.
        except BrokerRefused:
            pass  # A leader's refusal is an answer as well.
        self.history.add(LeaderAnswered(self.now(), member.name, asked))


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
