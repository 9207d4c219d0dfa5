"""Whole runs of a broker set: trouble, a calm end, and the judgement of every checker."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.simulation.checkers import (
    acknowledged,
    decisions,
    enough_copies,
    follower_reads,
    fresh_offsets,
    identical_logs,
    kept,
    leader_bound,
    linearizable,
    liveness,
    one_leader,
    removals,
    reused,
    undecided,
    visible,
    whole_copies,
    writable,
)
from tests.simulation.copy_damage import DamageNemesis
from tests.simulation.copy_history import (
    FollowerRead,
    Leading,
    LossAllowed,
    MemberLost,
    SetChanged,
)
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_stage import CopyStage
from tests.simulation.history import (
    Acknowledged,
    Decided,
    HalfTaken,
    History,
    Pulled,
)
from tests.simulation.runs import Run, check, played
from txmq.testing import World
from txmq_broker.services import log_verifier

ROUND_PAUSE_S = 1.0
"""Between two rounds of verification where bits are flipped: these logs are small."""

__all__ = ["ASYNC_CHECKERS", "COPY_CHECKERS", "LOSS_CHECKERS", "judge", "run_copy_seed"]

LOSS_CHECKERS = (
    one_leader,
    identical_logs,
    leader_bound,
    liveness,
    whole_copies,
    writable,
    removals,
)
"""What a set promises also after a person allowed a loss."""

ASYNC_CHECKERS = (*LOSS_CHECKERS, follower_reads)
"""What a set promises that answers before its followers have a copy."""

COPY_CHECKERS = (
    *ASYNC_CHECKERS,
    acknowledged,
    enough_copies,
    reused,
    fresh_offsets,
    visible,
    kept,
    undecided,
    decisions,
    linearizable,
)


class CopyOutcome(NamedTuple):
    """What a run amounted to."""

    seconds: float
    acknowledged: int
    pulled: int
    epochs: int
    """How often another leadership began."""
    lost: int
    left: int
    """How often the in-sync set became smaller."""
    joined: int
    transactions: int
    committed: int
    read: int
    """Messages that were read from followers."""

    @classmethod
    def of(cls, history: History, seconds: float) -> CopyOutcome:
        """The figures of a history."""
        events = history.events
        sizes = [len(event.in_sync) for event in events if isinstance(event, SetChanged)]
        steps = [after - before for before, after in zip(sizes, sizes[1:], strict=False)]
        return cls(
            seconds,
            history.count(Acknowledged),
            sum(len(event.copies) for event in events if isinstance(event, Pulled)),
            history.count(Leading),
            history.count(MemberLost),
            sum(step < 0 for step in steps),
            sum(step > 0 for step in steps),
            history.count(HalfTaken),
            sum(event.committed for event in events if isinstance(event, Decided)),
            sum(len(event.copies) for event in events if isinstance(event, FollowerRead)),
        )


def judge(history: History, checkers: Sequence[ModuleType]) -> None:
    """Have the checkers look at a history; after an allowed loss, those that need no message.

    Raises:
        AssertionError: One of them complains.
    """
    has_loss = history.count(LossAllowed) > 0
    check(history, [checker for checker in checkers if checker in LOSS_CHECKERS or not has_loss])


async def _live_through(world: World, mix: CopyMix, checkers: Sequence[ModuleType]) -> CopyOutcome:
    stage = CopyStage(world, mix)
    await stage.open()
    stage.people()
    await DamageNemesis(stage).torment()
    stage.calm()
    await stage.settle()
    await stage.close()
    judge(stage.history, checkers)
    return CopyOutcome.of(stage.history, world.now())


def run_copy_seed(
    seed: int,
    mix: CopyMix | None = None,
    *,
    keep_trace: bool = False,
    checkers: Sequence[ModuleType] | None = None,
) -> Run:
    """Run a seed with the mix it draws, or another.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    mix = mix or CopyMix.with_copies(seed)
    if checkers is None:
        checkers = ASYNC_CHECKERS if mix.mode == "async" else COPY_CHECKERS
    world = World(seed, scenario="copies", conditions=mix.conditions, keep_trace=keep_trace)
    with pytest.MonkeyPatch.context() as patch:
        if "bits flipped" in mix.faults:
            patch.setattr(log_verifier, "_PAUSE_S", ROUND_PAUSE_S)
        return played(world, _live_through(world, mix, checkers), keep_trace=keep_trace)
