"""A failed message comes again, later each time, and becomes a dead letter after the last try.

What is shown to handlers counts 0, 1, 2 and so on without a gap. What is handed back, and taken,
lies once in the group's retry topic or among its dead letters; nothing else does, nothing lies
there before its delay is over, and a dead letter has failed as often as it may, or was asked for,
and says why it is dead and where it came from. In the end every group has consumed or buried
whatever was acknowledged, and soon.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tests.simulation.checkers.clocks import Clocks
from tests.simulation.checkers.delays import NEARLY_MS
from tests.simulation.checkers.trials import Place, Trial, Trials
from tests.simulation.delivery_history import DONE, REFUSED, Kept, Returning
from tests.simulation.history import Event
from txmq.message import Queue

__all__ = ["SOON_S", "broken"]

SOON_S = 180.0
"""How long it may take: locks of the dead run out after 60 s, and connections take their time."""

FIRST_LEVEL = 3


def broken(events: Iterable[Event], *, soon_s: float = SOON_S) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    events = list(events)
    trials = Trials(events)
    complaints = [*trials.gaps, *_unfinished(trials, soon_s)]
    clocks = Clocks(events)
    for place, handed in trials.handed_back().items():
        complaints += _miscounted(trials, place, handed)
        complaints += _too_soon(trials, place, handed, clocks)
    for group, queue, kept in trials.buried:
        trial = trials.of(group, kept.key)
        complaints += _too_young(trials, trial, queue, kept)
        complaints += _untold(trials, queue, kept)
    return complaints


def _unfinished(trials: Trials, soon_s: float) -> list[str]:
    if trials.calm_at is None or trials.ended_at is None:
        return ["the run did not come to its end"]
    dead = {(group, kept.key) for group, _, kept in trials.buried}
    complaints = [
        f"{group} has neither consumed nor buried {key}"
        for group, key in trials.wanted()
        if not trials.of(group, key).is_done and (group, key) not in dead
    ]
    if trials.ended_at - trials.calm_at > soon_s:
        complaints.append(f"it took {trials.ended_at - trials.calm_at:.1f} s to come to rest")
    return complaints


def _miscounted(trials: Trials, place: Place, handed: list[Returning]) -> list[str]:
    """Each return of the message has one copy in the retry topic or among the dead letters."""
    answers = [trials.answers.get(returning.number) for returning in handed]
    least = answers.count(DONE)
    most = len(answers) - answers.count(REFUSED)
    again, dead = trials.again.get(place, []), trials.dead.get(place, [])
    what = f"{place.key} of {place.group} was handed back after {place.attempts - 1} retries"
    complaints: list[str] = []
    if not least <= len(again) + len(dead) <= most:
        complaints.append(
            f"{what}, taken {least} and asked {most} times, and lies "
            f"{len(again)} times to come again and {len(dead)} times dead"
        )
    is_over = place.attempts > trials.attempts_max
    if again and is_over:
        complaints.append(f"{what} and comes again, though {trials.attempts_max} are allowed")
    if dead and not is_over and all(returning.level >= 0 for returning in handed):
        complaints.append(f"{what} and is dead, though {trials.attempts_max} are allowed")
    return complaints


def _too_soon(trials: Trials, place: Place, handed: list[Returning], clocks: Clocks) -> list[str]:
    """Every copy was stored, and the first one given, when the delay was over."""

    def wait_ms(level: int) -> int:
        level = level or FIRST_LEVEL + place.attempts - 1
        return trials.levels_ms[min(level, len(trials.levels_ms)) - 1]

    due = sorted(
        clocks.lowest(place.broker, returning.at, inf) + wait_ms(returning.level) - NEARLY_MS
        for returning in handed
        if returning.level >= 0
    )
    stored = sorted(kept.stored_ms for kept in trials.again.get(place, []))
    what = f"{place.key} of {place.group} for its retry {place.attempts}"
    complaints = [
        f"{what} was stored at {is_stored}, and not due before {is_due}"
        for is_stored, is_due in zip(stored, due, strict=False)
        if is_stored < is_due
    ]
    first = trials.given_again.get(place)
    if first is not None and due:
        begun = min(returning.at for returning in handed)
        shown = clocks.highest(place.broker, begun, first.at)
        if shown < due[0] - NEARLY_MS:
            complaints.append(f"{what} was given at {shown}, and not due before {due[0]}")
    return complaints


def _too_young(trials: Trials, trial: Trial, queue: Queue, kept: Kept) -> list[str]:
    if trial.asked_for_death or trial.failed_at(trials.attempts_max):
        return []
    failed = f"failed by attempts {sorted(trial.failed)} and not by {trials.attempts_max}"
    return [f"{kept.key} lies in {queue}, {failed}"]


def _untold(trials: Trials, queue: Queue, kept: Kept) -> list[str]:
    """A dead letter names its reason and its origin."""
    complaints: list[str] = []
    written = trials.written[kept.key]
    if not kept.reason:
        complaints.append(f"{kept.key} lies in {queue} without a reason")
    if (kept.dead_topic, kept.dead_id) != (written.topic, written.id):
        complaints.append(
            f"{kept.key} lies in {queue} as {kept.dead_id!r} of {kept.dead_topic!r}, "
            f"and was {written.id} of {written.topic}"
        )
    return complaints
