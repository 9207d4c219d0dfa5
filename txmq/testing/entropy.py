"""Repeatable randomness: all values follow from one seed."""

from __future__ import annotations

import random

__all__ = ["SeededEntropy"]


class SeededEntropy:
    """An :class:`txmq.runtime.Entropy` whose numbers, and tokens, follow from a seed."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._random = random.Random(str(seed))  # noqa: S311  repeatable, not secret

    def below(self, bound: int) -> int:
        """See :meth:`txmq.runtime.Entropy.below`."""
        return self._random.randrange(bound)

    def fraction(self) -> float:
        """See :meth:`txmq.runtime.Entropy.fraction`."""
        return self._random.random()

    def token(self, size: int) -> bytes:
        """See :meth:`txmq.runtime.Entropy.token`."""
        return self._random.randbytes(size)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def fork(self, name: str) -> SeededEntropy:
        """An independent source that depends on the seed and the name, not on earlier draws.

        Parts with their own forks are independent: a new draw in one part does not change the
        numbers of the others.
        """
        return SeededEntropy(f"{self._seed}/{name}")
