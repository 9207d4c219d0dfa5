"""Wakes a relay to look for rows: after a notification, otherwise at growing intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.databases.failures import words
from txmq.databases.notifications import LISTENING_PROBLEMS, listen
from txmq.runtime.backoff import Backoff

__all__ = ["WakeUp"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.005
GAP_S: Final = 0.002
"""The pause between two looks: rows committed in it are read together."""


class WakeUp:
    """The pauses between looks.

    Args:
        most_s: The longest pause. It also applies to a relay that listens: one notification may
            announce many transactions, and some of them commit later.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._pause_s = FIRST_PAUSE_S
        self._woken = asyncio.Event()
        self._is_notified = False

    def notify(self) -> None:
        """Note a notification of new rows."""
        self._is_notified = True
        self._pause_s = FIRST_PAUSE_S
        self._woken.set()

    def wake(self) -> None:
        """Look soon, for another reason than a notification."""
        self._woken.set()

    def take_notification(self) -> bool:
        """True if a notification came since the last call."""
        was_notified, self._is_notified = self._is_notified, False
        return was_notified

    async def wait(self, count: int, *, has_more: bool) -> None:
        """Wait until it is time to look again.

        Args:
            count: The number of rows that the last look found.
            has_more: Whether there are more rows, and memory for them.
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
        """Receive PostgreSQL's notifications, until cancelled."""
        while True:
            try:
                await listen(like, channel, self._notify_over(backoff))
            except LISTENING_PROBLEMS as error:
                log.warning("no notifications of new rows, polling only: %s", words(error))
            self._pause_s = FIRST_PAUSE_S
            self._woken.set()
            await asyncio.sleep(backoff.next_pause())

    def _notify_over(self, backoff: Backoff) -> Callable[[], None]:
        def notify() -> None:
            backoff.reset()
            self.notify()

        return notify
