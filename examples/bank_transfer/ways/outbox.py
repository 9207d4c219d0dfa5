"""The transfer with an outbox: the message is committed with the debit, and sent afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit, wall_ms
from examples.bank_transfer.books import State
from examples.bank_transfer.databases import RELAYING
from examples.bank_transfer.orders import TRANSFERS, Drill, Order
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.send_result import Send, SendResult
from txmq import Client, Message, Outbox, Relay

__all__ = ["outbox"]


@asynccontextmanager
async def outbox(engine: AsyncEngine, client: Client) -> AsyncIterator[Send]:
    """An outbox in the bank's own database, and a relay; a transfer needs no broker."""
    table = Outbox()

    async def send(order: Order, _: Drill) -> SendResult:
        body = msgspec.json.encode(order)
        message = Message(topic=TRANSFERS, tags="CCB", keys=(order.id,), body=body)
        now_ms = wall_ms()
        is_asked = False
        async with AsyncSession(engine) as session:
            try:
                await debit(session, order, now_ms, way=Way.OUTBOX, xid="", state=State.SENT)
                await table.add(session, message)
                await session.flush()
                is_asked = True
                await session.commit()
            except DBAPIError:
                if is_asked:
                    # The result of the COMMIT is unknown. A second order with this id finds out.
                    return SendResult(None)
                raise
        return SendResult(State.SENT)

    async with Relay(engine, client, RELAYING, outbox=table):
        yield send
