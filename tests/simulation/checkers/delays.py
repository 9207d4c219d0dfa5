"""A message that is to come later comes once, and no sooner than its broker's clock allows.

The broker names the time when it takes the message: the one that was asked for, or as much after
its own as was. Whatever is acknowledged lies in its topic once in the end, stored at that time or
later; what was recalled, and acknowledged as such, never does, nor does any other attempt to send
the same message that still waited; and of what is not acknowledged there is one copy at most. Once
nothing goes wrong any more, nothing is late either.

A clock that is set forward brings everything sooner, so a time counts as reached once the broker's
clock has shown it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from tests.simulation.checkers.clocks import Clocks
from tests.simulation.client_history import Handling, Sent
from tests.simulation.delivery_history import (
    DONE,
    REFUSED,
    Kept,
    Recalled,
    Recalling,
    Rules,
    Shelf,
    Waits,
    Writing,
)
from tests.simulation.history import Calm, Event
from txmq.message import Queue
from txmq.protocol.topics import DLQ, RETRY, WAITING_TOPICS

__all__ = ["broken"]

LATE_MS = 10_000
"""How late a message may come when all is well: a broker that was down comes up first."""

NEARLY_MS = 1
"""What rounding may make of a time."""

Copy = tuple[Queue, Kept]


@dataclass(slots=True)
class _Story:
    """All that is known of one attempt to send a message."""

    written: Writing
    waits: Waits | None = None
    sent: Sent | None = None
    recalls: list[str] = field(default_factory=list)
    """What became of each recall so far; nothing where that is not known yet."""
    given: list[Handling] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    waited: Copy | None = None
    """Where it waited."""
    is_called_off: bool = False
    """Whether it waited when its message was recalled, be it with success or too late."""

    @property
    def is_recalled(self) -> bool | None:
        """Whether it was recalled; ``None`` where nobody can tell."""
        if DONE in self.recalls:
            return True
        return False if not self.recalls or self.recalls[-1] == REFUSED else None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many copies of it there may be."""
        if self.is_recalled:
            return (0,)
        is_taken = self.waits is not None or self.sent is not None
        if self.is_called_off:
            return (0, 1)
        return (1,) if is_taken and self.is_recalled is False else (0, 1)


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    events = list(events)
    stories, recalls, levels_ms = _read(events)
    clocks = Clocks(events)
    calm_at = max((event.at for event in events if isinstance(event, Calm)), default=inf)
    complaints = _recalled_too(stories, recalls)
    for key, story in stories.items():
        complaints += _miscounted(key, story)
        if story.written.wish is not None:
            complaints += _promised_wrong(key, story, clocks, levels_ms)
            complaints += _early(key, story, clocks, levels_ms)
            complaints += _late(key, story, clocks, calm_at)
    return complaints


def _read(events: list[Event]) -> tuple[dict[str, _Story], list[Copy], tuple[int, ...]]:
    stories: dict[str, _Story] = {}
    recalls: list[Copy] = []
    levels_ms: tuple[int, ...] = ()
    for event in events:
        match event:
            case Rules():
                levels_ms = event.levels_ms
            case Writing():
                stories[event.key] = _Story(event)
            case Sent():
                stories[event.key].sent = event
            case Waits():
                stories[event.key].waits = event
            case Recalling():
                stories[event.key].recalls.append("")
            case Recalled():
                stories[event.key].recalls[-1] = event.answer
            case Handling() if not event.queue.topic.startswith(RETRY):
                stories[event.key].given.append(event)
            case Shelf() if event.queue.topic in WAITING_TOPICS:
                for kept in event.kept:
                    if kept.recalls:
                        recalls.append((event.queue, kept))
                    elif kept.key in stories:
                        stories[kept.key].waited = (event.queue, kept)
            case Shelf() if not event.queue.topic.startswith((RETRY, DLQ)):
                for kept in event.kept:
                    stories[kept.key].copies.append((event.queue, kept))
            case _:
                pass
    return stories, recalls, levels_ms


def _recalled_too(stories: dict[str, _Story], recalls: list[Copy]) -> list[str]:
    """Of a message that was recalled no attempt to send it comes any more that waited then.

    Where the recall was too late for one of them, that one has come.
    """
    recalled = {
        (story.waits.broker, story.written.id)
        for story in stories.values()
        if story.is_recalled and story.waits
    }
    come = {
        (queue.broker, story.written.id) for story in stories.values() for queue, _ in story.copies
    }
    complaints: list[str] = []
    for key, story in stories.items():
        if story.waited is None:
            continue
        (queue, waited), unique = story.waited, story.written.id
        story.is_called_off = any(
            kept.recalls == unique and where.broker == queue.broker
            for where, kept in recalls
            if kept.position > waited.position
        )
        if not story.is_called_off:
            continue
        named = (queue.broker, unique)
        if named in recalled and story.copies:
            complaints.append(f"{key} waited when its message {unique} was recalled, and came")
        if REFUSED in story.recalls and DONE not in story.recalls and named not in come:
            complaints.append(f"{key} was not to be recalled any more, and never came")
    return complaints


def _miscounted(key: str, story: _Story) -> list[str]:
    copies = story.copies
    complaints = [
        f"{key} was sent to {story.written.topic}, and lies in {queue}"
        for queue, _ in copies
        if queue.topic != story.written.topic
    ]
    if len(copies) not in story.counts:
        how = "was recalled" if story.is_recalled else "waited" if story.waits else "was sent"
        complaints.append(f"{key} {how} and has come {len(copies)} times")
    if story.is_recalled and story.given:
        complaints.append(f"{key} was recalled, and {story.given[0].member} was given it")
    return complaints


def _wait_ms(story: _Story, levels_ms: tuple[int, ...]) -> int:
    wish = story.written.wish
    assert wish is not None, "it was to come at once"
    if wish.level:
        return levels_ms[min(wish.level, len(levels_ms)) - 1]
    return 1000 * wish.after_s


def _promised_wrong(
    key: str, story: _Story, clocks: Clocks, levels_ms: tuple[int, ...]
) -> list[str]:
    """What the broker says about the time is what was asked for."""
    told, wish = story.waits or story.sent, story.written.wish
    if told is None or wish is None:
        return []
    broker = told.broker if isinstance(told, Waits) else told.queue.broker
    least = clocks.lowest(broker, story.written.at, told.at) - NEARLY_MS
    most = clocks.highest(broker, story.written.at, told.at) + NEARLY_MS
    if isinstance(told, Sent):
        if wish.at_ms and wish.at_ms <= most:
            return []
        return [f"{key} was to come later, and was taken as if it were now"]
    if wish.at_ms:
        least = most = wish.at_ms
    else:
        wait_ms = _wait_ms(story, levels_ms)
        least, most = least + wait_ms, most + wait_ms
    if least <= told.due_ms <= most:
        return []
    return [f"{key} is promised for {told.due_ms}, and was asked for {least} to {most}"]


def _early(key: str, story: _Story, clocks: Clocks, levels_ms: tuple[int, ...]) -> list[str]:
    """No copy was stored, and none handled, before its time."""
    wish, asked_at = story.written.wish, story.written.at
    assert wish is not None, "it was to come at once"

    def due_ms(broker: str, until: float) -> int:
        if story.waits is not None:
            return story.waits.due_ms
        if wish.at_ms:
            return wish.at_ms
        # Nobody was told when it was stored.
        return clocks.lowest(broker, asked_at, until) + _wait_ms(story, levels_ms) - NEARLY_MS

    complaints: list[str] = []
    for queue, kept in story.copies:
        due = due_ms(queue.broker, inf)
        if kept.stored_ms < due:
            complaints.append(f"{key} was due at {due} and stored at {kept.stored_ms}")
    for event in story.given[:1]:
        broker = event.queue.broker
        due, shown = due_ms(broker, event.at), clocks.highest(broker, asked_at, event.at)
        if shown < due - NEARLY_MS:
            complaints.append(f"{key} was due at {due}, and {event.member} had it at {shown}")
    return complaints


def _late(key: str, story: _Story, clocks: Clocks, calm_at: float) -> list[str]:
    if story.waits is None or calm_at == inf:
        return []
    due = max(story.waits.due_ms, clocks.highest(story.waits.broker, calm_at, calm_at))
    return [
        f"{key} was due at {story.waits.due_ms} and stored as late as {kept.stored_ms}"
        for _, kept in story.copies
        if kept.stored_ms > due + LATE_MS
    ]
