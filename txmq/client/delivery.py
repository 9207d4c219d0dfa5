"""One load on its way to a broker, through all its attempts.

A delivery is told by callbacks how its way goes on, so that no task is needed for it: first
:class:`~txmq.client.post.Post` finds a queue and a connection, then the connection tells the answer
or that there is none. It ends once, in :meth:`Post.delivered` or :meth:`Post.undeliverable`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from txmq.client.parcel import Parcel
from txmq.client.values import SendResult, SendStatus
from txmq.errors import (
    BrokerRefused,
    ConnectFailed,
    Effect,
    InvalidParameter,
    NoPermission,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotFound,
    TransportError,
    TxmqError,
    UnknownRefusal,
    UsageError,
)
from txmq.message import Queue
from txmq.protocol.command import Command
from txmq.protocol.sends import SendHeaderTemplate
from txmq.remoting.connection import Connection

if TYPE_CHECKING:
    from txmq.client.post import Post

__all__ = ["Attempt", "Delivery", "retold"]

RETRIED_CODES: Final = frozenset({17, 14, 1, 2, 16, 204, 205})
"""Refusals that another broker may not give, as stock producers see it."""

ROUTE_IS_WRONG: Final = (ConnectFailed, NoPermission, InvalidParameter)


class Attempt:
    """Where a delivery was tried in vain, and why."""

    __slots__ = ("broker", "problem")

    def __init__(self, broker: str, problem: TxmqError) -> None:
        self.broker = broker
        self.problem = problem


class Delivery:
    """A load, where it may go, and how often.

    Args:
        post: Who carries it.
        parcel: The load.
        chosen: Its queue; the one whose turn it is at each attempt where it is ``None``.
        retries: How many further attempts there are.
        is_nowait: Whether they go to the same queue, and only where no answer came.
        is_once: Whether there are any only while it is certain that nothing is stored.
        size: The bytes it counts for.
        is_single: Whether the future is of one result, not of a list.
    """

    __slots__ = (
        "_attempts", "_began", "_connection", "_deadline", "_is_nowait", "_is_once", "_line",
        "_opaque", "_post", "_retries", "_stored", "_timer", "avoid", "chosen", "future",
        "has_looked_again", "is_single", "is_spread", "parcel", "queue", "size",
    )  # fmt: skip

    def __init__(
        self,
        post: Post,
        parcel: Parcel,
        chosen: Queue | None,
        retries: int,
        size: int,
        *,
        is_nowait: bool = False,
        is_once: bool = False,
        is_single: bool = True,
    ) -> None:
        self.parcel = parcel
        self.chosen = chosen
        self.queue = chosen
        self.avoid: str | None = None
        self.has_looked_again = False
        self.is_spread = False
        self.size = size
        self.is_single = is_single
        self.future: asyncio.Future[Any] = post.loop.create_future()
        self._post = post
        self._retries = retries
        self._is_nowait = is_nowait
        self._is_once = is_once
        self._began = now = post.clock.monotonic()
        self._deadline = now + post.timeout_s
        self._attempts: list[Attempt] | None = None
        self._stored: list[SendResult] | None = None
        self._connection: Connection | None = None
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._line: dict[Delivery, None] | None = None

    # The way there

    def wait(self, line: dict[Delivery, None]) -> None:
        """Wait in line for a route, or for a connection, no longer than this attempt may take."""
        line[self] = None
        self._line = line
        if self._timer is None:
            now = self._post.clock.monotonic()
            left = max(0.0, self._attempt_ends(now) - now)
            self._timer = self._post.loop.call_later(left, self._late)

    def stop_waiting(self) -> None:
        """What was waited for is there, or never will be."""
        self._line = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _attempt_ends(self, now: float) -> float:
        """Until when this attempt may last: for its share of the time that is left, where a later
        attempt goes to another broker. A broker that is silent costs no more than that.
        """
        if not self.is_spread or self._retries <= 0 or self._is_nowait or self._is_once:
            return self._deadline
        return now + max(0.0, self._deadline - now) / (self._retries + 1)

    def _late(self) -> None:
        self._timer = None
        if self._line is not None:
            del self._line[self]
            self._line = None
        problem = RequestTimeout("there was no way to a broker within the time for sending")
        problem.effect = Effect.NONE  # Of this attempt nothing was sent.
        self.lost(problem)

    def go(self, connection: Connection, form: SendHeaderTemplate) -> None:
        """Send it, now."""
        assert self.queue is not None, "a delivery goes to a queue"
        post, parcel = self._post, self.parcel
        now = post.clock.monotonic()
        if self._attempts is not None and now >= self._deadline:
            self._late()
            return
        self._began = now
        opaque = connection.number()
        try:
            head = parcel.head(form, opaque, self.queue.number, post.clock.wall_ms())
            ends = self._attempt_ends(now) if self.is_spread else self._deadline
            connection.post(opaque, self, ends, head, parcel.body)
        except TransportError as problem:
            problem.effect = Effect.NONE  # It was closed before.
            self.lost(problem)
            return
        except TxmqError as problem:
            self._end(problem)
            return
        self._connection, self._opaque = connection, opaque

    # What came of it

    def answered(self, answer: Command) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.answered`."""
        self._connection = None
        queue = self.queue
        assert queue is not None, "what is answered was sent to a queue"
        try:
            results = self.parcel.results(answer, queue)
        except BrokerRefused as problem:
            self._refused(problem)
        except RemoteProtocolError as problem:
            self._post.note(queue.broker, 0.0, failed=True)
            problem.effect = Effect.MAYBE
            self._end(problem)
        else:
            post = self._post
            if post.heard is not None:
                post.heard(queue.broker, answer)
            if post.faults is not None:
                post.note(queue.broker, post.clock.monotonic() - self._began)
            if (
                results[0].status is not SendStatus.OK
                and post.settings.retry_not_safe
                and not self._is_nowait
                and not self._is_once
                and self._retries > 0
            ):
                self._stored = results
                self._again()
                return
            post.delivered(self, results)

    def failed(self, problem: TransportError) -> None:
        """See :meth:`txmq.remoting.connection.Waiter.failed`."""
        self._connection = None
        self.lost(problem)

    def lost(self, problem: TransportError) -> None:
        """No answer came of this attempt."""
        self._tried(problem)
        if self._may_again(problem):
            if self._is_nowait:
                self.chosen = self.queue
            self._again()
        else:
            self._end(problem)

    def _refused(self, problem: BrokerRefused) -> None:
        self._tried(problem)
        code = problem.response_code if isinstance(problem, UnknownRefusal) else problem.code
        may_again = not self._is_nowait and code in RETRIED_CODES
        if may_again and self._may_again(problem):
            self._again()
        else:
            self._end(problem)

    def _may_again(self, problem: TxmqError) -> bool:
        if self._is_once and problem.effect is not Effect.NONE:
            return False
        return self._retries > 0 and self._post.clock.monotonic() < self._deadline

    def _tried(self, problem: TxmqError) -> None:
        broker = "" if self.queue is None else self.queue.broker
        if broker:
            self._post.note(broker, 0.0, failed=True)
        if isinstance(problem, TopicNotFound):
            self._post.session.remove(self.parcel.topic, broker)
        elif isinstance(problem, ROUTE_IS_WRONG):
            self._post.session.forget(self.parcel.topic)
        if self._attempts is None:
            self._attempts = []
        self._attempts.append(Attempt(broker, problem))

    def _again(self) -> None:
        self._retries -= 1
        if self.queue is not None:
            self.avoid = self.queue.broker
        # Not at once: a failure may come from deep within what carries all deliveries.
        self._post.loop.call_soon(self._post.carry, self)

    def give_up(self, problem: TxmqError) -> None:
        """There is no way: the topic is unknown, or cannot be written to."""
        self._end(problem)

    def abandon(self, reason: str) -> None:
        """The producer closes."""
        problem: TxmqError = UsageError(reason)
        if self._connection is not None:
            self._connection.break_off(self._opaque)
            self._connection = None
            problem.effect = Effect.MAYBE
        self._end(problem)

    def _end(self, problem: TxmqError) -> None:
        self.stop_waiting()
        if self._stored is not None:
            # An earlier attempt was answered; that it could not be bettered is no failure.
            self._post.delivered(self, self._stored)
            return
        attempts = self._attempts or []
        if not attempts or attempts[-1].problem is not problem:
            attempts = [
                *attempts,
                Attempt("" if self.queue is None else self.queue.broker, problem),
            ]
        self._post.undeliverable(self, attempts_told(attempts))

    def drop(self) -> None:
        """Nobody wants to know any more; what is sent is sent."""
        self.stop_waiting()
        if self._connection is not None:
            self._connection.break_off(self._opaque)
            self._connection = None
        self._post.dropped(self)


def attempts_told(attempts: list[Attempt]) -> TxmqError:
    """The last attempt's error, which says what came before, and whether any may have worked."""
    last = attempts[-1].problem
    if len(attempts) == 1:
        return last
    ways = ", ".join(
        f"{each.broker or 'no broker'}: {type(each.problem).__name__}" for each in attempts
    )
    text = f"{last} (the last of {len(attempts)} attempts; {ways})"
    effects = {each.problem.effect for each in attempts}
    if Effect.APPLIED in effects:
        effect = Effect.APPLIED
    else:
        effect = Effect.MAYBE if Effect.MAYBE in effects else Effect.NONE
    found = retold(last, text, effect)
    chain = found
    for each in reversed(attempts[:-1]):
        chain.__cause__ = retold(each.problem, str(each.problem), each.problem.effect)
        chain = chain.__cause__
    return found


def retold(problem: TxmqError, text: str, effect: Effect) -> TxmqError:
    """The same error in other words; errors are shared where one loss is that of many."""
    again = type(problem).__new__(type(problem))
    again.__dict__.update(problem.__dict__)
    again.args = (text,)
    again.effect = effect
    return again
