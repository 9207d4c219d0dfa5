"""Randomness for ids, jitter and choices; txmq has no other source of it."""

from __future__ import annotations

import os
import random
from typing import Protocol

__all__ = ["Entropy", "SystemEntropy"]


class Entropy(Protocol):
    """The source of randomness."""

    def below(self, bound: int) -> int:
        """A whole number from 0 to ``bound - 1``, uniformly distributed."""
        ...

    def fraction(self) -> float:
        """A number from 0.0 up to but not including 1.0."""
        ...

    def token(self, size: int) -> bytes:
        """``size`` unpredictable bytes."""
        ...


class SystemEntropy:
    """Choices from a generator seeded by the operating system, tokens from the system itself."""

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))

    def below(self, bound: int) -> int:
        """See :meth:`Entropy.below`."""
        return self._random.randrange(bound)

    def fraction(self) -> float:
        """See :meth:`Entropy.fraction`."""
        return self._random.random()

    def token(self, size: int) -> bytes:
        """See :meth:`Entropy.token`."""
        return os.urandom(size)
