"""CCB, the bank of the payee: credits each order of ICBC once, and advises ICBC of the outcome."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import pay_in, wall_ms
from examples.bank_transfer.databases import RELAYING
from examples.bank_transfer.orders import (
    ADVICES,
    TRANSFERS,
    Order,
    Reason,
    Refused,
    read_order,
    see_order,
)
from txmq import (
    DEAD_LETTER,
    Client,
    ConsumerSettings,
    Later,
    Message,
    Outbox,
    PushConsumer,
    ReceivedMessage,
    Relay,
    StartFrom,
)
from txmq.idempotent import SessionGuard, UniqueKeyTable, idempotent

__all__ = ["open_ccb"]

log = logging.getLogger(__name__)

GROUP: Final = "ccb-credit"


@asynccontextmanager
async def open_ccb(
    engine: AsyncEngine,
    client: Client,
    *,
    guard: SessionGuard[str, AsyncSession] | None = None,
) -> AsyncIterator[None]:
    """CCB, while it is open.

    Args:
        engine: Its database.
        client: The cluster.
        guard: Makes each transfer credited once; by default a table of the database.
    """
    outbox = Outbox()
    consumer = PushConsumer(GROUP, client, ConsumerSettings(start=StartFrom.FIRST))

    @consumer.on(TRANSFERS, tags="CCB")
    @idempotent(guard or UniqueKeyTable(engine), key=lambda message: message.key, scope="transfer")
    async def transfer_in(session: AsyncSession, message: ReceivedMessage) -> Later | None:
        try:
            order = order_in(message)
        except Refused as error:
            # A retry would not help, and no account exists for a refund.
            return Later(DEAD_LETTER, reason=str(error))
        advice = await pay_in(session, order, wall_ms())
        # In the same transaction: every credit has an advice, and every advice a credit.
        await outbox.add(
            session,
            Message(
                topic=ADVICES,
                tags=advice.outcome.name,
                keys=(order.id,),
                body=msgspec.json.encode(advice),
            ),
        )
        log.info("transfer %s is %s", order.id, advice)
        return None

    async with Relay(engine, client, RELAYING, outbox=outbox), consumer:
        yield


def order_in(message: ReceivedMessage) -> Order:
    """The order in a message from ICBC.

    Raises:
        Refused: ICBC sends no such message.
    """
    order = read_order(message.body)
    see_order(order)
    if message.key != order.id:
        raise Refused(Reason.BAD_ORDER, f"the message of transfer {order.id} has another key")
    return order
