"""Open transactions listed, shown, decided by hand and checked anew.

Only brokers of ours know how; Apache RocketMQ answers these requests with "not supported".
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.received_message import received
from txmq.client.values import OpenTransaction
from txmq.errors import NotFound, TransportError, UsageError
from txmq.message import Queue, ReceivedMessage
from txmq.protocol import bodies
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import (
    DecideTransaction,
    ListTransactions,
    NamedTransaction,
)
from txmq.protocol.record import unpack

__all__ = ["TransactionCalls"]

_PAGE: Final = 500


class TransactionCalls(ClusterCalls):
    """Orders and questions about transactions, over a session."""

    async def transactions(
        self,
        *,
        state: str = "",
        group: str = "",
        limit: int = 1000,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[OpenTransaction]:
        """Undecided transactions, the oldest of each broker first.

        Args:
            state: Only the ``prepared`` ones, which wait for their producer, or the ``parked``.
            group: Only those of this producer group.
            limit: The most wanted of each broker.
            broker: The broker to ask; all of the cluster where none is named.
            cluster: The cluster, where there are several.

        Raises:
            ConfigError: Broker or cluster is unknown, or several clusters leave the choice open.
            RequestNotSupported: A broker is not a txmq broker.
            TransportError: A broker does not answer.
            BrokerRefused: A broker refuses.
        """
        found: list[OpenTransaction] = []
        for name, address in (await self._masters(broker=broker, cluster=cluster)).items():
            wanted, start = limit, 0
            while wanted > 0:
                header = ListTransactions(state, group, start, min(wanted, _PAGE))
                answer = await self._session.request(address, RequestCode.LIST_TRANSACTIONS, header)
                page = bodies.OpenTransactions.read(answer.body).transactions
                found += [_value(row, name) for row in page]
                wanted -= len(page)
                if len(page) < header.count:
                    break
                start = page[-1].half_offset + 1
        return found

    async def transaction(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> tuple[OpenTransaction, ReceivedMessage]:
        """An open transaction, by its id or its half message's, with the message it is about.

        Args:
            name: The id.
            broker: The broker that has it; all of the cluster are asked where none is named.
            cluster: The cluster, where there are several.

        Raises:
            NotFound: No broker has such a transaction open.
            UsageError: Several have one: their producer tried again at another broker.
            ConfigError: Broker or cluster is unknown, or several clusters leave the choice open.
            RequestNotSupported: A broker is not a txmq broker.
            TransportError: None has it of those that answer.
            BrokerRefused: A broker refuses.
        """
        found = await self._holder(name, broker, cluster)
        shown = bodies.TransactionEntry.read(found.answer.field_map()["transaction"].encode())
        return _value(shown, found.broker), received(unpack(found.answer.body)[0], found.broker)

    async def decide_transaction(
        self,
        name: str,
        decision: Literal["commit", "rollback"],
        *,
        operator: str,
        reason: str,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> str:
        """Decide an open transaction by hand; who did it, and why, is kept in the broker's log.

        Returns:
            The broker that had it.

        Raises:
            ShouldCommit: It was committed meanwhile, and so it stays.
            ShouldRollBack: It was rolled back meanwhile, and so it stays.
            InvalidParameter: Operator or reason is missing.
            TransportError: The broker does not answer; it may have decided.
            TxmqError: As for :meth:`transaction`.
        """
        found = await self._holder(name, broker, cluster)
        header = DecideTransaction(name, decision, operator, reason)
        await self._session.request(found.address, RequestCode.DECIDE_TRANSACTION, header)
        return found.broker

    async def recheck_transaction(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Have an open transaction's producers asked now, parked or not, as often as at first.

        Raises:
            TxmqError: As for :meth:`transaction`.
        """
        found = await self._holder(name, broker, cluster)
        header = NamedTransaction(name)
        await self._session.request(found.address, RequestCode.RECHECK_TRANSACTION, header)

    async def _holder(self, name: str, broker: str | None, cluster: str | None) -> _Holder:
        masters = await self._masters(broker=broker, cluster=cluster)
        holders: list[_Holder] = []
        silent: dict[str, TransportError] = {}
        for broker_name, address in masters.items():
            try:
                answer = await self._session.request(
                    address, RequestCode.SHOW_TRANSACTION, NamedTransaction(name)
                )
            except NotFound:
                continue
            except TransportError as error:
                # It may be another that has it.
                silent[broker_name] = error
            else:
                holders.append(_Holder(broker_name, address, answer))
        if len(holders) > 1:
            places = " and ".join(holder.broker for holder in holders)
            raise UsageError(f"transaction {name} is open at {places}; name the broker you mean")
        if holders:
            return holders[0]
        for silent_broker, loss in silent.items():
            raise type(loss)(
                f"{silent_broker}, which may have transaction {name}: {loss}"
            ) from loss
        places = ", ".join(masters)
        raise NotFound(f"no transaction {name} is open at {places}: it is decided, or never was")


class _Holder(NamedTuple):
    broker: str
    address: str
    answer: Command


def _value(shown: bodies.TransactionEntry, broker: str) -> OpenTransaction:
    return OpenTransaction(
        id=shown.transaction_id,
        state=shown.state,
        group=shown.producer_group,
        queue=Queue(shown.topic, broker, shown.queue_id),
        half_offset=shown.half_offset,
        offset_id=shown.offset_msg_id,
        keys=tuple(shown.keys.split()),
        stored_ms=shown.stored_ms,
        checks=shown.checks,
        origin=shown.client_id,
        is_being_decided=shown.is_being_decided,
    )
