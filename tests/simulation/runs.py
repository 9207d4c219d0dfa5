"""Whole runs: a cluster, a time of trouble, a calm end, and the judgement of every checker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.simulation.checkers import (
    acknowledged,
    decisions,
    kept,
    linearizable,
    liveness,
    order,
    recovery,
    undecided,
    visible,
)
from tests.simulation.history import (
    Acknowledged,
    Asked,
    Audited,
    Decided,
    Down,
    EndAnswered,
    Event,
    HalfTaken,
    History,
    OpenAudited,
    Pulled,
    Recovered,
    WrongEnd,
)
from tests.simulation.mix import Mix
from tests.simulation.nemesis import Nemesis
from tests.simulation.stage import Stage
from txmq.testing import Trace, World
from txmq_broker.services import keeper

__all__ = ["CHECKERS", "MIXES", "TAIL", "Outcome", "Run", "check", "live_through", "run_seed"]

TAIL = 60
"""So many events of a trace are worth showing."""

COMPLAINTS = 20
"""So many complaints are worth showing."""

CHECKERS = (
    acknowledged,
    order,
    recovery,
    liveness,
    visible,
    kept,
    undecided,
    decisions,
    linearizable,
)

MIXES: Mapping[str, Callable[[int], Mix]] = {
    "messages": Mix.of,
    "transactions": Mix.with_transactions,
}
"""How a seed draws what it is about, by the kind of run."""


class Outcome(NamedTuple):
    """What a run amounted to."""

    seconds: float
    acknowledged: int
    pulled: int
    ends: int
    audits: int
    recoveries: int
    transactions: int
    committed: int
    overtaken: int
    """Decided by a check before the local transaction had come to its end."""
    checks: int
    parked: int
    conflicts: int
    wrong: int

    @classmethod
    def of(cls, history: History, seconds: float) -> Outcome:
        """The figures of a history."""
        events = history.events
        return cls(
            seconds,
            sum(len(event.offset_ids) for event in events if isinstance(event, Acknowledged)),
            sum(len(event.copies) for event in events if isinstance(event, Pulled)),
            history.count(Down),
            history.count(Audited),
            history.count(Recovered),
            len({event.xid for event in events if isinstance(event, HalfTaken)}),
            sum(event.committed for event in events if isinstance(event, Decided)),
            sum(event.by == "check" for event in events if isinstance(event, Decided)),
            history.count(Asked),
            sum(len(event.parked) for event in _last_looks(events)),
            sum(event.code in (200, 201) for event in events if isinstance(event, EndAnswered)),
            history.count(WrongEnd),
        )


def _last_looks(events: Sequence[Event]) -> Iterable[OpenAudited]:
    return {event.broker: event for event in events if isinstance(event, OpenAudited)}.values()


def check(history: History, checkers: Sequence[ModuleType] = CHECKERS) -> None:
    """Have every checker look at a history.

    Raises:
        AssertionError: One of them complains.
    """
    found = [
        f"{checker.__name__.rpartition('.')[2]}: {complaint}"
        for checker in checkers
        for complaint in checker.broken(history.events)
    ]
    if found:
        left = len(found) - COMPLAINTS
        more = [f"and {left} more"] if left > 0 else []
        raise AssertionError("\n  ".join(("broken promises:", *found[:COMPLAINTS], *more)))


async def live_through(
    world: World, mix: Mix, checkers: Sequence[ModuleType] = CHECKERS
) -> Outcome:
    """One whole run; the scenario of every seed."""
    stage = Stage(world, mix)
    await stage.open()
    stage.people()
    await Nemesis(stage).torment()
    stage.calm()
    await stage.settle()
    await stage.close()
    check(stage.history, checkers)
    return Outcome.of(stage.history, world.now())


class Run(NamedTuple):
    """What came of a seed, and the way it went."""

    outcome: Outcome
    trace: Trace


@contextlib.contextmanager
def few_topics_are_many(seed: int) -> Iterator[None]:
    """In every second seed a few topics are written as 100,000 are."""
    with pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(keeper, "_MANY_TOPICS", 1)
            patch.setattr(keeper, "_CHANGES_MAX", 0)
        yield


def played(world: World, main: Coroutine[Any, Any, Any], *, keep_trace: bool) -> Run:
    """Run a seed's scenario in its world; a failure carries what happened last, where it is kept.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    try:
        with few_topics_are_many(world.seed):
            return Run(world.run(main), world.trace)
    except BaseException as error:
        if keep_trace:
            error.add_note("\n".join(("the last it saw:", *world.trace.events[-TAIL:])))
        raise


def run_seed(
    seed: int,
    mix: Mix | None = None,
    *,
    keep_trace: bool = False,
    checkers: Sequence[ModuleType] = CHECKERS,
) -> Run:
    """Run a seed with the mix it draws, or another.

    Args:
        seed: The seed.
        mix: What it is about, where that is not drawn.
        keep_trace: Whether the trace keeps its events; a failure then carries the last of them.
        checkers: Who judges it.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    mix = mix or Mix.of(seed)
    name = live_through.__name__
    world = World(seed, scenario=name, conditions=mix.conditions, keep_trace=keep_trace)
    return played(world, live_through(world, mix, checkers), keep_trace=keep_trace)
