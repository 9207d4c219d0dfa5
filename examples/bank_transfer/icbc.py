"""ICBC, the bank that pays: takes orders, debits, and hears what CCB made of them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import refuse, settle, wall_ms
from examples.bank_transfer.books import State, Transfer
from examples.bank_transfer.orders import (
    ADVICES,
    Drill,
    Order,
    Reason,
    Refused,
    read_advice,
    see_order,
)
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.half_message import half_message
from examples.bank_transfer.ways.outbox import outbox
from examples.bank_transfer.ways.send_result import Send
from examples.bank_transfer.ways.xa import xa
from txmq import (
    DEAD_LETTER,
    Client,
    ConsumerSettings,
    Later,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from txmq.errors import TransactionConflict, TxmqError
from txmq.idempotent import SessionGuard, UniqueKeyTable, idempotent

__all__ = ["ICBC", "Booked"]

log = logging.getLogger(__name__)

GROUP: Final = "icbc-advices"


@dataclass(frozen=True, slots=True)
class Booked:
    """The bank's knowledge of a transfer."""

    order: Order
    state: State | None
    """None if it is not known yet; ask again."""
    xid: str = ""
    reason: str = ""


class ICBC:
    """``async with``.

    Args:
        engine: Its database.
        client: The cluster.
        steps: Looks on.
        guard: Makes each advice booked once; by default a table of the database.
        ccb: The other bank's database, for XA; without it that way is not available.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        client: Client,
        *,
        steps: Steps,
        guard: SessionGuard[str, AsyncSession] | None = None,
        ccb: AsyncEngine | None = None,
    ) -> None:
        self._engine = engine
        self._client = client
        self._ccb = ccb
        self.steps = steps
        self._ways: dict[Way, Send] = {}
        self._consumer = PushConsumer(GROUP, client, ConsumerSettings(start=StartFrom.FIRST))
        self._open = AsyncExitStack()

        @self._consumer.on(ADVICES)
        @idempotent(
            guard or UniqueKeyTable(engine), key=lambda message: message.key, scope="advice"
        )
        async def advised(session: AsyncSession, message: ReceivedMessage) -> Later | None:
            try:
                advice = read_advice(message.body)
                state = await settle(session, advice, wall_ms())
            except Refused as error:
                # A retry would not help; an operator has to look at it.
                return Later(DEAD_LETTER, reason=str(error))
            log.info("transfer %s is %s here: it was %s", advice.id, state, advice)
            return None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            enter = undo.enter_async_context
            engine, client, steps = self._engine, self._client, self.steps
            self._ways[Way.HALF] = await enter(half_message(engine, client, steps))
            self._ways[Way.OUTBOX] = await enter(outbox(engine, client))
            if self._ccb is not None:
                self._ways[Way.XA] = await enter(xa(engine, self._ccb, client, steps))
            await enter(self._consumer)
            self._open = undo.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    @property
    def ways(self) -> Collection[Way]:
        """Those that are open."""
        return self._ways

    async def transfer(
        self, order: Order, way: Way = Way.HALF, drill: Drill = Drill.NONE
    ) -> Booked:
        """Make a transfer, once for each id; a repeated order receives the first one's result.

        Raises:
            Refused: The order is invalid, its way is not available here, or its id is another
                transfer's.
            OutcomeUnknown: The outcome is not known yet.
            TransactionConflict: The banks do not agree; an operator must look at it.
            TxmqError: It is not made now, because no broker or no database can be reached; what
                became of it when it was asked for before cannot be seen in the books, either.
            SQLAlchemyError: Likewise.
        """
        self.see(order, way, drill)
        try:
            sent = await self._ways[way](order, drill)
        except Refused as error:
            return await self._refuse(order, way, error)
        except TransactionConflict:
            raise
        except (TxmqError, SQLAlchemyError):
            # Mostly a transfer with this id exists. In any case: a caller who repeats an order
            # without an answer must not receive "not made" if the transfer is made.
            found = await self.find(order)
            if found is None:
                raise
            return found
        return Booked(order, sent.state, sent.xid)

    def see(self, order: Order, way: Way = Way.HALF, drill: Drill = Drill.NONE) -> None:
        """Check an order without the books.

        Raises:
            Refused: The order makes no sense, or its way is not available here.
        """
        see_order(order)
        if drill and way is not Way.HALF:
            raise Refused(Reason.BAD_ORDER, "drills need the way half")
        if way not in self._ways:
            raise Refused(
                Reason.BAD_ORDER,
                "XA is not available here: it needs PostgreSQL databases at both banks",
            )

    async def _refuse(self, order: Order, way: Way, error: Refused) -> Booked:
        """Record that a transfer was refused, unless it was made or refused before."""
        now_ms = wall_ms()
        try:
            async with AsyncSession(self._engine) as session, session.begin():
                await refuse(session, order, way, str(error), now_ms)
        except IntegrityError:
            found = await self.find(order)
            if found is None:
                raise
            return found
        return Booked(order, State.REFUSED, reason=str(error))

    async def find(self, order: Order) -> Booked | None:
        """The result of a transfer; None if the books do not have it.

        Raises:
            Refused: Another transfer has its id.
        """
        async with AsyncSession(self._engine) as session:
            row = await session.get(Transfer, order.id)
        if row is None:
            return None
        if (row.payer, row.payee, row.amount, row.currency) != (
            order.payer, order.payee, order.amount, order.currency,
        ):  # fmt: skip
            raise Refused(Reason.SAME_ID, order.id)
        return Booked(order, State(row.state), row.xid, row.reason)
