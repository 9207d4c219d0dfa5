"""Long work in slices, between which requests are served."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["Pause"]

SLICE_S: Final = 0.002
"""How long work goes on before requests are served."""


class Pause:
    """Decides when requests have their turn."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + SLICE_S

    def is_due(self) -> bool:
        """Whether this slice is over."""
        return self._time() >= self._until

    async def rest(self) -> None:
        """Let requests be served, and begin the next slice."""
        await asyncio.sleep(0)
        self._until = self._time() + SLICE_S
