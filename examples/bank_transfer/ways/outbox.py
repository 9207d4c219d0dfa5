"""The transfer with an outbox: the message is committed with the debit, and sent afterwards."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit
from examples.bank_transfer.books import State
from examples.bank_transfer.databases import RELAYING
from examples.bank_transfer.orders import TRANSFERS, Order
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.sent import Sent
from txmq import Client, Message, Outbox, Relay
from txmq.databases.failures import is_settled
from txmq.runtime.clock import Clock

__all__ = ["OutboxWay"]


class OutboxWay:
    """``async with``: an outbox in the bank's own database, and a relay beside it."""

    def __init__(self, engine: AsyncEngine, client: Client, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._outbox = Outbox()
        self._relay = Relay(engine, client, RELAYING, outbox=self._outbox)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._relay)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def send(self, order: Order) -> Sent:
        """Make the transfer; no broker is asked for that.

        Raises:
            Refused: It is not made.
            IntegrityError: There is one with this id.
            DBAPIError: It is not made.
        """
        message = Message(
            topic=TRANSFERS, tags="CCB", keys=(order.id,), body=msgspec.json.encode(order)
        )
        now_ms = self._clock.wall_ms()
        is_asked = False
        async with AsyncSession(self._engine) as session:
            try:
                await debit(session, order, now_ms, way=Way.OUTBOX, xid="", state=State.SENT)
                await self._outbox.add(session, message)
                await session.flush()
                is_asked = True
                await session.commit()
            except DBAPIError as problem:
                if is_asked and not is_settled(problem):
                    # What became of the COMMIT is open. Whoever asks again with this id finds out.
                    return Sent(None, problem=problem)
                raise
        return Sent(State.SENT)
