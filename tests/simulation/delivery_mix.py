"""What one seed is about in which messages come later, come again, or die."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tests.simulation.client_mix import CLIENT_FAULTS, LEVELS, ClientMix
from tests.simulation.mix import kib
from tests.simulation.nemesis import ENDS
from txmq.testing import SeededEntropy

__all__ = ["DELIVERY_FAULTS", "PLANS", "WISHES", "DeliveryMix"]

DELIVERY_FAULTS = (
    *CLIENT_FAULTS,
    "failed sync",
    "full disk",
    "failed writes",
    "read-only disk",
    "clock jump",
    "clock drift",
)

CRASHES = (*ENDS, "client crash")
"""What is about here, and so happens more often."""

PLANS = ("well", "fail", "always", "level", "dead", "stall")
"""What handlers do with a message: nothing amiss, fail so many times, or each time; ask for a level
the first time; ask for its death after so many times; take too long the first time."""

WISHES = ("now", "level", "at", "after")
"""When a message is to come."""

TABLES = (LEVELS, "300ms 700ms 1s 1500ms 2s 4s", "2s 500ms 500ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryMix(ClientMix):
    """The dials of a run; those of groups and clusters are the same as everywhere."""

    attempts_max: int = 2
    timeout_s: float = 2.0
    """So long may a handler work on a message before that is taken for a failure."""
    plans: tuple[str, ...] = PLANS
    """What is drawn from; whatever stands here more often happens more often."""
    wishes: tuple[str, ...] = WISHES
    wait_s: float = 8.0
    """How long a message waits that names a time, at most."""
    recall_chance: float = 0.3

    @classmethod
    def with_deliveries(cls, seed: int) -> Self:
        """The mix of a seed."""
        draw = SeededEntropy(seed).fork("deliveries")
        mix = cls.with_clients(seed)

        def one(*choices):
            return choices[draw.below(len(choices))]

        producers = 1 + draw.chance(0.3)
        return mix.but(
            is_bereft=False,
            # What waits is read anew from checkpoints, or from the log behind them.
            segment=kib(one(4, 64, 1024)),
            checkpoint=kib(one(1, 4, 16, 64)),
            recovery_chance=one(0.3, 1.0),
            producers=producers,
            sends=one(20, 40, 60) // producers,
            # While the disk takes its time, much falls due that is not safe yet.
            sync_s=one((0.0, 0.002), (0.0, 0.002), (0.0, 0.3)),
            think_s=one(0.05, 0.5),
            chaos_s=one(8.0, 15.0),
            pause_s=one(1.0, 2.0),
            faults=tuple(
                choice
                for choice in DELIVERY_FAULTS
                if draw.chance(0.4 if choice in CRASHES else 0.2)
            ),
            consuming=tuple(
                replace(choice, is_pulled=False, fail_chance=0.0, work_s=min(choice.work_s, 0.1))
                for choice in mix.consuming
            ),
            levels=one(*TABLES),
            attempts_max=1 + draw.below(3),
            timeout_s=one(0.5, 2.0),
            plans=one(
                PLANS, ("well", *PLANS), ("fail", "always"), ("well", "well", "well", "stall")
            ),
            wishes=one(WISHES, ("now", *WISHES), ("at", "after"), ("level",), ("now",)),
            wait_s=one(2.0, 15.0),
            recall_chance=one(0.0, 0.3, 0.8),
        )
