"""When cyclic garbage is collected around a run, so that worlds do not outlive their runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["COLLECTOR"]

OBJECTS_LEFT_MAX = 50_000
"""So many objects may finished runs leave behind, about ten busy worlds, until the next collects.
Collecting looks at the whole process, so doing it before each run would cost more than the run."""


class _Collector:
    """Collects cyclic garbage when a run says so, and what a run leaves as it ends."""

    def __init__(self) -> None:
        self._left = 0

    @contextmanager
    def on_schedule(self) -> Iterator[None]:
        """While inside, collecting is up to the run and sees only what the run has made."""
        if self._left >= OBJECTS_LEFT_MAX:
            self._left = 0
            gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        # What existed before is none of the run's business, and leaving it out makes collecting
        # cheap.
        gc.freeze()
        try:
            yield
        finally:
            # Programs are full of cycles, and Python takes whatever was thawed for old: by itself
            # it would hardly look there again, and the bytes that hang on them would pile up.
            gc.collect()
            # Where the run failed, its error still holds what was there.
            self._left += len(gc.get_objects())
            gc.unfreeze()
            if was_enabled:
                gc.enable()


COLLECTOR = _Collector()
"""One for the process, as there is one heap."""
