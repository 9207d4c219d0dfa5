"""Run a scenario from its seed, and run it again to check that both runs are equal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from txmq.testing.failures import NotRepeatableError
from txmq.testing.trace import Trace
from txmq.testing.wire import Conditions
from txmq.testing.world import World

__all__ = ["simulate"]

T = TypeVar("T")


def simulate(
    scenario: Callable[[World], Coroutine[Any, Any, T]],
    seed: int,
    *,
    timeout: float = 3600.0,
    conditions: Conditions | None = None,
    twice: bool = False,
) -> T:
    """Run a scenario in a new world.

    Args:
        scenario: An async function of the world.
        seed: Decides all random choices.
        timeout: The maximum of virtual seconds.
        conditions: The quality of the network.
        twice: Run it again and compare.

    Raises:
        NotRepeatableError: The second run went another way than the first.
        SimulationError: The run failed; see :meth:`World.run`.
    """

    def once(*, keep_trace: bool) -> tuple[T, Trace]:
        name = getattr(scenario, "__qualname__", "")
        world = World(seed, scenario=name, conditions=conditions, keep_trace=keep_trace)
        return world.run(scenario(world), timeout=timeout), world.trace

    result, first = once(keep_trace=twice)
    if twice:
        _, second = once(keep_trace=True)
        difference = first.difference(second)
        if difference is not None:
            raise NotRepeatableError(f"seed {seed}: {difference}")
    return result
