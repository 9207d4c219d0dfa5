"""A few threads for calls that block, each with a limit of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["ANSWER_S", "BoundedThreads"]

T = TypeVar("T")

ANSWER_S: Final = 8.0
"""How long a page waits for a call. The page itself may take longer, so that it can report a call
that does not return."""
_THREADS: Final = 2


class BoundedThreads:
    """Runs calls beside the event loop. Each owner has threads of its own, so a call that hangs
    holds up no other owner.

    Args:
        name: What the threads are for.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"txmq-{name}")

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a call. A call that takes too long goes on, but its result is lost.

        Raises:
            TimeoutError: It takes longer than :data:`ANSWER_S`.
            Exception: Any error of the call.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            return await loop.run_in_executor(self._pool, call)

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)
