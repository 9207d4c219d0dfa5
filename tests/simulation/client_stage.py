"""A cluster and whole clients, from the first start to the last look at what was committed."""

from __future__ import annotations

import asyncio

from tests.simulation.client_history import Buried, Grouped, Handled, Sent, Standing
from tests.simulation.client_mix import ClientMix
from tests.simulation.client_people import Member, Sender
from tests.simulation.history import Ended
from tests.simulation.stage import SETTLE_S, Stage
from txmq.client import Admin, Session
from txmq.errors import TxmqError
from txmq.message import Queue
from txmq.testing import Loss, World

__all__ = ["ClientStage"]

QUIET_S = 25.0
"""So long must nobody handle anything until all is done: queues that change hands late, as a look
every 20 s brings it about, are begun with where a broker remembers it."""

LEAVE_S = 60.0
"""How long members are waited for in the end."""


class ClientStage(Stage):
    """A cluster with senders and members of groups."""

    mix: ClientMix
    sender = Sender
    member = Member

    def __init__(self, world: World, mix: ClientMix) -> None:
        super().__init__(world, mix)
        self.senders: list[Sender] = []
        self.members: list[Member] = []
        self._shown: dict[tuple[str, Queue], int] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def clients(self):
        """All clients that faults can hit."""
        return [*self.senders, *self.members]

    def people(self) -> None:
        """Start senders, members, and an observer of committed offsets."""
        args = (self.names_text, self.mix, self.history)
        self.senders = [
            self.sender(self.world, f"sender-{n}", *args) for n in range(self.mix.producers)
        ]
        for number, dials in enumerate(self.mix.consuming):
            group = f"group-{number}"
            done: set[str | tuple[Queue, int]] = set()
            self.history.add(Grouped(self.world.now(), group, dials.is_orderly, dials.tags))
            self.members += [
                self.member(self.world, f"member-{number}-{n}", *args, group, dials, done)
                for n in range(dials.members)
            ]
        for client in self.clients:
            client.start()
        self._looking = self.world.machine("onlooker").run(self._look_always(), name="onlooker")

    # Looking

    @property
    def _groups(self) -> list[str]:
        return [f"group-{number}" for number in range(len(self.mix.consuming))]

    async def _look_always(self) -> None:
        machine = self.world.machine("onlooker")
        ports = (machine.network, machine.clock, machine.entropy)
        async with Session(self.names_text, *ports) as session:
            while True:
                await asyncio.sleep(self.mix.look_s)
                await self._look(Admin(session))

    async def _look(self, admin: Admin, *, is_last: bool = False) -> None:
        for group in self._groups:
            for queue in self.queues():
                offset = await self._ask(admin, group, queue, is_last)
                event = Standing(self.world.now(), group, queue, offset, is_last)
                self.history.add(event)
                self._shown[group, queue] = offset or 0

    async def _look_at_last(self, admin: Admin) -> None:
        await self._look(admin, is_last=True)

    async def _ask(self, admin: Admin, group: str, queue: Queue, is_last: bool) -> int | None:
        while True:
            try:
                offset = await admin.committed_offset(group, queue)
            except TxmqError:
                if not is_last:
                    return None
                await asyncio.sleep(0.5)
            else:
                return None if offset is None else int(offset)

    # The end

    async def bury(self) -> None:
        """Remove one broker for good."""
        if self.mix.is_bereft:
            node = self.brokers.pop()
            await node.crash(Loss.ANY)
            self.history.add(Buried(self.world.now(), node.name))

    async def settle(self) -> None:
        """Wait until everything has come to its end."""
        self._shown.clear()  # A broker may have lost offsets in a crash that it showed before.
        try:
            async with asyncio.timeout(SETTLE_S):
                for sender in self.senders:
                    await sender.done()
                while not (self._is_quiet() and self._is_all_handled() and self._is_committed()):
                    await asyncio.sleep(0.5)
        except TimeoutError:
            pass  # The checkers say what is missing.
        self.history.add(Ended(self.world.now()))

    def _is_quiet(self) -> bool:
        handled = (
            event.at for event in reversed(self.history.events) if isinstance(event, Handled)
        )
        return self.world.now() - next(handled, 0.0) > QUIET_S

    def _is_all_handled(self) -> bool:
        here = {node.name for node in self.brokers}
        sent = [event for event in self.history.events if isinstance(event, Sent)]
        return all(
            member.done_with & {event.key, (event.queue, event.offset)}
            for member in self.members
            for event in sent
            if event.queue.broker in here and member.dials.tags in {"*", event.tags}
        )

    def _is_committed(self) -> bool:
        here = {node.name for node in self.brokers}
        ends: dict[Queue, int] = {}
        for event in self.history.events:
            if isinstance(event, Sent) and event.queue.broker in here:
                ends[event.queue] = max(ends.get(event.queue, 0), event.offset + 1)
        return all(
            self._shown.get((f"group-{number}", queue), 0) >= end
            for number, _ in enumerate(self.mix.consuming)
            for queue, end in ends.items()
        )

    async def close(self) -> None:
        """Let all members leave in order, and look once more."""
        for member in self.members:
            member.is_over.set()
        async with asyncio.timeout(LEAVE_S):
            for member in self.members:
                await member.done()
        assert self._looking is not None
        self._looking.cancel()
        await asyncio.wait((self._looking,))
        machine = self.world.machine("operator")
        ports = (machine.network, machine.clock, machine.entropy)
        async with Session(self.names_text, *ports) as session:
            await self._look_at_last(Admin(session))
        for node in (*self.brokers, *self.names):
            await node.stop()
