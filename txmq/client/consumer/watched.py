"""Handlers that are looked on at while they work; see :mod:`txmq.client.watch`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from txmq.client.consumer.handling import Verdict
from txmq.client.watch import HandleWatch
from txmq.message import Later, ReceivedMessage

__all__ = ["HandleWatches"]


class HandleWatches:
    """Has watches look on while a consumer's handlers work."""

    def __init__(self, watches: Sequence[HandleWatch]) -> None:
        self._watches = watches

    async def handle(
        self,
        call: Callable[[Sequence[ReceivedMessage]], Awaitable[Verdict]],
        messages: Sequence[ReceivedMessage],
    ) -> Verdict:
        """Call a handler and have it watched."""
        ends = [each.begin(messages) for each in self._watches]
        try:
            verdict = await call(messages)
        except BaseException as problem:
            for end in reversed(ends):
                end(0, problem)
            raise
        consumed = verdict.first if isinstance(verdict, Later) else len(messages)
        for end in reversed(ends):
            end(consumed, None)
        return verdict
