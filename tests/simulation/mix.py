"""What one seed is about: sizes, shapes and faults, each seed drawing its own mix.

Where every seed had a little of everything, faults would hide one another and rare states would
stay rare. So each draws which faults there are at all, and how far the dials are turned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

from txmq.limits import SPAN_BYTES_MAX
from txmq.settings.units import Duration, Size
from txmq.testing import Conditions, SeededEntropy
from txmq_broker.config import BrokerSettings, CheckBackSettings, RetentionSettings, StoreSettings

__all__ = ["MOODS", "OTHER_FAULTS", "POWER_FAULTS", "Mix", "SmallStore", "TransactionMix", "kib"]

T = TypeVar("T")

POWER_FAULTS = ("power cut", "power cut at an event", "failed sync")
"""What may take written bytes away; nothing is promised then with ``flush = "async"``."""

OTHER_FAULTS = (
    "kill",
    "stop",
    "names away",
    "client crash",
    "partition",
    "one-way partition",
    "isolation",
    "cut connections",
    "slow network",
    "slow disk",
    "full disk",
    "failed writes",
    "read-only disk",
    "clock jump",
    "clock drift",
    "pause",
    "slow reader",
)

MOODS = ("unsure", "unsure for ever", "mute", "wrong", "wrong for ever", "late")
"""How producers answer checks where they do not do as they should, each transaction for itself."""

REST_S = 30.0
"""How long producers may take until all they have begun is said and answered."""


def kib(number: float) -> Size:
    """So many KiB."""
    return Size(int(number * 1024))


class SmallStore(StoreSettings, frozen=True, kw_only=True):
    """A store whose files are far smaller than a real broker accepts, so that a run fills many."""

    def __post_init__(self) -> None:
        """Take any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMix:
    """The dials of a run that have to do with transactions."""

    timeout_s: float = 1.0
    interval_s: float = 1.0
    check_max: int = 3
    groups: int = 1
    producers: int = 2
    """Of each group; they share its database."""
    lanes: int = 2
    """Transactions that each producer has under way at a time."""
    count: int = 10
    """Transactions of one lane, at most."""
    think_s: float = 0.5
    local_s: float = 0.2
    """How long a local transaction takes, at most."""
    beat_s: float = 1.0
    rollback_chance: float = 0.3
    unclear_chance: float = 0.1
    """How likely a producer forgets, or cannot tell, how a local transaction ended."""
    oneway_chance: float = 0.3
    twin_chance: float = 0.1
    """How likely a half message is sent on two connections at once."""
    again_chance: float = 0.0
    """How likely the half message itself is sent again, when all may be over."""
    repeats: int = 0
    """How often an END is sent again, at most."""
    repeat_s: float = 0.0
    """How much later, at most."""
    immunity_chance: float = 0.0
    immunity_s: int = 3
    """For how long a producer wants not to be asked, at most."""
    die_chance: float = 0.0
    """How likely a producer dies at a step of a transaction."""
    doze_chance: float = 0.0
    """How likely a producer falls silent after a transaction."""
    doze_s: float = 10.0
    lie_chance: float = 0.0
    """How likely a producer says also the opposite of what its database says."""
    mood_chance: float = 0.0
    """How likely checks of a transaction are answered in one of these ways."""
    moods: tuple[str, ...] = MOODS
    operator_s: float = 0.0
    """Between two looks of an operator who decides and rechecks; 0 where there is none."""

    @classmethod
    def of(cls, draw: SeededEntropy) -> Self:
        """Draw them."""
        return cls(
            timeout_s=_one(draw, (0.0, 0.3, 1.0, 3.0)),
            interval_s=_one(draw, (0.3, 1.0, 3.0)),
            check_max=_one(draw, (1, 2, 3, 5)),
            groups=1 + draw.chance(0.3),
            producers=1 + draw.below(3),
            lanes=1 + draw.below(4),
            count=_one(draw, (5, 20, 60)),
            think_s=_one(draw, (0.01, 0.5, 3.0)),
            local_s=_one(draw, (0.0, 0.1, 1.0, 6.0)),
            beat_s=_one(draw, (0.3, 1.0, 5.0)),
            rollback_chance=_one(draw, (0.1, 0.3, 0.6)),
            unclear_chance=_one(draw, (0.0, 0.1, 0.5)),
            oneway_chance=_one(draw, (0.0, 0.3, 1.0)),
            twin_chance=_one(draw, (0.0, 0.3)),
            again_chance=_one(draw, (0.0, 0.0, 0.1)),
            repeats=_one(draw, (0, 1, 4)),
            repeat_s=_one(draw, (0.0, 0.5, 10.0)),
            immunity_chance=_one(draw, (0.0, 0.0, 0.5)),
            immunity_s=1 + draw.below(6),
            die_chance=_one(draw, (0.0, 0.0, 0.01, 0.05)),
            doze_chance=_one(draw, (0.0, 0.0, 0.1)),
            doze_s=_one(draw, (5.0, 20.0, 140.0)),
            lie_chance=_one(draw, (0.0, 0.0, 0.2)),
            mood_chance=_one(draw, (0.0, 0.3, 0.8)),
            moods=_some(draw, MOODS, 0.6) or MOODS,
            operator_s=_one(draw, (0.0, 1.0, 5.0)),
        )

    def patience_s(self, give_up_s: float) -> float:
        """How long it may take until no transaction is open that is not parked.

        What a dead connection was asked waits until that is given up, after ``give_up_s``; and a
        check counts only once the producer has shown life after it.
        """
        first = max(self.timeout_s, float(self.immunity_s))
        checks = (self.check_max + 2) * (self.interval_s + self.beat_s)
        return REST_S + give_up_s + first + checks

    def settings(self) -> CheckBackSettings:
        """The settings of a broker."""
        return CheckBackSettings(
            timeout=Duration(self.timeout_s),
            check_interval=Duration(self.interval_s),
            check_max=self.check_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The dials of one run."""

    is_sync: bool = True
    segment: Size = kib(64)
    checkpoint: Size = kib(16)
    sync_s: tuple[float, float] = (0.0, 0.002)
    brokers: int = 1
    names: int = 0
    """Name servers apart from the brokers; none means that the first broker has its own."""
    topics: int = 1
    queues: int = 2
    is_auto_created: bool = False
    """Whether one more topic comes into being by sending to it."""
    producers: int = 2
    lanes: int = 3
    """Sends that each producer has under way at a time."""
    sends: int = 40
    """Sends of one lane, at most."""
    think_s: float = 0.5
    body_max: int = 500
    batch_chance: float = 0.2
    oneway_chance: float = 0.1
    groups: int = 1
    consumers: int = 1
    """Of each group; the queues are divided between them."""
    has_tags: bool = False
    """Whether the last group wants messages of one tag only."""
    hold_s: float = 5.0
    chaos_s: float = 20.0
    pause_s: float = 3.0
    """Between two faults of one kind of trouble."""
    audit_chance: float = 0.5
    """How likely a broker that came back is read from end to end."""
    recovery_chance: float = 0.25
    """How likely a crashed disk is recovered in several ways."""
    faults: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    transactions: TransactionMix | None = None

    @classmethod
    def of(cls, seed: int) -> Self:
        """The mix of a seed."""
        draw = SeededEntropy(seed).fork("mix")
        is_sync = draw.chance(0.75)
        window = _one(draw, (4096, 65536))
        return cls(
            is_sync=is_sync,
            segment=kib(_one(draw, (2, 4, 16, 64, 1024))),
            checkpoint=kib(_one(draw, (1, 4, 16, 64, 1024))),
            sync_s=_one(draw, ((0.0, 0.0), (0.0, 0.01), (0.005, 0.05), (0.0, 0.3))),
            brokers=1 + draw.chance(0.4),
            names=_one(draw, (0, 0, 1, 2)),
            topics=1 + draw.below(2),
            queues=1 + draw.below(3),
            is_auto_created=draw.chance(0.3),
            producers=1 + draw.below(2),
            lanes=1 + draw.below(6),
            sends=_one(draw, (10, 30, 60)),
            think_s=_one(draw, (0.01, 0.1, 1.0, 4.0)),
            # Large bodies through a narrow window take minutes of which nothing is learnt.
            body_max=_one(draw, (20, 200, 2000, 20_000 if window > 4096 else 1000)),
            batch_chance=_one(draw, (0.0, 0.2, 0.5)),
            oneway_chance=_one(draw, (0.0, 0.2)),
            groups=1 + draw.chance(0.4),
            consumers=1 + draw.chance(0.3),
            has_tags=draw.chance(0.3),
            hold_s=_one(draw, (0.0, 1.0, 5.0, 18.0)),
            chaos_s=_one(draw, (5.0, 15.0, 60.0)),
            pause_s=_one(draw, (0.3, 1.0, 3.0, 8.0)),
            audit_chance=_one(draw, (0.3, 1.0)),
            recovery_chance=_one(draw, (0.0, 0.5)),
            faults=(
                *_some(draw, POWER_FAULTS if is_sync else (), 0.5),
                *_some(draw, OTHER_FAULTS, 0.25),
            ),
            conditions=Conditions(
                latency_s=_one(draw, (0.0001, 0.0002, 0.002, 0.02)),
                jitter_s=_one(draw, (0.0, 0.0008, 0.02)),
                spike_chance=_one(draw, (0.0, 0.005, 0.05)),
                window=window,
                give_up_s=_one(draw, (15.0, 60.0)),
            ),
        )

    @classmethod
    def with_transactions(cls, seed: int) -> Self:
        """The mix of a seed in which most of what is sent is transactional."""
        draw = SeededEntropy(seed).fork("transactions")
        mix = cls.of(seed)
        # A commit needs a second copy of its message where the file may be nearly full: always in
        # small files, never in a large one, and from some point on in the one in between.
        segments = (kib(4), kib(64), kib(64 * 1024), Size(2 * SPAN_BYTES_MAX + kib(8)))
        return mix.but(
            segment=_one(draw, segments),
            producers=1,
            lanes=min(mix.lanes, 2),
            sends=min(mix.sends, 20),
            body_max=min(mix.body_max, 5000),
            groups=1,
            chaos_s=min(mix.chaos_s, 30.0),
            transactions=TransactionMix.of(draw),
        )

    def settings(self, name: str, address: str, names: str) -> BrokerSettings:
        """The settings of one broker."""
        return BrokerSettings(
            name=name,
            listen=f"{address}:10911",
            names_listen=f"{address}:9876",
            names=names,
            store=SmallStore(
                flush="sync" if self.is_sync else "async",
                segment_size=self.segment,
                checkpoint_every=self.checkpoint,
            ),
            # Never deletes: what is missing was lost.
            retention=RetentionSettings(delete_above=1.0, force_above=1.0, refuse_above=1.0),
            transaction=(
                self.transactions.settings() if self.transactions else CheckBackSettings()
            ),
        )

    def but(self, **dials: object) -> Self:
        """The same with some dials set otherwise."""
        return replace(self, **dials)

    def __str__(self) -> str:
        dials = (f"{dial.name}={getattr(self, dial.name)}" for dial in fields(self))
        return "\n  ".join(("this seed is about:", *dials))


def _one(draw: SeededEntropy, choices: Sequence[T]) -> T:
    return choices[draw.below(len(choices))]


def _some(draw: SeededEntropy, choices: Sequence[T], chance: float) -> tuple[T, ...]:
    return tuple(choice for choice in choices if draw.chance(chance))
