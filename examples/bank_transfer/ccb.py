"""CCB, the bank that is paid: credits once what ICBC tells it, and says what became of it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import pay_in
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
from txmq.runtime.clock import Clock, SystemClock

__all__ = ["CCB"]

log = logging.getLogger(__name__)

GROUP: Final = "ccb-credit"


class CCB:
    """``async with``.

    Args:
        engine: Its database.
        client: The cluster.
        guard: Sees that a transfer is credited once; a table of the database's where there is none.
        clock: Where the time comes from.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        client: Client,
        *,
        guard: SessionGuard[str, AsyncSession] | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        outbox = Outbox()
        self._relay = Relay(engine, client, RELAYING, outbox=outbox)
        self._consumer = PushConsumer(GROUP, client, ConsumerSettings(start=StartFrom.FIRST))
        self._open = AsyncExitStack()

        @self._consumer.on(TRANSFERS, tags="CCB")
        @idempotent(
            guard or UniqueKeyTable(engine), key=lambda message: message.key, scope="transfer"
        )
        async def transfer_in(session: AsyncSession, message: ReceivedMessage) -> Later | None:
            try:
                order = order_in(message)
            except Refused as problem:
                # It makes no more sense when it comes again, and there is nobody to pay it back to.
                return Later(DEAD_LETTER, reason=str(problem))
            advice = await pay_in(session, order, clock.wall_ms())
            # In the same transaction: what is credited is advised, and what is advised is credited.
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

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            await undo.enter_async_context(self._relay)
            await undo.enter_async_context(self._consumer)
            self._open = undo.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()


def order_in(message: ReceivedMessage) -> Order:
    """What a message says that ICBC has sent.

    Raises:
        Refused: ICBC sends no such message.
    """
    order = read_order(message.body)
    see_order(order)
    if message.key != order.id:
        raise Refused(Reason.BAD_ORDER, f"the message of transfer {order.id} has another key")
    return order
