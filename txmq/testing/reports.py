"""What came of deliveries: each attempt in the order of their ends, and whether all is well."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["Attempted", "End", "Report"]

_KEYS_SHOWN: Final = 5
"""Of how many keys an error tells the whole story: the first few say what is wrong."""


class End(Enum):
    """How an attempt to deliver a message ended."""

    ACKNOWLEDGED = "acknowledged"
    LATER = "to come again later"
    """It said so, or it was not its turn: :class:`~txmq.errors.KeyInProgress`,
    :class:`~txmq.errors.VersionGap`."""
    KILLED = "killed"
    RAISED = "raised"
    REFUSED = "for the dead letters"


class Attempted(NamedTuple):
    """One attempt to deliver a message."""

    key: Hashable
    """Of the effect that the message is to have."""
    message: int
    """Which of the messages, from 0."""
    copy: int
    """Which of its deliveries, from 1."""
    attempt: int
    """How often this one had been tried before."""
    caller: int
    end: End
    words: str = ""
    """Where it was killed, or what it raised or said."""

    def __str__(self) -> str:
        """As errors tell it."""
        who = f"message {self.message}, delivery {self.copy}, attempt {self.attempt}"
        said = f": {self.words}" if self.words else ""
        return f"{who}, caller {self.caller}: {self.end.value}{said}"


@dataclass(frozen=True, slots=True)
class Report:
    """What came of deliveries."""

    seed: int
    """The same seed kills at the same points again; threads may take turns otherwise."""
    keys: tuple[Hashable, ...]
    """What there is to have an effect."""
    attempts: tuple[Attempted, ...]
    """In the order in which they ended."""
    stuck: tuple[Attempted, ...]
    """The last attempts at those deliveries that never got through."""

    def ended(self, end: End) -> tuple[Attempted, ...]:
        """The attempts that ended so."""
        return tuple(attempt for attempt in self.attempts if attempt.end is end)

    def see_once(self, effects: Mapping[Hashable, int]) -> None:
        """See that every key had its effect, once, and that every delivery got through.

        Args:
            effects: How many effects there are, by key, as your database tells it.

        Raises:
            AssertionError: It is not so; the text tells what happened to the first such keys.
        """
        wrong = {key: effects.get(key, 0) for key in self.keys if effects.get(key, 0) != 1}
        known = set(self.keys)
        strange = {key: count for key, count in effects.items() if count and key not in known}
        if wrong or strange or self.stuck:
            raise AssertionError("\n".join(self._story(wrong, strange)))

    def _story(self, wrong: dict[Hashable, int], strange: dict[Hashable, int]) -> Iterator[str]:
        yield f"seed {self.seed}, {_many(self.keys, 'key')}, {_many(self.attempts, 'attempt')}:"
        if wrong:
            never = sum(1 for count in wrong.values() if not count)
            yield f"{_many(wrong, 'key')} had not one effect, {never} of them none"
        if self.stuck:
            yield f"{len(self.stuck)} of the deliveries never got through"
        if strange:
            shown = ", ".join(repr(key) for key in list(strange)[:_KEYS_SHOWN])
            yield f"{_many(strange, 'key')} had an effect and no message: {shown}"
        stuck = dict.fromkeys(stuck.key for stuck in self.stuck)
        for key in list({**wrong, **stuck})[:_KEYS_SHOWN]:
            yield f"  {key!r} had {_counted(wrong.get(key, 1), 'effect')}:"
            yield from (f"    {attempt}" for attempt in self.attempts if attempt.key == key)


def _many(values: Sized, noun: str) -> str:
    return _counted(len(values), noun)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
