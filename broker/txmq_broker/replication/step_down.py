"""A leader that should not lead: it hands over to a follower in sync, as soon as there is one.

A leader whose disk fails or is full cannot store what clients send, and one whose log is damaged
cannot serve all of it. As long as no follower can do better, it goes on with what it can do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from txmq.errors import BrokerRefused, TransportError
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import SetAct
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.replication.set_acts import HAND_OVER, changed_by

__all__ = ["StepDown"]

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25


class StepDown:
    """The reasons of one leader to hand over.

    Args:
        leadership: What it hands over.
        clock: For the record of the act.
        successors: Returns the followers that could lead now, the best one first.
    """

    def __init__(
        self, leadership: HeldLeadership, clock: Clock, successors: Callable[[], list[str]]
    ) -> None:
        self._leadership = leadership
        self._clock = clock
        self._successors = successors
        self._reasons: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, cause: str, reason: str) -> None:
        """Note why this broker should not lead; without a reason, the cause is gone."""
        if not reason:
            self._reasons.pop(cause, None)
            return
        self._reasons[cause] = reason
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._hand_over(), name="step down")

    async def _hand_over(self) -> None:
        is_reported = False
        while self._reasons and not self._leadership.is_handing_over.is_set():
            reason = "; ".join(self._reasons.values())
            if successors := self._successors():
                act = SetAct(
                    HAND_OVER,
                    successors[0],
                    self._leadership.member,
                    reason,
                    self._clock.wall_ms(),
                )
                try:
                    await self._leadership.carry_out(act, partial(changed_by, act))
                except (BrokerRefused, TransportError) as error:
                    log.warning("handing over to %s failed: %s", act.member, error)
                else:
                    self._leadership.hand_over(act)
                    return
            elif not is_reported:
                is_reported = True
                log.error("this leader should hand over, and no follower could lead: %s", reason)
            await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
