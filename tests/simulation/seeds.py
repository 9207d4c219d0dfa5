"""What the tests that run many seeds have in common: which seeds, and what is said of a failure."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.kinds import mix_of, run_kind
from tests.simulation.runs import TAIL
from tests.simulation.twin import CHECKOUT, Twin

__all__ = ["IS_SOAK", "Seeds"]

IS_SOAK = "TXMQ_SOAK" in os.environ
TWINS = 2
"""So many seeds of a kind show whether something follows hashes or the process."""


class Seeds:
    """The seeds of one kind of run.

    Args:
        kind: Which mixes they draw.
        file: The test that runs them.
        alone: The variable that names a single seed to be run and shown.
        count: How many there are.
        quick: So many of the fixed ones run with the fast tests, too.
        twins: So many run in another process as well, even outside a soak.
    """

    def __init__(
        self, kind: str, file: str, alone: str, count: int, quick: int, twins: int = TWINS
    ) -> None:
        self._kind = kind
        self._file = file
        self._variable = alone
        self._alone = os.environ.get(alone)
        self._count = count
        self._quick = quick
        self._twins = twins
        self._outcomes: dict[int, Any] = {}

    def params(self) -> list[object]:
        """All of them, or the single one."""
        return [int(self._alone)] if self._alone else list(self._many())

    def _many(self) -> Iterator[object]:
        fixed = range(self._count // 2 if IS_SOAK else self._count)
        chance = random.SystemRandom()
        fresh = [chance.randrange(1_000_000, 2**32) for _ in range(self._count - len(fixed))]
        for seed in (*fixed, *fresh):
            yield pytest.param(seed, marks=() if seed < self._quick else pytest.mark.slow)

    def judge(self, seed: int, twin: Twin) -> None:
        """Run a seed and see that it goes well; the first also in another process, one way.

        In a soak, all run in both processes.

        Raises:
            AssertionError: It does not.
        """
        is_twice = IS_SOAK or seed < self._twins
        if is_twice:
            twin.begin(seed, self._kind)
        try:
            run = run_kind(self._kind, seed, keep_trace=self._alone is not None)
        except Exception as problem:
            if is_twice:
                twin.digest()
            raise AssertionError(f"{self._repeat(seed)}\n{problem}") from problem
        self._outcomes[seed] = run.outcome
        if is_twice and twin.digest() != run.trace.digest():
            difference = self._difference(seed)
            raise AssertionError(f"{self._repeat(seed)}\ntwo runs went two ways: {difference}")
        if self._alone:
            print(f"\n{mix_of(self._kind, seed)}", run.outcome, *run.trace.events[-TAIL:], sep="\n")

    def endings(self) -> Counter[str]:
        """What the quick seeds amounted to, all together; those not judged before run now."""
        seen: Counter[str] = Counter()
        for seed in range(self._quick):
            outcome = self._outcomes.get(seed) or run_kind(self._kind, seed).outcome
            seen.update(outcome._asdict())
        return seen

    def _repeat(self, seed: int) -> str:
        command = f"{self._variable}={seed} python -m pytest -s tests/simulation/{self._file}"
        return f"commit {_commit()}, {command}"

    def _difference(self, seed: int) -> str:
        first, second = (run_kind(self._kind, seed, keep_trace=True).trace for _ in range(2))
        return first.difference(second) or "only in another process: something follows hashes"


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(asked, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"
