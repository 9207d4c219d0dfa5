"""ENDs on their way to the broker that has the half message, and what it says to them.

An END is a request that is answered, as stock brokers answer it too where they are asked to; stock
clients do not ask, and never hear that one was lost. Nothing here is an error: a broker that has
not heard asks by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from txmq.client.cluster_client import ClusterClient
from txmq.client.routes import MASTER
from txmq.errors import (
    BrokerRefused,
    Effect,
    RequestTimeout,
    ShouldCommit,
    ShouldRollBack,
    TopicNotFound,
    TxmqError,
)
from txmq.message import Queue
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import EndTransaction
from txmq.remoting.connection import Connection
from txmq.runtime.backoff import Backoff
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import Reply

__all__ = ["Ends", "Heard"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

_END: Final = RequestCode.END_TRANSACTION


class Heard(NamedTuple):
    """What a broker said to an END, and why it was not taken."""

    reply: Reply
    problem: TxmqError | None = None


class Ends:
    """Tells brokers what became of transactions.

    Args:
        client: The way to them.
        settings: How long that may take, and what may be said twice.
    """

    def __init__(self, client: ClusterClient, settings: TransactionSettings) -> None:
        self._client = client
        self._session = client.session
        self._settings = settings
        self._clock = client.session.clock

    async def send(self, queue: Queue, end: EndTransaction) -> Heard:
        """Tell the broker of a queue, and tell it again as long as it cannot have heard."""
        deadline = self._clock.monotonic() + self._settings.end_timeout_s
        backoff = Backoff(self._session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        address = self._known_address(queue)
        while True:
            try:
                await self._try(queue, address, end, deadline)
            except TxmqError as problem:
                pause_s = backoff.next_pause()
                if not self._may_again(problem) or self._left(deadline) <= pause_s:
                    return _heard(problem)
                log.info("the END of %s is sent again: %s", end.msg_id, problem)
                self._session.forget(queue.topic)
                address = None
            else:
                return Heard(Reply.TAKEN)
            await asyncio.sleep(pause_s)

    async def _try(
        self, queue: Queue, address: str | None, end: EndTransaction, deadline: float
    ) -> None:
        connection = None if address is None else self._session.ready(address)
        if connection is None:
            connection = await self._connection(queue, address, deadline)
        # Where many transactions end at once, their ENDs travel together.
        left_s = self._left(deadline)
        await connection.request(_END, end, timeout_s=left_s, is_urgent=False)

    async def _connection(self, queue: Queue, address: str | None, deadline: float) -> Connection:
        session = self._session
        try:
            async with asyncio.timeout(self._left(deadline)):
                if address is None:
                    route = await session.route_to_write(queue.topic)
                    address = route.master(queue.broker)
                return await session.connection(address)
        except TimeoutError as problem:
            late = RequestTimeout(f"there was no way to broker {queue.broker} in time")
            late.effect = Effect.NONE  # Nothing was sent.
            raise late from problem

    def _known_address(self, queue: Queue) -> str | None:
        route = self._session.known_route(queue.topic)
        if route is not None and (found := route.addresses.get(queue.broker, {}).get(MASTER)):
            return found
        # A topic that came into being by this very message has no route yet.
        return self._client.master(queue.broker)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    def _may_again(self, problem: TxmqError) -> bool:
        # Where the broker is away for a moment, so is its topic.
        if not problem.retryable and not isinstance(problem, TopicNotFound):
            return False
        return problem.effect is Effect.NONE or self._settings.repeats_end

    async def answer(self, connection: Connection, end: EndTransaction) -> Heard:
        """Answer a check, over the connection on which it came."""
        try:
            if not end.commit_or_rollback:
                # Stock brokers never answer that one.
                connection.oneway(_END, end)
                return Heard(Reply.NONE)
            await connection.request(_END, end, timeout_s=self._settings.end_timeout_s)
        except TxmqError as problem:
            return _heard(problem)
        return Heard(Reply.TAKEN)


def _heard(problem: TxmqError) -> Heard:
    match problem:
        case ShouldCommit():
            return Heard(Reply.COMMITTED, problem)
        case ShouldRollBack():
            return Heard(Reply.ROLLED_BACK, problem)
        case BrokerRefused():
            return Heard(Reply.REFUSED, problem)
        case _:
            return Heard(Reply.NONE, problem)
