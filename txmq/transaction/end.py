"""Sends ENDs to the broker that stores the half message, and classifies its answers.

An END here is a request with an answer; stock brokers answer it too when a client asks for one.
Stock clients do not ask, so they never notice a lost END. Nothing here raises: a broker that did
not receive the END checks the transaction by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from txmq.client.cluster_client import ClusterClient
from txmq.client.values import SendResult
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
from txmq.protocol.headers import CheckState, EndTransaction
from txmq.protocol.record import position_in
from txmq.remoting.connection import Connection
from txmq.runtime.backoff import Backoff
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import EndReply, LocalTransactionState

__all__ = ["EndAnswer", "EndSender"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

_END: Final = RequestCode.END_TRANSACTION


class EndAnswer(NamedTuple):
    """The broker's answer to an END, and the error if the broker did not take it."""

    reply: EndReply
    error: TxmqError | None = None


class EndSender:
    """Sends decisions to brokers.

    Args:
        client: The connections to the brokers.
        group: The producer group.
        settings: The timeout of an END, and whether one may be repeated.
    """

    def __init__(self, client: ClusterClient, group: str, settings: TransactionSettings) -> None:
        self._client = client
        self._group = group
        self._session = client.session
        self._settings = settings

    async def send(
        self,
        half: SendResult,
        state: LocalTransactionState,
    ) -> EndAnswer:
        """Send an END to the broker that stored the half message; repeat it as long as the broker
        cannot have received it.

        Args:
            half: The answer to the half message.
            state: The decision.
        """
        session, clock, queue = self._session, self._session.clock, half.queue
        end = EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=half.offset,
            commit_log_offset=position_in(half.offset_id),
            commit_or_rollback=state.value,
            msg_id=half.id,
            transaction_id=half.transaction_id or half.id,
            topic=queue.topic,
        )
        now = clock.monotonic()
        deadline = now + self._settings.end_timeout
        backoff: Backoff | None = None
        route = session.routes.get(queue.topic, now)
        # A topic that this very message created has no route yet.
        address = (route and route.masters.get(queue.broker)) or self._client.master(queue.broker)
        while True:
            try:
                connection = None if address is None else session.pool.ready(address)
                if connection is None:
                    left_s = deadline - clock.monotonic()
                    connection = await self._connect(queue, address, left_s)
                left_s = max(0.0, deadline - clock.monotonic())
                # Not urgent: where many transactions end at once, their ENDs share a write.
                await connection.request(_END, end, timeout_s=left_s, is_urgent=False)
            except TxmqError as refused:
                error = refused
            else:
                return EndAnswer(EndReply.TAKEN)
            if backoff is None:
                backoff = Backoff(session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            pause_s = backoff.next_pause()
            if not self._may_repeat(error) or deadline - clock.monotonic() <= pause_s:
                return _answer_of(error)
            log.info("the END of %s is sent again: %s", end.msg_id, error)
            session.forget(queue.topic)
            address = None
            await asyncio.sleep(pause_s)

    async def _connect(self, queue: Queue, address: str | None, left_s: float) -> Connection:
        session = self._session
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                if address is None:
                    route = await session.route_to_write(queue.topic)
                    address = route.master(queue.broker)
                return await session.connection(address)
        except TimeoutError as error:
            late = RequestTimeout(f"no connection to broker {queue.broker} in time")
            late.effect = Effect.NONE  # Nothing was sent.
            raise late from error

    def _may_repeat(self, error: TxmqError) -> bool:
        # While a broker is away for a moment, its topic has no route either.
        if not error.retryable and not isinstance(error, TopicNotFound):
            return False
        return error.effect is Effect.NONE or self._settings.repeats_end

    async def answer(
        self,
        connection: Connection,
        check: CheckState,
        topic: str,
        xid: str,
        state: LocalTransactionState,
    ) -> EndAnswer:
        """Answer a check over the connection on which it came. The check names the half message's
        present offset.
        """
        end = EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=check.tran_state_table_offset,
            commit_log_offset=check.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=check.msg_id or xid,
            transaction_id=check.transaction_id or xid,
            topic=topic,
        )
        try:
            if state is LocalTransactionState.UNKNOWN:
                # Stock brokers never answer an "unknown".
                connection.oneway(_END, end)
                return EndAnswer(EndReply.NONE)
            await connection.request(_END, end, timeout_s=self._settings.end_timeout)
        except TxmqError as error:
            return _answer_of(error)
        return EndAnswer(EndReply.TAKEN)


def _answer_of(error: TxmqError) -> EndAnswer:
    match error:
        case ShouldCommit():
            return EndAnswer(EndReply.COMMITTED, error)
        case ShouldRollBack():
            return EndAnswer(EndReply.ROLLED_BACK, error)
        case BrokerRefused():
            return EndAnswer(EndReply.REFUSED, error)
        case _:
            return EndAnswer(EndReply.NONE, error)
