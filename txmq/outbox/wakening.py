"""When a relay looks for rows: when somebody says that there are some, and else now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.databases.failures import words
from txmq.databases.notifications import LISTENING_PROBLEMS, listen
from txmq.runtime.backoff import Backoff

__all__ = ["Wakening"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.005
GAP_S: Final = 0.002
"""Between two looks: what is committed meanwhile is read together."""


class Wakening:
    """The pauses between looks.

    Args:
        most_s: The longest. What is heard may be of one transaction among many, the others of which
            commit a little later, and one of them at any time: so it is not longer for who listens.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._pause_s = FIRST_PAUSE_S
        self._woken = asyncio.Event()
        self._has_reason = False

    def heard(self) -> None:
        """Somebody has said that there is something."""
        self._has_reason = True
        self._pause_s = FIRST_PAUSE_S
        self._woken.set()

    def wake(self) -> None:
        """There is reason to look, or room."""
        self._woken.set()

    def reason(self) -> bool:
        """Whether somebody has said so since this was asked last."""
        found, self._has_reason = self._has_reason, False
        return found

    async def wait(self, count: int, *, has_more: bool) -> None:
        """Wait until it is time to look again.

        Args:
            count: How many rows were found just now.
            has_more: Whether there are more for which there is room.
        """
        if count:
            self._pause_s = FIRST_PAUSE_S
        if has_more:
            await asyncio.sleep(0)
            return
        await asyncio.sleep(GAP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._woken.wait()
        self._woken.clear()
        self._pause_s = min(2 * self._pause_s, self._most_s)

    async def listen(self, like: str, channel: str, backoff: Backoff) -> None:
        """Be woken by PostgreSQL, for ever."""
        while True:
            try:
                await listen(like, channel, self._heard_over(backoff))
            except LISTENING_PROBLEMS as problem:
                log.warning("nobody says when there are rows: %s", words(problem))
            self._pause_s = FIRST_PAUSE_S
            self._woken.set()
            await asyncio.sleep(backoff.failed())

    def _heard_over(self, backoff: Backoff) -> Callable[[], None]:
        def heard() -> None:
            backoff.worked()
            self.heard()

        return heard
