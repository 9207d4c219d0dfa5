"""What one seed of the client's own runs is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from tests.simulation.mix import Mix, kib
from txmq.testing import Conditions, SeededEntropy
from txmq_broker.config import BrokerSettings, DelaySettings

__all__ = ["CLIENT_FAULTS", "LEVELS", "ClientMix", "GroupMix"]

ENDS = ("power cut", "power cut at an event", "kill", "stop")
HARDSHIPS = (
    "names away",
    "client crash",
    "partition",
    "one-way partition",
    "isolation",
    "cut connections",
    "slow network",
    "slow disk",
    "pause",
)
CLIENT_FAULTS = (*ENDS, *HARDSHIPS)

LEVELS = "1s 1s 1s 2s 3s"
"""Delay levels short enough for what fails to come again while a run lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMix:
    """The dials of one consumer group."""

    is_orderly: bool = False
    is_pulled: bool = False
    """Whether members ask for messages, and are not called with them."""
    members: int = 2
    tags: str = "*"
    concurrency: int = 4
    batch: int = 8
    """The most messages fetched at once."""
    cached_max: int = 100
    work_s: float = 0.05
    """How long a handler takes, at most."""
    fail_chance: float = 0.0
    stay_s: float = 0.0
    """How long a member stays before it leaves and comes back, on average; 0 stays to the end."""
    rebalance_interval: float = 5.0
    commit_interval: float = 1.0
    stop_s: float = 5.0

    @classmethod
    def of(cls, draw: SeededEntropy, *, is_orderly: bool) -> Self:
        """Draw them."""

        def one(*choices):
            return choices[draw.below(len(choices))]

        is_pulled = not is_orderly and draw.chance(0.4)
        return cls(
            is_orderly=is_orderly,
            is_pulled=is_pulled,
            members=1 + draw.below(3),
            tags=one("*", "*", "*", "red"),
            concurrency=one(1, 2, 8),
            batch=one(1, 4, 32),
            cached_max=one(1, 10, 1000),
            work_s=one(0.0, 0.05, 0.5),
            fail_chance=0.0 if is_pulled else one(0.0, 0.0, 0.1),
            stay_s=one(0.0, 3.0, 10.0),
            rebalance_interval=one(2.0, 20.0),
            commit_interval=one(0.2, 5.0),
            stop_s=one(0.0, 1.0, 10.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMix(Mix):
    """The dials of a run; those of the cluster are the same as everywhere."""

    consuming: tuple[GroupMix, ...] = (GroupMix(), GroupMix(is_orderly=True))
    levels: str = LEVELS
    is_bereft: bool = False
    """Whether one of several brokers is gone for good in the end."""
    look_s: float = 1.0
    """Between two looks at what groups have committed."""

    @classmethod
    def with_clients(cls, seed: int) -> Self:
        """The mix of a seed."""
        draw = SeededEntropy(seed).fork("clients")

        def one(*choices):
            return choices[draw.below(len(choices))]

        brokers = 1 + draw.chance(0.5)
        names = draw.below(3)
        return cls(
            brokers=brokers,
            names=names,
            is_bereft=brokers > 1 and draw.chance(0.4),
            segment=one(kib(64), kib(1024)),
            queues=one(1, 2, 4),
            producers=1 + draw.below(2),
            sends=one(20, 60),
            think_s=one(0.05, 0.5),
            chaos_s=one(8.0, 20.0),
            pause_s=one(1.0, 3.0),
            audit_chance=0.0,
            recovery_chance=0.0,
            faults=tuple(fault for fault in CLIENT_FAULTS if draw.chance(0.3)),
            consuming=tuple(
                GroupMix.of(draw, is_orderly=bool((seed + number) % 2))
                for number in range(1 + draw.chance(0.5))
            ),
            conditions=Conditions(
                latency_s=one(0.0002, 0.002, 0.02),
                jitter_s=one(0.0, 0.02),
                spike_chance=one(0.0, 0.01),
                give_up_s=one(15.0, 60.0),
            ),
        )

    def settings(self, name: str, address: str, names: str) -> BrokerSettings:
        """The settings of one broker."""
        settings = Mix.settings(self, name, address, names)
        return replace(settings, delay=DelaySettings(levels=self.levels))
