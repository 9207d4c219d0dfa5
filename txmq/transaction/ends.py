"""Sends the decisions of transactions to the brokers that store their half messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

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
from txmq.protocol.headers import DECIDED, CheckState, EndTransaction, OtherHalf
from txmq.protocol.record import position_in
from txmq.remoting.connection import Connection
from txmq.runtime.backoff import Backoff
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import OUTCOMES, EndReply, LocalTransactionState

__all__ = ["EndAnswer", "EndSender"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

_END: Final = RequestCode.END_TRANSACTION
_DOUBTS: Final = (EndReply.NONE, EndReply.REFUSED)
"""Replies that leave it open whether the broker has the decision, the most doubtful first."""


class EndAnswer(NamedTuple):
    """The broker's answer to an END, and the error if the broker did not accept it."""

    reply: EndReply
    error: TxmqError | None = None


class EndSender:
    """Sends decisions to the brokers that store the half messages, and classifies the answers.

    It asks for a reply to each END. Stock brokers support this, but stock clients send ENDs one-way
    and never notice a lost one. Nothing here raises: a broker that missed the END checks the
    transaction.

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

    def send(
        self, halves: Sequence[SendResult], state: LocalTransactionState
    ) -> Coroutine[Any, Any, EndAnswer]:
        """Send the decision to the brokers that stored the half messages; retry while a broker
        cannot have received it.

        Args:
            halves: The answers to the half messages of one transaction.
            state: The decision.
        """
        if len(halves) == 1:
            return self._end(halves, state)
        by_broker: dict[str, list[SendResult]] = {}
        for half in halves:
            by_broker.setdefault(half.queue.broker, []).append(half)
        return self._end_all(by_broker.values(), state)

    async def _end_all(
        self, parts: Iterable[Sequence[SendResult]], state: LocalTransactionState
    ) -> EndAnswer:
        """Send several ENDs at once; returns the worst answer."""
        answers = await asyncio.gather(*(self._end(part, state) for part in parts))
        return min(answers, key=lambda found: _rank(found, state))

    async def _end(self, halves: Sequence[SendResult], state: LocalTransactionState) -> EndAnswer:
        """Send one END for half messages of the same broker. A broker of Apache RocketMQ decides
        only the first one, and does not say that it decided more; it receives an END for each.
        """
        session, clock = self._session, self._session.clock
        half, others = halves[0], halves[1:]
        queue = half.queue
        end = EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=half.offset,
            commit_log_offset=position_in(half.offset_id),
            commit_or_rollback=state.value,
            msg_id=half.id,
            transaction_id=half.transaction_id or half.id,
            topic=queue.topic,
            others=_written(others) if others else None,
        )
        now = clock.monotonic()
        deadline = now + self._settings.end_timeout
        backoff: Backoff | None = None
        route = session.routes.get(queue.topic, now)
        # If this message created the topic, there is no route yet.
        address = (route and route.masters.get(queue.broker)) or self._client.master(queue.broker)
        while True:
            try:
                connection = None if address is None else session.pool.ready(address)
                if connection is None:
                    left_s = deadline - clock.monotonic()
                    connection = await self._connect(queue, address, left_s)
                left_s = max(0.0, deadline - clock.monotonic())
                # Not urgent: the ENDs of concurrent transactions share a write.
                answer = await connection.request(_END, end, timeout_s=left_s, is_urgent=False)
            except TxmqError as refused:
                error = refused
            else:
                if others and DECIDED not in answer.field_map():
                    return await self._end_all([[other] for other in others], state)
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
        # A topic loses its route while its broker is briefly away.
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
        """Answer a check over its connection, for the offset that the check names."""
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


def _rank(answer: EndAnswer, state: LocalTransactionState) -> int:
    """The place of an answer among those of several brokers, the worst first."""
    if (state, answer.reply) not in OUTCOMES:
        return 0
    return 1 + _DOUBTS.index(answer.reply) if answer.reply in _DOUBTS else 1 + len(_DOUBTS)


def _written(halves: Iterable[SendResult]) -> str:
    return OtherHalf.write(
        OtherHalf(half.offset, position_in(half.offset_id), half.id) for half in halves
    )
