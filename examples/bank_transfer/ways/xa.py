"""The transfer with XA: both books are written by one program, and both commit or neither does."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import credit, debit
from examples.bank_transfer.books import State
from examples.bank_transfer.orders import TRANSFERS, Order
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.sent import Sent
from txmq import Client, ManagerSettings, TransactionManager, TransactionState, XAResource
from txmq.runtime.clock import Clock

__all__ = ["XAWay"]

GROUP: Final = "icbc-xa"


class XAWay:
    """``async with``: a transaction manager over both banks' databases, which are PostgreSQL's."""

    def __init__(
        self, icbc: AsyncEngine, ccb: AsyncEngine, client: Client, clock: Clock, steps: Steps
    ) -> None:
        resource = XAResource({"icbc": icbc, "ccb": ccb})
        self.tm = TransactionManager(GROUP, client, resource, ManagerSettings(repeats_end=True))

        # Nobody has to do anything about this message: it is for whoever wants to know.
        @self.tm.transactional(topic=TRANSFERS, tags="XA", keys=lambda order: order.id)
        async def transfer(banks: Mapping[str, AsyncSession], order: Order) -> None:
            current = self.tm.current()
            assert current is not None, "the manager runs this"
            xid = current.xid
            steps.belong(order.id, xid)
            now_ms = clock.wall_ms()
            await debit(banks["icbc"], order, now_ms, way=Way.XA, xid=xid, state=State.SETTLED)
            steps.belong(order.id, xid, surely=True)
            await credit(banks["ccb"], order, now_ms, way=Way.XA, xid=xid)

        self._transfer = transfer

    async def __aenter__(self) -> Self:
        await self.tm.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.tm.__aexit__(kind, problem, trace)

    async def send(self, order: Order) -> Sent:
        """Make the transfer; what CCB cannot credit is never debited.

        Raises:
            Refused: It is not made.
            TxmqError: It is not made, because no broker or no database can be reached.
            IntegrityError: There is one with this id.
        """
        outcome = await self._transfer(order)
        if outcome.state is TransactionState.ROLLED_BACK:
            assert outcome.problem is not None, "nothing is rolled back without a reason"
            raise outcome.problem
        is_made = outcome.state is TransactionState.COMMITTED
        return Sent(State.SETTLED if is_made else None, outcome.xid, outcome.problem)
