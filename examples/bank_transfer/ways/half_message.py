"""The transfer with a half message: the debit's commit is what makes CCB see the message."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from examples.bank_transfer.booking import debit
from examples.bank_transfer.books import State
from examples.bank_transfer.orders import TRANSFERS, Drill, Order, Reason, Refused
from examples.bank_transfer.steps import Steps
from examples.bank_transfer.ways import Way
from examples.bank_transfer.ways.sent import Sent
from txmq import Client, ManagerSettings, SQLResource, TransactionManager, TransactionState
from txmq.runtime.clock import Clock

__all__ = ["HalfMessageWay"]

GROUP: Final = "icbc-transfer"
SLOW_S: Final = 3.0
"""How long a debit takes that somebody wants to look on at."""


class HalfMessageWay:
    """``async with``: a transaction manager, whose members of a group answer for each other."""

    def __init__(self, engine: AsyncEngine, client: Client, clock: Clock, steps: Steps) -> None:
        self.tm = TransactionManager(
            GROUP, client, SQLResource(engine), ManagerSettings(repeats_end=True)
        )

        @self.tm.transactional(
            topic=TRANSFERS,
            tags="CCB",
            keys=lambda order, _: order.id,
            body=lambda order, _: order,
        )
        async def transfer_out(session: AsyncSession, order: Order, drill: Drill) -> None:
            current = self.tm.current()
            assert current is not None, "the manager runs this"
            steps.belong(order.id, current.xid)
            now_ms = clock.wall_ms()
            await debit(session, order, now_ms, way=Way.HALF, xid=current.xid, state=State.SENT)
            steps.belong(order.id, current.xid, surely=True)
            await practise(session, drill)

        self._transfer_out = transfer_out

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

    async def send(self, order: Order, drill: Drill = Drill.NONE) -> Sent:
        """Make the transfer.

        Raises:
            Refused: It is not made.
            TxmqError: It is not made, because no broker or no database can be reached.
            IntegrityError: There is one with this id.
        """
        outcome = await self._transfer_out(order, drill)
        if outcome.state is TransactionState.ROLLED_BACK:
            assert outcome.problem is not None, "nothing is rolled back without a reason"
            raise outcome.problem
        is_sent = outcome.state is TransactionState.COMMITTED
        return Sent(State.SENT if is_sent else None, outcome.xid, outcome.problem)


async def practise(session: AsyncSession, drill: Drill) -> None:
    """Have something happen on purpose, inside the local transaction.

    Raises:
        Refused: That was the drill.
    """
    if drill is Drill.TAGB:
        await session.flush()
        raise Refused(Reason.DRILL, "the debit is written, and fails all the same")
    if drill is Drill.TAGC:
        # Who commits without the manager leaves it in the dark: it says UNKNOWN, and the broker
        # asks.
        await session.commit()
    if drill is Drill.SLOW:
        await asyncio.sleep(SLOW_S)
