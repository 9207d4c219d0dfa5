"""Reports of deliveries: all attempts in the order they ended, and a check of the effects."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from txmq.text import quantity

__all__ = ["DeliveryAttempt", "End", "Report"]

_KEYS_SHOWN: Final = 5
"""The number of keys for which an error lists all attempts; a few are enough to show a mistake."""


class End(Enum):
    """The end of an attempt to deliver a message."""

    ACKNOWLEDGED = "acknowledged"
    LATER = "to come again later"
    """The handler returned ``Later``, or it was not the delivery's turn:
    :class:`~txmq.errors.KeyInProgress`, :class:`~txmq.errors.VersionGap`."""
    KILLED = "killed"
    RAISED = "raised"
    REFUSED = "for the dead letters"


class DeliveryAttempt(NamedTuple):
    """One attempt to deliver a message."""

    key: Hashable
    """The key of the message's effect."""
    message: int
    """The number of the message, from 0."""
    copy: int
    """The number of the delivery, from 1."""
    attempt: int
    """The number of earlier attempts at this delivery."""
    caller: int
    end: End
    words: str = ""
    """The point at which it was killed, or the error or the reason."""

    def __str__(self) -> str:
        """The attempt in words, for errors."""
        name = f"message {self.message}, delivery {self.copy}, attempt {self.attempt}"
        reason = f": {self.words}" if self.words else ""
        return f"{name}, caller {self.caller}: {self.end.value}{reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run of deliveries."""

    seed: int
    """The same seed kills at the same points again, but threads may run in another order."""
    keys: tuple[Hashable, ...]
    """The keys that should have an effect."""
    attempts: tuple[DeliveryAttempt, ...]
    """All attempts, in the order in which they ended."""
    stuck: tuple[DeliveryAttempt, ...]
    """The last attempt of each delivery that never succeeded."""

    def ended(self, end: End) -> tuple[DeliveryAttempt, ...]:
        """The attempts with this end."""
        return tuple(attempt for attempt in self.attempts if attempt.end is end)

    def see_once(self, effects: Mapping[Any, int]) -> None:
        """Check that every key has exactly one effect, and that every delivery succeeded.

        Args:
            effects: The number of effects in your database, by key.

        Raises:
            AssertionError: The check failed; the text lists the attempts for the first wrong keys.
        """
        wrong = {key: effects.get(key, 0) for key in self.keys if effects.get(key, 0) != 1}
        known = set(self.keys)
        strange = {key: count for key, count in effects.items() if count and key not in known}
        if wrong or strange or self.stuck:
            raise AssertionError("\n".join(self._story(wrong, strange)))

    def _story(self, wrong: Mapping[Any, int], strange: Mapping[Any, int]) -> Iterator[str]:
        yield f"seed {self.seed}, {_many(self.keys, 'key')}, {_many(self.attempts, 'attempt')}:"
        if wrong:
            never = sum(1 for count in wrong.values() if not count)
            yield f"{_many(wrong, 'key')} did not have exactly one effect, {never} of them had none"
        if self.stuck:
            yield f"{_many(self.stuck, 'delivery', 'deliveries')} never succeeded"
        if strange:
            shown = ", ".join(repr(key) for key in list(strange)[:_KEYS_SHOWN])
            yield f"{_many(strange, 'key')} had an effect and no message: {shown}"
        stuck = dict.fromkeys(attempt.key for attempt in self.stuck)
        for key in list({**wrong, **stuck})[:_KEYS_SHOWN]:
            yield f"  {key!r} had {quantity(wrong.get(key, 1), 'effect')}:"
            yield from (f"    {attempt}" for attempt in self.attempts if attempt.key == key)


def _many(values: Sized, one: str, many: str = "") -> str:
    return quantity(len(values), one, many or f"{one}s")
