"""List, show, decide and recheck open transactions.

Only txmq brokers support these requests; Apache RocketMQ answers "not supported".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from txmq.client.admin.cluster import ClusterCalls
from txmq.client.received_message import opened, received
from txmq.client.routes import MASTER
from txmq.client.values import (
    CheckReport,
    OpenTransaction,
    RecheckReport,
    TransactionDecision,
    TransactionReport,
    WholeTransaction,
)
from txmq.errors import (
    BrokerRefused,
    Effect,
    NotFound,
    RequestNotSupported,
    TransportError,
    UsageError,
)
from txmq.message import Queue, ReceivedMessage
from txmq.protocol import bodies
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import (
    DecideTransaction,
    ListTransactions,
    NamedTransaction,
)
from txmq.protocol.operations import (
    RecheckedTransactions,
    RecheckTransaction,
    RecheckTransactions,
    TransactionHistory,
)
from txmq.protocol.record import unpack

__all__ = ["TransactionCalls"]

_PAGE: Final = 500
_ALL: Final = 10_000_000
"""More than the number of transactions that a broker can hold open."""


class TransactionCalls(ClusterCalls):
    """Requests about transactions."""

    async def transactions(
        self,
        *,
        state: str = "",
        group: str = "",
        limit: int = 1000,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[OpenTransaction]:
        """Undecided transactions, oldest first for each broker.

        Args:
            state: Only ``prepared`` ones, which wait for their producer, or only ``parked`` ones.
            group: Only transactions of this producer group.
            limit: The maximum number from each broker.
            broker: The broker to query; by default, all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
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
        """An open transaction and its message, by the transaction's id or the half message's id.

        Args:
            name: The id of the transaction or of its half message.
            broker: The broker that has it; by default, the call queries all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            NotFound: No broker has the transaction open.
            UsageError: Several brokers have it open: the producer retried on another broker.
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            RequestNotSupported: A broker is not a txmq broker.
            TransportError: A broker does not answer, and the others do not have it.
            BrokerRefused: A broker refuses.
        """
        found = await self._holder(name, broker, cluster)
        return found.transaction(), received(unpack(found.answer.body)[0], found.broker)

    async def transaction_messages(self, message: OpenTransaction) -> WholeTransaction:
        """All messages of the transaction of a message, at all brokers of its cluster.

        It includes decided ones, as long as their brokers know them by their ids. Brokers of an
        older version, and Apache RocketMQ's, do not tell theirs.

        Args:
            message: Any message of the transaction.

        Raises:
            TransportError: No name server answers.
        """
        found = {message.id: message}
        silent: dict[str, str] = {}
        known = await self.cluster() if message.xid else []
        clusters = {info.cluster for info in known if info.name == message.queue.broker}
        # Its own broker comes first, because a copy at another broker is left out.
        for info in sorted(known, key=lambda info: info.name != message.queue.broker):
            if info.cluster not in clusters:
                continue
            if MASTER not in info.addresses:
                silent[info.name] = "it has no master now"
                continue
            header = NamedTransaction(message.xid)
            try:
                answer = await self._session.request(
                    info.addresses[MASTER], RequestCode.LIST_TRANSACTION_MESSAGES, header
                )
            except RequestNotSupported:
                continue
            except (BrokerRefused, TransportError) as error:
                silent[info.name] = str(error).strip()
                continue
            for row in bodies.TransactionMessages.read(answer.body).messages:
                found.setdefault(row.transaction_id, _value(row, info.name))
        # Numbers at the end of ids have one digit or two.
        messages = sorted(found.values(), key=lambda item: (len(item.id), item.id))
        return WholeTransaction(tuple(messages), silent)

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
        """Decide an open transaction by hand; the broker logs the operator and the reason. If it
        has several messages, all of them are decided, at every broker of the cluster.

        Returns:
            The broker that has the named message.

        Raises:
            ShouldCommit: The transaction has been committed; that is final.
            ShouldRollBack: The transaction has been rolled back; that is final.
            InvalidParameter: Operator or reason is missing.
            TransportError: The broker does not answer; it may have decided. Or, with the effect
                ``APPLIED``, another broker that may have more of its messages has not decided.
            TxmqError: As for :meth:`transaction`.
        """
        code = RequestCode.DECIDE_TRANSACTION
        found = await self._holder(name, broker, cluster)
        whole = await self.transaction_messages(found.transaction())
        header = DecideTransaction(name, decision, operator, reason)
        await self._session.request(found.address, code, header)
        decided, left = {found.broker}, dict(whole.silent)
        for message in whole.open:
            if message.queue.broker not in decided | left.keys():
                decided.add(message.queue.broker)
                header = DecideTransaction(message.id, decision, operator, reason)
                try:
                    await self._ask_broker(message.queue.broker, code, header)
                except NotFound:
                    continue  # It was decided meanwhile.
                except (BrokerRefused, TransportError) as error:
                    decided.discard(message.queue.broker)
                    left[message.queue.broker] = str(error).strip()
        if left:
            problems = "; ".join(f"{name}: {why}" for name, why in left.items())
            loss = TransportError(
                f"the decision holds at {' and '.join(sorted(decided))}; other brokers may have "
                f"more messages of the transaction, which are not decided: {problems}"
            )
            loss.effect = Effect.APPLIED
            raise loss
        return found.broker

    async def recheck_transaction(
        self,
        name: str,
        *,
        operator: str = "",
        reason: str = "",
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Make the broker check an open transaction with its producers now, and start over with the
        full number of checks.

        Args:
            name: The id of the transaction or of its half message.
            operator: The person who asks; shown in the transaction's history and the audit.
            reason: Why; shown there too. Both together may take 256 bytes.
            broker: The broker that has it; by default, the call queries all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            InvalidParameter: Operator and reason are too long.
            TxmqError: As for :meth:`transaction`.
        """
        if broker is None:
            address = (await self._holder(name, broker, cluster)).address
        else:
            # A named broker itself answers if the transaction is not open, which saves a request.
            (address,) = (await self._masters(broker=broker, cluster=cluster)).values()
        header = RecheckTransaction(name, operator, reason)
        await self._session.request(address, RequestCode.RECHECK_TRANSACTION, header)

    async def recheck_transactions(
        self,
        *,
        state: str = "",
        group: str = "",
        operator: str = "",
        reason: str = "",
        broker: str | None = None,
        cluster: str | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Make brokers check many open transactions now, each with the full number of checks.

        A broker's audit has one entry for up to 2,000 of them. A txmq broker that is too old for
        this request receives one request per transaction.

        Args:
            state: Only ``prepared`` ones, or only ``parked`` ones.
            group: Only transactions of this producer group.
            operator: The person who asks; shown in the transactions' histories and the audit.
            reason: Why; shown there too. Both together may take 256 bytes.
            broker: The broker to ask; by default, all of the cluster.
            cluster: The cluster, if there are several.
            on_progress: Called after each answer, with its number of transactions.

        Returns:
            The number of transactions that each broker checks, by broker.

        Raises:
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            InvalidParameter: The state is neither of the two, or the texts are too long.
            RequestNotSupported: A broker is not a txmq broker.
            TransportError: A broker does not answer. All others were asked as well: a note of the
                error names those that accepted.
            BrokerRefused: A broker refuses, with the same note.
        """
        counts: dict[str, int] = {}
        wanted = RecheckTransactions(state, group, 0, operator, reason)

        async def recheck(name: str, address: str) -> None:
            counts[name] = 0
            try:
                async for count in self._recheck_pages(address, wanted):
                    note(name, count)
            except RequestNotSupported:
                async for count in self._recheck_singly(name, wanted, cluster):
                    note(name, count)

        def note(name: str, count: int) -> None:
            counts[name] += count
            if on_progress is not None:
                on_progress(count)

        await self._change_each(await self._masters(broker=broker, cluster=cluster), recheck)
        return counts

    async def _recheck_pages(
        self, address: str, wanted: RecheckTransactions
    ) -> AsyncGenerator[int, None]:
        start = 0
        while True:
            header = replace(wanted, from_offset=start)
            answer = await self._session.request(address, RequestCode.RECHECK_TRANSACTIONS, header)
            found = answer.read(RecheckedTransactions)
            yield found.rechecked
            if found.next_offset <= start:
                return
            start = found.next_offset

    async def _recheck_singly(
        self, broker: str, wanted: RecheckTransactions, cluster: str | None
    ) -> AsyncGenerator[int, None]:
        known = await self.transactions(
            state=wanted.state,
            group=wanted.producer_group,
            limit=_ALL,
            broker=broker,
            cluster=cluster,
        )
        for transaction in known:
            name = transaction.id or transaction.offset_id
            try:
                await self.recheck_transaction(
                    name,
                    operator=wanted.operator,
                    reason=wanted.reason,
                    broker=broker,
                    cluster=cluster,
                )
            except NotFound:
                continue  # It has been decided.
            yield 1

    async def transaction_report(
        self, name: str, *, broker: str | None = None, cluster: str | None = None
    ) -> tuple[TransactionReport, ReceivedMessage]:
        """What a broker knows about a transaction, open or decided, and its half message.

        Brokers find a decided transaction by the id of its half message or of its visible message,
        while the log has that message. By the transaction's own id they find the latest 131,072
        transactions; after a restart, the latest 4,096.

        Args:
            name: The id of the transaction, of its half message, or of its visible message.
            broker: The broker that has it; by default, the call queries all of the cluster.
            cluster: The cluster, if there are several.

        Raises:
            NotFound: No broker knows the transaction.
            UsageError: Several brokers know it: the producer retried on another broker.
            ConfigError: Broker or cluster is unknown, or must be named because there are several.
            RequestNotSupported: A broker is not a txmq broker, or an older one.
            TransportError: A broker does not answer, and the others do not know it.
            BrokerRefused: A broker refuses.
        """
        code = RequestCode.SHOW_TRANSACTION_HISTORY
        try:
            found = await self._holder(name, broker, cluster, code)
        except NotFound as error:
            raise NotFound(
                f"no broker knows a transaction {name}; if it was decided long ago, name its topic "
                "or the id of its half message"
            ) from error
        shown = TransactionHistory.read(found.answer.field_map()["history"].encode())
        report = TransactionReport(
            transaction=_value(shown.transaction, found.broker),
            born_ms=shown.born_ms,
            address=shown.born_host,
            decisions=tuple(
                TransactionDecision(
                    item.kind, item.source, item.at_ms, item.reason, item.offset_msg_id
                )
                for item in shown.decisions
            ),
            checks=tuple(
                CheckReport(
                    item.asked_ms, item.client_id, item.address, item.answer, item.answered_ms
                )
                for item in shown.checks
            ),
            check_max=shown.check_max,
            next_check_ms=shown.next_check_ms,
            waits_for_producer=shown.waits_for_producer,
            producers=shown.producers,
            rechecks=tuple(
                RecheckReport(item.at_ms, item.operator, item.account, item.address, item.reason)
                for item in shown.rechecks
            ),
        )
        return report, opened(unpack(found.answer.body)[0], found.broker)

    async def _holder(
        self,
        name: str,
        broker: str | None,
        cluster: str | None,
        code: RequestCode = RequestCode.SHOW_TRANSACTION,
    ) -> _Holder:
        masters = await self._masters(broker=broker, cluster=cluster)
        holders: list[_Holder] = []
        silent: dict[str, TransportError] = {}
        for broker_name, address in masters.items():
            try:
                answer = await self._session.request(address, code, NamedTransaction(name))
            except NotFound:
                continue
            except TransportError as error:
                # Another broker may have it.
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

    def transaction(self) -> OpenTransaction:
        text = self.answer.field_map()["transaction"]
        return _value(bodies.TransactionEntry.read(text.encode()), self.broker)


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
        # Brokers of older versions do not tell it.
        xid=shown.xid or shown.transaction_id,
    )
