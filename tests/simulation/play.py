"""A stage for one named scenario: the same cluster, consumers and checkers, and a sender by
hand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Self

from tests.simulation.history import Acknowledged, ClientDown, Event, Refused
from tests.simulation.mix import Mix, kib
from tests.simulation.node import BrokerNode
from tests.simulation.runs import CHECKERS, check
from tests.simulation.stage import Stage
from tests.simulation.workload import Producer, Send
from tests.soak import IS_SOAK
from txmq.client import Admin, Session
from txmq.message import Queue
from txmq.testing import Conditions, World, simulate

__all__ = ["Play", "play"]

QUIET = Mix(
    producers=0,
    queues=1,
    body_max=200,
    hold_s=5.0,
    sync_s=(0.001, 0.002),
    checkpoint=kib(1024),
    conditions=Conditions(spike_chance=0.0),
)
"""A small cluster in which nothing happens by itself."""


class Play:
    """A running cluster with a consumer, and somebody who sends what the scenario says."""

    def __init__(self, world: World, mix: Mix, checkers: Sequence[ModuleType]) -> None:
        self.world = world
        self._checkers = checkers
        self.stage = Stage(world, mix)
        self.history = self.stage.history
        self.broker: BrokerNode = self.stage.brokers[0]
        self.queue: Queue = self.stage.queues()[0]
        self.sender = Producer(
            world, "sender", self.stage.names_text, mix, self.history, self.stage.queues()
        )

    async def __aenter__(self) -> Self:
        await self.stage.open()
        self.stage.people()
        machine = self.sender.machine
        ports = (machine.network, machine.clock, machine.entropy)
        self.session = await Session(self.stage.names_text, *ports).__aenter__()
        self.admin = Admin(self.session)
        return self

    async def __aexit__(self, kind, problem, trace) -> None:
        if kind is None:
            # Sends that a scenario gave up are no failure.
            self.history.add(ClientDown(self.world.now(), self.sender.name))
            self.stage.calm()
            await self.stage.settle()
            await self.session.__aexit__(None, None, None)
            await self.stage.close()
            check(self.history, self._checkers)

    def compose(self, count: int = 1, queue: Queue | None = None, topic: str = "") -> Send:
        """A message, or a batch of several."""
        if not topic:
            queue = queue or self.queue
            topic = queue.topic
        return self.sender.compose(self.session, topic, queue, count, is_batch=count > 1)

    async def attempt(self, send: Send | None = None, number: int = 0) -> Event:
        """Send once and return how that ended."""
        send = send or self.compose()
        await self.sender.attempt(self.admin, send, number)
        for event in reversed(self.history.events):
            if isinstance(event, Acknowledged | Refused) and event.send == send.name:
                return event
        raise AssertionError("an attempt ends in one way or the other")

    async def deliver(self, send: Send | None = None, attempt: int = 0) -> None:
        """Send until it is acknowledged; attempts made before are not counted again."""
        await self.sender.deliver(self.session, send or self.compose(), attempt)

    async def back(self) -> None:
        """Start the broker again and wait until it serves."""
        self.broker.start()
        await self.stage.served(self.broker, within_s=30.0)
        assert self.broker.is_serving

    async def stored(self, send: Send) -> int:
        """The number of messages of a send in its queue, from any attempt."""
        await self.stage.auditor.audit(self.broker, self.stage.queues_of(self.broker))
        copies = self.history.events[-1].queues[send.queue]
        return sum(copy.mark.startswith(f"{send.name}#") for copy in copies)

    async def marks(self) -> list[str]:
        """What the queue holds, from its beginning to its end."""
        await self.stage.auditor.audit(self.broker, [self.queue])
        return [copy.mark for copy in self.history.events[-1].queues[self.queue]]

    def seen(self, kind: type[Event]) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.history.events if isinstance(event, kind)]


def play(
    act: Callable[[Play], Awaitable[None]],
    *,
    seeds: int = 3,
    checkers: Sequence[ModuleType] = CHECKERS,
    **dials: object,
) -> None:
    """Play a scenario with some seeds, the first twice, and have the checkers look at it.

    In a soak, each seed is played twice.

    Args:
        act: What happens.
        seeds: How many.
        checkers: Those whose promises hold in it.
        dials: How the cluster differs from a quiet one.
    """
    mix = QUIET.but(**dials)

    async def scenario(world: World) -> None:
        async with Play(world, mix, checkers) as running:
            await act(running)

    scenario.__qualname__ = getattr(act, "__qualname__", "play")
    for seed in range(seeds):
        simulate(scenario, seed, conditions=mix.conditions, twice=IS_SOAK or seed == 0)
