"""Serves long requests in parts, so that other connections are served in between."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias

from txmq.errors import ServiceUnavailable
from txmq.limits import LONG_REQUESTS_BYTES_MAX, TURN_S
from txmq.protocol.command import Command
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Postponed
from txmq.runtime.clock import Clock

__all__ = ["LongRequests", "Steps"]

Steps: TypeAlias = Generator[None, None, bytes]
"""Serves one request: yields after each part, and returns the answer."""


class LongRequests:
    """Serves requests one after another, each in as many turns of the loop as it takes.

    Args:
        codes: The codes of the requests.
        serve: Serves one request in parts. It is closed if the connection closes before the end.
        clock: The source of time.
        what: The requests, in the plural, for a refusal.
    """

    def __init__(
        self,
        codes: Iterable[int],
        serve: Callable[[Connection, Command], Steps],
        clock: Clock,
        what: str = "long heartbeats",
    ) -> None:
        self._serve = serve
        self._what = what
        self._clock = clock
        self._dispatch = Dispatcher(dict.fromkeys(codes, self._go_on))
        self._waiting: deque[tuple[Connection, Command]] = deque()
        self._counts: Counter[Connection] = Counter()
        self._bytes = 0
        self._steps: Steps | None = None
        """What is left of the first request."""

    def has_one_of(self, connection: Connection) -> bool:
        """Whether a request of this connection is not served yet."""
        return connection in self._counts

    def postponed(self, request: Command) -> Postponed:
        """An error that a handler raises to have its request served in parts.

        Raises:
            ServiceUnavailable: Too much waits already.
        """
        if self._bytes + _size(request) > LONG_REQUESTS_BYTES_MAX:
            raise ServiceUnavailable(
                f"{self._bytes} bytes of {self._what} wait their turn, and "
                f"{LONG_REQUESTS_BYTES_MAX} is the limit; nothing of this one was recorded; send "
                "it again later"
            )
        return Postponed(self._put)

    def _put(self, connection: Connection, request: Command) -> None:
        self._waiting.append((connection, request))
        self._counts[connection] += 1
        self._bytes += _size(request)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        connection, request = self._waiting[0]
        answer = None
        if connection.is_open:
            answer = self._dispatch(connection, request)
        elif self._steps is not None:
            self._steps.close()
            self._steps = None
        if self._steps is None:
            self._waiting.popleft()
            self._bytes -= _size(request)
            self._counts[connection] -= 1
            if not self._counts[connection]:
                del self._counts[connection]
        if answer is not None:
            connection.send(answer)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _go_on(self, connection: Connection, request: Command) -> bytes | None:
        steps, self._steps = self._steps or self._serve(connection, request), None
        until = self._clock.monotonic() + TURN_S
        try:
            while True:
                next(steps)
                if self._clock.monotonic() > until:
                    self._steps = steps
                    return None
        except StopIteration as end:
            answer: bytes = end.value
            return answer


def _size(request: Command) -> int:
    return len(request.body) + 1024  # Short requests take room too.
