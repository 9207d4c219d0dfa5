"""The transfer with XA: both books are written by one program, and both commit or neither does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import credit, debit, wall_ms
from examples.bank_transfer.books import State
from examples.bank_transfer.orders import TRANSFERS, Drill, Order
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.send_result import Send, SendResult, result_of
from txmq import Client, ManagerSettings, TransactionManager, XAResource

__all__ = ["xa"]

GROUP: Final = "icbc-xa"


@asynccontextmanager
async def xa(
    icbc: AsyncEngine, ccb: AsyncEngine, client: Client, steps: Steps
) -> AsyncIterator[Send]:
    """A transaction manager over the databases of both banks, which are PostgreSQL. A transfer that
    CCB cannot credit is never debited.
    """
    resource = XAResource({"icbc": icbc, "ccb": ccb})
    tm = TransactionManager(GROUP, client, resource, ManagerSettings(repeats_end=True))

    # This message needs no consumer; it informs programs that are interested.
    @tm.transactional(topic=TRANSFERS, tags="XA", keys=lambda order: order.id)
    async def transfer(banks: Mapping[str, AsyncSession], order: Order) -> None:
        current = tm.current()
        assert current is not None, "the manager runs this"
        xid, now_ms = current.xid, wall_ms()
        steps.belong(order.id, xid)
        await debit(banks["icbc"], order, now_ms, way=Way.XA, xid=xid, state=State.SETTLED)
        steps.belong(order.id, xid, surely=True)
        await credit(banks["ccb"], order, now_ms, way=Way.XA, xid=xid)

    async def send(order: Order, _: Drill) -> SendResult:
        return result_of(await transfer(order), State.SETTLED)

    async with tm:
        yield send
