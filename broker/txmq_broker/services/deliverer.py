"""Delivers delayed messages to their topics when they are due.

The messages of one round share one write, and the next round begins when that write is durable. Due
times are wall-clock times. The deliverer reads the clock every second, because no event says that
the clock was set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.errors import CorruptRecord, ServiceUnavailable
from txmq.limits import DELIVERED_BYTES_MAX, DELIVERED_TOGETHER_MAX
from txmq.runtime.clock import Clock
from txmq.text import quantity
from txmq_broker.core.schedule import Schedule
from txmq_broker.services.flusher import Flusher
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.message_store import Span

__all__ = ["Deliverer"]

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
_COUNTED_TOGETHER: Final = 100
_COUNTING_REST_S: Final = 0.01
"""A start counts retries in steps of 100, with this pause between them. A step takes about two
milliseconds, so a million messages take two minutes and a fifth of the processor."""


class Deliverer:
    """Delivers one broker's delayed messages."""

    def __init__(
        self, schedule: Schedule, delays: DelayStore, flusher: Flusher, clock: Clock
    ) -> None:
        self._schedule = schedule
        self._delays = delays
        self._flusher = flusher
        self._clock = clock
        self.on_damage: Callable[[CorruptRecord], None] = lambda _error: None
        """Notes a damaged message, which is not delivered."""
        self._wake = asyncio.Event()
        self._sleeps_until: int | None = None
        self._held_back = 0
        self._is_refused = False

    async def count_retries(self) -> None:
        """Count the messages that waited for a retry when the broker started."""
        are_left = True
        try:
            while are_left:
                are_left = self._delays.count_retries(_COUNTED_TOGETHER)
                await asyncio.sleep(_COUNTING_REST_S)
        except (CorruptRecord, OSError) as error:
            log.warning("messages that wait for a retry are not counted: %s", error)

    async def run(self) -> None:
        """Deliver due messages until cancelled."""
        while True:
            now_ms = self._clock.wall_ms()
            try:
                self.round(now_ms)
            except (ServiceUnavailable, OSError) as error:
                # No message is lost: due messages wait until the disk accepts writes.
                if not self._is_refused:
                    log.warning("messages that are due must wait: %s", error)
                self._is_refused = True
            else:
                self._is_refused = False
            await self._sleep(self._pause(now_ms))

    def _pause(self, looked_ms: int) -> float:
        """How many seconds to wait for due messages; a published message may end the wait."""
        next_ms = self._delays.next_ms()
        if self._delays.is_delivering or next_ms is None or next_ms <= looked_ms:
            # Messages that were due in the last round and are still here wait for the disk.
            self._sleeps_until = None
            return LOOK_S
        self._sleeps_until = next_ms
        return min(LOOK_S, max(0, next_ms - self._clock.wall_ms()) / 1000)

    async def _sleep(self, delay: float) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()

    def published(self, span: Span) -> None:
        """Handle a durable span of delayed messages or their copies."""
        delayed = span.delayed
        assert delayed is not None, "the span has no delayed message"
        until = self._sleeps_until
        if delayed.left or until is None or any(due.due_ms < until for due in delayed.joined):
            self._wake.set()

    def round(self, now_ms: int) -> int:
        """Deliver some of the messages that are due at a time; returns how many.

        Raises:
            ServiceUnavailable: The disk failed, or a due message cannot be found.
            OSError: The disk cannot be read.
        """
        self._tell_of_clock()
        delays = self._delays
        if delays.is_delivering or delays.first(now_ms) is None:
            return 0
        # A round is one span, so it is written whole or not at all. It also runs while sends are
        # refused: these messages keep old files of the log from being deleted.
        stored_ms = self._flusher.decision_ms()
        count = size = 0
        while count < DELIVERED_TOGETHER_MAX and size < DELIVERED_BYTES_MAX:
            due = delays.first(now_ms)
            if due is None:
                break
            count += 1
            try:
                size += self._schedule.send(due, stored_ms)
            except (ServiceUnavailable, OSError):
                raise  # The log still has it, so a later read may succeed.
            except Exception as error:
                # One bad message must not keep the others from being delivered.
                if isinstance(error, CorruptRecord):
                    self.on_damage(error)
                    log.error(  # noqa: TRY400
                        "a message that is due cannot be read, and is left out; after the log is "
                        "restored, a restart may deliver it: %s",
                        error,
                    )
                else:
                    log.exception("a message that is due cannot be delivered")
                delays.pass_over()
        return count

    def _tell_of_clock(self) -> None:
        if self._schedule.held_back > self._held_back:
            log.warning(
                "the clock was set back: %s later than wanted",
                quantity(
                    self._schedule.held_back - self._held_back, "message comes", "messages come"
                ),
            )
            self._held_back = self._schedule.held_back
