"""Counts topics by their names, in parts, and remembers the counts until topics change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from itertools import islice
from typing import Final

from txmq.protocol.topics import DLQ, OF_THE_SYSTEM

__all__ = ["TopicCensus"]

_AT_ONCE: Final = 5_000
"""Names looked at in one go: half a millisecond."""


class TopicCensus:
    """The number of topics of applications, and the topics of dead letters.

    Args:
        version: Returns a value that differs after topics have changed.
        names: Returns the names of all topics.
        own: Returns the topics that belong to brokers.
    """

    def __init__(
        self,
        version: Callable[[], object],
        names: Callable[[], Iterable[str]],
        own: Callable[[], Collection[str]],
    ) -> None:
        self._version = version
        self._names = names
        self._own = own
        self._counted: object = None
        self.topics = 0
        """The topics of applications."""
        self.dead: list[str] = []
        """The topics of dead letters."""

    def count(self) -> Generator[None, None, None]:
        """Count again, in parts, if topics have changed."""
        version = self._version()
        if self._counted == version:
            return
        own, topics = self._own(), 0
        dead: list[str] = []
        left = iter(list(self._names()))
        while some := list(islice(left, _AT_ONCE)):
            dead += [name for name in some if name.startswith(DLQ)]
            topics += sum([name not in own and not name.startswith(OF_THE_SYSTEM) for name in some])
            yield
        self.topics, self.dead, self._counted = topics, dead, version
