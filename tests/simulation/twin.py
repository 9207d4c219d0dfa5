"""A second process that runs the same seeds, to see that they go the same way there.

Its strings hash differently and its memory lies elsewhere, so whatever depends on either shows. And
it runs while the first process does.

Run as a module it reads a kind of run and a seed per line, and for each writes the digest of its
trace, or nothing where the run failed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

from tests.simulation.kinds import run_kind

__all__ = ["Twin"]

CHECKOUT = Path(__file__).resolve().parents[2]
OTHER_HASHES = "4711"


class Twin:
    """The second process, as the first one has it."""

    def __enter__(self) -> Self:
        # This checkout's package, even if the environment has another one installed.
        paths = os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "broker")))
        environment = {**os.environ, "PYTHONHASHSEED": OTHER_HASHES, "PYTHONPATH": paths}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.twin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, seed: int, kind: str = "messages") -> None:
        """Let it run a seed."""
        _stream(self._process.stdin).write(f"{kind} {seed}\n")
        _stream(self._process.stdin).flush()

    def digest(self) -> str:
        """How the seed that was begun longest ago went; waits for it."""
        return _stream(self._process.stdout).readline().strip()


def _stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def main() -> None:
    """Run seeds as they come in."""
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        try:
            kind, seed = line.split()
            digest = run_kind(kind, int(seed)).trace.digest()
        except Exception:
            digest = ""  # The first process fails on it too, and reports it.
        print(digest, flush=True)


if __name__ == "__main__":
    main()
