"""What one seed of a broker set is about: its settings, its clients and its faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from tests.simulation.mix import Mix, TransactionMix, kib
from txmq.settings.units import Duration
from txmq.testing import Conditions, SeededEntropy
from txmq_broker.config import BrokerSettings, ReplicationMode, ReplicationSettings

__all__ = ["COPY_DAMAGES", "COPY_HARDSHIPS", "COPY_LOSSES", "FULL_STOPS", "CopyMix"]

COPY_LOSSES = (
    "kill",
    "kill ahead",
    "kill twice",
    "power cut",
    "power cut at an event",
    "pause",
    "pause ahead",
    "wipe",
    "kill at a join",
    "hand-over",
    "store emptied",
)
"""What takes a member away, or the store's data; one of them at a time."""

FULL_STOPS = frozenset({"writes fail", "no room"})
"""A leader can write nothing any more, and somebody sends all the time to see when that is over."""

COPY_DAMAGES = (
    "lost tail",
    "older state",
    "bits flipped",
    "all at once",
    "leaders together",
    "writes fail",
    "no room",
    "removal",
    "last copy older",
)
"""What damages what a member has, or more than one machine; one of them at a time, like losses."""

COPY_HARDSHIPS = (
    "members apart",
    "store apart",
    "client apart",
    "member isolated",
    "connections cut",
    "store restart",
    "store slow",
    "slow network",
    "slow disk",
    "full disk",
    "failed writes",
)
"""What makes life hard for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMix(Mix):
    """The dials of a run with a broker set."""

    names: int = 1
    members: int = 3
    mode: ReplicationMode = ""
    min_in_sync: int = 1
    lease: int = 2
    lag_max: float = 3.0
    probe_s: float = 0.4
    """Between two requests to each member, whether it leads or not."""
    reads: bool = False
    """Whether followers serve reads."""

    @classmethod
    def with_copies(cls, seed: int) -> Self:
        """The mix of a seed."""
        draw = SeededEntropy(seed).fork("copies")
        damage = SeededEntropy(seed).fork("damage")

        def one(*choices):
            return choices[draw.below(len(choices))]

        def some(choices, chance, draw=draw):
            return tuple(choice for choice in choices if draw.chance(chance))

        is_async = seed % 8 == 7
        transactions = TransactionMix(
            timeout_s=one(0.3, 1.0),
            check_max=5,
            lanes=1 + draw.below(2),
            count=20,
            think_s=one(0.1, 1.0),
            beat_s=0.5,
            unclear_chance=one(0.1, 0.4),
            twin_chance=one(0.0, 0.3),
            repeats=one(0, 2),
            repeat_s=3.0,
            operator_s=2.0 if seed % 4 == 2 else 0.0,
        )
        return cls(
            mode="async" if is_async else one("", "sync"),
            reads=seed % 2 == 1,
            min_in_sync=one(1, 1, 2),
            lease=one(2, 2, 3, 5),
            lag_max=one(1.0, 3.0, 10.0),
            segment=kib(one(4, 16, 64, 1024)),
            checkpoint=kib(one(2, 8, 64)),
            sync_s=one((0.0, 0.002), (0.0, 0.01), (0.005, 0.03)),
            queues=1 + draw.below(2),
            producers=1,
            lanes=1 + draw.below(4),
            sends=30,
            think_s=one(0.1, 0.5, 2.0),
            body_max=one(20, 200, 2000),
            batch_chance=one(0.0, 0.2),
            oneway_chance=one(0.0, 0.1),
            hold_s=one(0.5, 5.0),
            chaos_s=one(10.0, 20.0, 30.0),
            pause_s=one(0.5, 1.5, 4.0),
            audit_chance=0.5,
            recovery_chance=0.0,
            faults=(
                *(some(COPY_LOSSES, 0.4) or ("kill",)),
                *some(COPY_HARDSHIPS, 0.25),
                *some(COPY_DAMAGES, 0.15, damage),
            ),
            conditions=Conditions(
                latency_s=one(0.0002, 0.002, 0.01),
                jitter_s=one(0.0, 0.0008, 0.01),
                spike_chance=one(0.0, 0.005),
                give_up_s=15.0,
            ),
            transactions=None if is_async or draw.chance(0.4) else transactions,
        )

    def settings(self, name: str, address: str, names: str) -> BrokerSettings:
        """The settings of one member; ``name`` is the member's."""
        copies = ReplicationSettings(
            coordinator="etcd://store:2379",
            member=name,
            mode=self.mode,
            min_in_sync=self.min_in_sync,
            lag_max=Duration(self.lag_max),
            lease=self.lease,
            reads=self.reads,
        )
        return replace(Mix.settings(self, "broker-a", address, names), replication=copies)

    def bound_s(self) -> float:
        """How long a set without faults may be without a leader."""
        return self.lease + 2.0 + 1.0
