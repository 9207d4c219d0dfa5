"""Collects cyclic garbage around runs, so that worlds do not outlive their runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["COLLECTOR"]

OBJECTS_LEFT_MAX = 50_000
"""The number of objects that finished runs may leave before the next run collects: about ten busy
worlds. A collection scans the whole process; before each run it would cost more than the run.
"""


class _Collector:
    """Collects cyclic garbage when a run asks for it, and when the run ends."""

    def __init__(self) -> None:
        self._left = 0

    @contextmanager
    def on_schedule(self) -> Iterator[None]:
        """Inside this context, only the run collects, and only objects that it created."""
        if self._left >= OBJECTS_LEFT_MAX:
            self._left = 0
            gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        # Older objects do not belong to the run; without them a collection is cheap.
        gc.freeze()
        try:
            yield
        finally:
            # Programs have many cycles, and Python treats unfrozen objects as old: it would rarely
            # scan them again, and memory would grow.
            gc.collect()
            # If the run failed, its error still holds its objects.
            self._left += len(gc.get_objects())
            gc.unfreeze()
            if was_enabled:
                gc.enable()


COLLECTOR = _Collector()
"""One for the process, because it has one heap."""
