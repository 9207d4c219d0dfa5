"""The transfer with a half message: CCB receives the message when the debit commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit, wall_ms
from examples.bank_transfer.books import State
from examples.bank_transfer.orders import TRANSFERS, Drill, Order, Reason, Refused
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.send_result import Send, SendResult, result_of
from txmq import Client, ManagerSettings, SQLResource, TransactionManager

__all__ = ["half_message"]

GROUP: Final = "icbc-transfer"
SLOW_S: Final = 3.0
"""How long a debit takes whose steps are to be watched."""


@asynccontextmanager
async def half_message(engine: AsyncEngine, client: Client, steps: Steps) -> AsyncIterator[Send]:
    """A transaction manager; all managers of the group answer checks of each other's transfers."""
    tm = TransactionManager(GROUP, client, SQLResource(engine), ManagerSettings(repeats_end=True))

    @tm.transactional(
        topic=TRANSFERS,
        tags="CCB",
        keys=lambda order, _: order.id,
        body=lambda order, _: order,
    )
    async def transfer_out(session: AsyncSession, order: Order, drill: Drill) -> None:
        current = tm.current()
        assert current is not None, "the manager runs this"
        xid, now_ms = current.xid, wall_ms()
        steps.belong(order.id, xid)
        await debit(session, order, now_ms, way=Way.HALF, xid=xid, state=State.SENT)
        steps.belong(order.id, xid, surely=True)
        await practise(session, drill)

    async def send(order: Order, drill: Drill) -> SendResult:
        return result_of(await transfer_out(order, drill), State.SENT)

    async with tm:
        yield send


async def practise(session: AsyncSession, drill: Drill) -> None:
    """Carry out a drill inside the local transaction.

    Raises:
        Refused: The drill says so.
    """
    if drill is Drill.TAGB:
        await session.flush()
        raise Refused(Reason.DRILL, "the debit is written, and fails all the same")
    if drill is Drill.TAGC:
        # The manager does not see this commit: it reports UNKNOWN, and the broker asks.
        await session.commit()
    if drill is Drill.SLOW:
        await asyncio.sleep(SLOW_S)
