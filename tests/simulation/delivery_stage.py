"""A cluster whose messages come later and come again, from the first start to what is left."""

from __future__ import annotations

import asyncio

from tests.simulation.client_history import Handled, Sent
from tests.simulation.client_stage import ClientStage
from tests.simulation.delivery_history import (
    DONE,
    ClockSet,
    Kept,
    Recalling,
    Returned,
    Rules,
    Shelf,
    Waits,
    Writing,
)
from tests.simulation.delivery_mix import DeliveryMix
from tests.simulation.delivery_people import PatientSender, TryingMember
from tests.simulation.nemesis import Nemesis
from tests.simulation.node import BrokerNode
from txmq.client import Admin
from txmq.errors import TopicNotFound, TxmqError
from txmq.message import Queue, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.topics import DLQ, RETRY, WAITING_TOPICS
from txmq.testing import SeededEntropy
from txmq.testing.machine import EPOCH_MS

__all__ = ["ClockNemesis", "DeliveryStage"]

JUMPS_S = (0.3, 3.0, 30.0, 600.0)
"""How far a clock is set, at most."""


class DeliveryStage(ClientStage):
    """A cluster with people who send for later, and groups whose handlers fail."""

    mix: DeliveryMix
    sender = PatientSender
    member = TryingMember

    async def open(self) -> None:
        """Start the cluster and record its delivery rules."""
        settings = self.brokers[0].settings
        rules = (settings.delay.levels_ms(), self.mix.attempts_max, self.mix.timeout_s)
        self.history.add(Rules(self.world.now(), *rules))
        for node in self.brokers:
            self.set_clock(node, 0.0)
        await super().open()

    def set_clock(self, node: BrokerNode, seconds: float, rate: float = 1.0) -> None:
        """Set a broker's clock, and tell the history."""
        clock = node.machine.clock
        before = clock.wall_ms()
        clock.jump(seconds)
        clock.drift(rate - 1.0)
        self.history.add(ClockSet(self.world.now(), node.name, before, clock.wall_ms(), rate))

    def calm(self) -> None:
        """Stop all faults, and set clocks forward that are behind what they showed before."""
        super().calm()
        for member in self.members:
            member.is_settled = True
        for node in self.brokers:
            shown = [
                event.before_ms
                for event in self.history.events
                if isinstance(event, ClockSet) and event.broker == node.name
            ]
            right = EPOCH_MS + int(1000 * self.world.now())
            behind = max(right, *shown) - node.machine.clock.wall_ms()
            self.set_clock(node, max(0, behind) / 1000)

    def stored_topics(self) -> tuple[str, ...]:
        """All topics that a broker's disk may hold."""
        return (*super().stored_topics(), *WAITING_TOPICS, *self._topics_of_groups())

    def _topics_of_groups(self) -> list[str]:
        return [
            f"{mark}group-{number}"
            for number in range(len(self.mix.consuming))
            for mark in (RETRY, DLQ)
        ]

    # The end

    def _is_all_handled(self) -> bool:
        events = self.history.events
        recalled = {event.key for event in events if isinstance(event, Recalling)}
        tags = {event.key: event.tags for event in events if isinstance(event, Writing)}
        wanted = {event.key for event in events if isinstance(event, Sent | Waits)} - recalled
        ended = {
            (event.group, event.key)
            for event in events
            if (isinstance(event, Handled) and event.is_done)
            or (isinstance(event, Returned) and self._is_last(event))
        }
        return all(
            (f"group-{number}", key) in ended
            for number, dials in enumerate(self.mix.consuming)
            for key in wanted
            if dials.tags in {"*", tags[key]}
        )

    def _is_last(self, event: Returned) -> bool:
        """Whether the message can only be a dead letter now."""
        is_over = event.level < 0 or event.attempts >= self.mix.attempts_max
        return is_over and event.answer == DONE

    async def _look_at_last(self, admin: Admin) -> None:
        await super()._look_at_last(admin)
        for topic in (*self.topics, *WAITING_TOPICS, *self._topics_of_groups()):
            for queue in await self._queues_of_topic(admin, topic):
                self.history.add(Shelf(self.world.now(), queue, await self._kept(admin, queue)))

    async def _queues_of_topic(self, admin: Admin, topic: str) -> list[Queue]:
        while True:
            try:
                return sorted((await admin.route(topic)).queues_to_read)
            except TopicNotFound:
                return []
            except TxmqError:
                await asyncio.sleep(0.5)

    async def _kept(self, admin: Admin, queue: Queue) -> tuple[Kept, ...]:
        kept: list[Kept] = []
        while True:
            try:
                pulled = await admin.pull(queue, len(kept))
            except TxmqError:
                await asyncio.sleep(0.5)
                continue
            if not pulled.messages:
                return tuple(kept)
            kept += [_kept(message) for message in pulled.messages]


def _kept(message: ReceivedMessage) -> Kept:
    told = message.properties.get
    return Kept(
        int(message.offset),
        int(message.position),
        message.key,
        message.id,
        message.attempts,
        message.stored_ms,
        told(properties.DEAD_REASON, ""),
        told(properties.DEAD_TOPIC, ""),
        told(properties.DEAD_ID, ""),
        told("TIMER_DEL_UNIQKEY", ""),
    )


class ClockNemesis(Nemesis):
    """Tells the history what it does to the clocks of brokers, on which all waiting depends."""

    _stage: DeliveryStage

    async def _clock_jump(self, draw: SeededEntropy) -> None:
        seconds = (2 * draw.fraction() - 1) * JUMPS_S[draw.below(len(JUMPS_S))]
        self._stage.set_clock(self._node(draw), seconds)

    async def _clock_drift(self, draw: SeededEntropy) -> None:
        node = self._node(draw)
        self._stage.set_clock(node, 0.0, 0.5 + draw.fraction())
        await asyncio.sleep(self._while(draw))
        self._stage.set_clock(node, 0.0)
