"""The events of a run as a hash, which must be equal for two runs of one seed."""

from __future__ import annotations

import hashlib
import struct
from itertools import zip_longest

__all__ = ["Trace"]


class Trace:
    """A running hash of labelled events, each with its virtual time. It can keep the events too.

    Facts are hashed by their ``str``, so they must not contain memory addresses or other values
    that differ between two processes.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.events: list[str] = []
        self._now = 0.0
        self._keep = keep
        self._hash = hashlib.blake2b(digest_size=16)

    def record(self, label: str, *facts: object) -> None:
        """Add an event at the current virtual time."""
        text = f"{self._now:.9f} {label} {' '.join(map(str, facts))}"
        self._hash.update(text.encode())
        if self._keep:
            self.events.append(text)

    def stir(self, moment: float) -> None:
        """Add a step of the clock to the hash; no event is kept for it."""
        self._now = moment
        self._hash.update(struct.pack("<d", moment))

    def digest(self) -> str:
        """The hash so far, as hexadecimal text."""
        return self._hash.hexdigest()

    def difference(self, other: Trace) -> str | None:
        """The first difference from another trace, if any; both must keep events."""
        for index, (mine, theirs) in enumerate(zip_longest(self.events, other.events)):
            if mine != theirs:
                return f"event {index}: {mine!r} in one run, {theirs!r} in the other"
        return None if self.digest() == other.digest() else "between two events, in the clock"
