"""Whole runs in which messages come later and come again: trouble, a calm end, the judgement."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from tests.simulation.checkers import (
    commits,
    delays,
    farewell,
    forward,
    in_turn,
    recovery,
    retries,
)
from tests.simulation.client_history import Handled
from tests.simulation.delivery_history import DONE, Recalled, Shelf, Waits
from tests.simulation.delivery_mix import DeliveryMix
from tests.simulation.delivery_stage import ClockNemesis, DeliveryStage
from tests.simulation.history import ClientDown, Down, History, Recovered
from tests.simulation.runs import Run, check, played
from txmq.protocol.topics import DLQ, RETRY
from txmq.testing import World

__all__ = ["DELIVERY_CHECKERS", "run_delivery_seed"]

DELIVERY_CHECKERS = (delays, retries, forward, commits, in_turn, farewell, recovery)


class Outcome(NamedTuple):
    """What a run amounted to."""

    seconds: float
    waited: int
    recalled: int
    handled: int
    failed: int
    again: int
    """Copies that came again by a retry topic."""
    dead: int
    ends: int
    crashes: int
    recoveries: int

    @classmethod
    def of(cls, history: History, seconds: float) -> Outcome:
        """The figures of a history."""
        events = history.events
        handled = [event for event in events if isinstance(event, Handled)]
        shelves = [event for event in events if isinstance(event, Shelf)]

        def lie_in(mark: str) -> int:
            return sum(len(event.kept) for event in shelves if event.queue.topic.startswith(mark))

        return cls(
            seconds,
            history.count(Waits),
            sum(isinstance(event, Recalled) and event.answer == DONE for event in events),
            len(handled),
            sum(not event.is_done for event in handled),
            lie_in(RETRY),
            lie_in(DLQ),
            history.count(Down),
            history.count(ClientDown),
            history.count(Recovered),
        )


async def live_through(
    world: World, mix: DeliveryMix, checkers: Sequence[ModuleType] = DELIVERY_CHECKERS
) -> Outcome:
    """One whole run; the scenario of every seed."""
    stage = DeliveryStage(world, mix)
    await stage.open()
    stage.people()
    await ClockNemesis(stage).torment()
    stage.calm()
    await stage.settle()
    await stage.close()
    check(stage.history, checkers)
    return Outcome.of(stage.history, world.now())


def run_delivery_seed(
    seed: int,
    mix: DeliveryMix | None = None,
    *,
    keep_trace: bool = False,
    checkers: Sequence[ModuleType] = DELIVERY_CHECKERS,
) -> Run:
    """Run a seed with the mix it draws, or another.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    mix = mix or DeliveryMix.with_deliveries(seed)
    world = World(seed, scenario="deliveries", conditions=mix.conditions, keep_trace=keep_trace)
    return played(world, live_through(world, mix, checkers), keep_trace=keep_trace)
