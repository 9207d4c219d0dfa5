"""Whole runs of the client: a cluster, a time of trouble, a calm end, and the judgement."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from tests.simulation.checkers import commits, consumed, farewell, forward, in_turn
from tests.simulation.client_history import Handled, Left, Sent
from tests.simulation.client_mix import ClientMix
from tests.simulation.client_stage import ClientStage
from tests.simulation.history import ClientDown, Down, History
from tests.simulation.nemesis import Nemesis
from tests.simulation.runs import Run, check, played
from txmq.testing import World

__all__ = ["CLIENT_CHECKERS", "run_client_seed"]

CLIENT_CHECKERS = (consumed, commits, in_turn, forward, farewell)


class Outcome(NamedTuple):
    """What a run amounted to."""

    seconds: float
    sent: int
    handled: int
    failed: int
    ends: int
    crashes: int
    farewells: int

    @classmethod
    def of(cls, history: History, seconds: float) -> Outcome:
        """The figures of a history."""
        handled = [event for event in history.events if isinstance(event, Handled)]
        return cls(
            seconds,
            history.count(Sent),
            len(handled),
            sum(not event.is_done for event in handled),
            history.count(Down),
            history.count(ClientDown),
            history.count(Left),
        )


async def live_through(
    world: World, mix: ClientMix, checkers: Sequence[ModuleType] = CLIENT_CHECKERS
) -> Outcome:
    """One whole run; the scenario of every seed."""
    stage = ClientStage(world, mix)
    await stage.open()
    stage.people()
    await Nemesis(stage).torment()
    await stage.bury()
    stage.calm()
    await stage.settle()
    await stage.close()
    check(stage.history, checkers)
    return Outcome.of(stage.history, world.now())


def run_client_seed(
    seed: int,
    mix: ClientMix | None = None,
    *,
    keep_trace: bool = False,
    checkers: Sequence[ModuleType] = CLIENT_CHECKERS,
) -> Run:
    """Run a seed with the mix it draws, or another.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    mix = mix or ClientMix.with_clients(seed)
    world = World(seed, scenario="clients", conditions=mix.conditions, keep_trace=keep_trace)
    return played(world, live_through(world, mix, checkers), keep_trace=keep_trace)
