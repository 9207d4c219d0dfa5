"""Answers about whole tables, built in parts when the tables are large.

A broker with 100,000 topics encodes all of them in 30 ms. The parts give other requests their turn
in between; the bytes are the same as those of an answer in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import wraps
from typing import Final, TypeAlias, TypeVar

from txmq.errors import LocalProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.bodies import Body
from txmq.protocol.command import Command, answer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.clock import Clock
from txmq_broker.services.long_requests import LongRequests, Steps
from txmq_broker.services.table_parts import AT_ONCE, table_in_parts

__all__ = ["AT_ONCE", "LongAnswers", "table_answer", "whole"]

LENGTH_BYTES: Final = 4
"""The length of the rest, with which a frame begins."""

T = TypeVar("T")

StepsOf: TypeAlias = Callable[[Command], Steps]
"""Serves one request in parts."""


class LongAnswers:
    """Has requests served in parts while their tables are large.

    Args:
        clock: The source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def handler(self, code: int, steps_of: StepsOf, size: Callable[[], int]) -> Handler:
        """A handler that serves a request at once if its table is small, and else in parts.

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
    """Take all steps in one go, and return their result."""
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
        The same bytes as of an answer with the whole body.

    Raises:
        LocalProtocolError: The answer is too large.
    """
    parts = []
    for part in table_in_parts(empty, rows):
        parts.append(part)
        yield
    return answer_of(request, parts)


def answer_of(request: Command, parts: Sequence[bytes]) -> bytes:
    """An answer whose body is in parts, which are copied once.

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
