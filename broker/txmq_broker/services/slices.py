"""Long work in slices, between which requests are served."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Final, TypeAlias, TypeVar

import msgspec

from txmq.errors import LocalProtocolError, ServiceUnavailable
from txmq.limits import FRAME_BYTES_MAX, LONG_REQUESTS_BYTES_MAX, TURN_S
from txmq.protocol.bodies import Body
from txmq.protocol.command import Command, answer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Handler, Postponed
from txmq.runtime.clock import Clock

__all__ = [
    "AT_ONCE",
    "LongAnswers",
    "LongRequests",
    "Pause",
    "Steps",
    "rows_in_parts",
    "table_answer",
    "table_in_parts",
    "whole",
]

SLICE_S: Final = 0.002
"""How long a slice of work takes before requests are served."""


class Pause:
    """Decides when long work pauses for requests."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + SLICE_S

    def is_due(self) -> bool:
        """Whether this slice is over."""
        return self._time() >= self._until

    async def rest(self) -> None:
        """Let the loop serve requests, then begin the next slice."""
        await asyncio.sleep(0)
        self._until = self._time() + SLICE_S


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
        """The remaining steps of the first request."""

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


LENGTH_BYTES: Final = 4
"""A frame begins with the length of the rest, in this many bytes."""

T = TypeVar("T")

StepsOf: TypeAlias = Callable[[Command], Steps]
"""Serves one request in parts."""


class LongAnswers:
    """Serves requests in parts if their tables are large.

    Args:
        clock: The source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def handler(self, code: int, steps_of: StepsOf, size: Callable[[], int]) -> Handler:
        """A handler that serves a request at once if its table is small, otherwise in parts.

        Args:
            code: The code of the request.
            steps_of: Serves the request.
            size: Returns how many rows the table has.
        """

        def serve(connection: Connection, request: Command) -> Steps:
            del connection
            return steps_of(request)

        long = LongRequests([code], serve, self._clock, "requests for whole tables")

        @wraps(steps_of)
        def handle(connection: Connection, request: Command) -> bytes:
            if size() > AT_ONCE or long.has_one_of(connection):
                raise long.postponed(request)
            return whole(steps_of(request))

        return handle


def whole(steps: Generator[None, None, T]) -> T:
    """Take all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def table_answer(request: Command, empty: Body, rows: Iterable[tuple[str, object]]) -> Steps:
    """Answer with a body whose last member is a table, encoded in parts.

    Args:
        request: The request.
        empty: The body with an empty table.
        rows: The rows of the table.

    Returns:
        The same bytes as those of an answer with the whole body.

    Raises:
        LocalProtocolError: The answer is too large.
    """
    parts = []
    for part in table_in_parts(empty, rows):
        parts.append(part)
        yield
    return answer_of(request, parts)


def answer_of(request: Command, parts: Sequence[bytes]) -> bytes:
    """An answer whose body comes in parts, each copied only once.

    Raises:
        LocalProtocolError: The answer is too large.
    """
    start = answer(request)
    size = len(start) + sum(map(len, parts))
    if size > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"the answer has {size} bytes, and a frame has at most {FRAME_BYTES_MAX}; ask for "
            "single topics or groups"
        )
    length = (size - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return b"".join((length, start[LENGTH_BYTES:], *parts))


AT_ONCE: Final = 2_000
"""Rows of a table to encode in one go, which takes less than a millisecond."""


def table_in_parts(empty: Body, rows: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """The bytes of a body with a table.

    Args:
        empty: The body with an empty table.
        rows: The rows of the table.
    """
    before, _, behind = empty.write().partition(b"{}")
    yield before
    yield from rows_in_parts(rows)
    yield behind


def rows_in_parts(rows: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """The bytes of a table alone."""
    left, separator = iter(rows), b"{"
    while some := dict(islice(left, AT_ONCE)):
        yield separator + msgspec.json.encode(some)[1:-1]
        separator = b","
    yield b"}" if separator == b"," else b"{}"
