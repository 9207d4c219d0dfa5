"""Randomness: ids, jitter and choices; the only place where chance enters."""

from __future__ import annotations

import os
import random
from typing import Protocol

__all__ = ["Entropy", "SystemEntropy"]


class Entropy(Protocol):
    """Where chance comes from."""

    def below(self, bound: int) -> int:
        """A whole number from 0 to ``bound - 1``, each as likely as the others."""
        ...

    def fraction(self) -> float:
        """A number from 0.0 up to but not including 1.0."""
        ...

    def token(self, size: int) -> bytes:
        """``size`` bytes that nobody can guess."""
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
