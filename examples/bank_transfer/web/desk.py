"""The desk where customers order transfers: it makes a transfer while its page shows it already."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from examples.bank_transfer.icbc import ICBC
from examples.bank_transfer.orders import Order, Reason, Refused
from examples.bank_transfer.queries import Queries
from examples.bank_transfer.web.api import Asked, ask
from txmq.errors import LimitExceeded

__all__ = ["Desk", "DeskOrder"]

log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 64
"""Transfers under way at once; a customer who orders one more has to wait."""
KEPT_MAX: Final = 1_000
"""The desk drops older orders; the books have their results."""


@dataclass(frozen=True, slots=True)
class DeskOrder:
    """A transfer that was ordered at this desk."""

    order: Order
    asked: Asked
    status: int | None = None
    """The status of the API's answer; None while the transfer is under way."""
    why: str = ""


class Desk:
    """``async with``: its end waits for transfers under way; each transfer has its own time limit.

    Args:
        bank: Makes the transfers.
        queries: The bank's books.
    """

    def __init__(self, bank: ICBC, queries: Queries) -> None:
        self.bank = bank
        self._queries = queries
        self._begun: OrderedDict[str, DeskOrder] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def begun(self, of: str) -> DeskOrder | None:
        """The order of a transfer, if this desk has it."""
        return self._begun.get(of)

    async def begin(self, asked: Asked) -> None:
        """Begin a transfer, unless one with its id was begun or made before.

        Raises:
            Refused: The order makes no sense, or its way is not available, or another transfer has
                its id.
            LimitExceeded: Too many are under way.
            DBAPIError: The database does not answer.
        """
        order = asked.order()
        self.bank.see(order, asked.way, asked.drill)
        known = self._begun.get(order.id)
        if known is not None and known.order != order:
            raise Refused(Reason.SAME_ID, order.id)
        if known is not None and known.status is None:
            return
        if await self._queries.transfer(order.id) is not None:
            await self.bank.find(order)  # It checks that the orders are the same.
            return
        if self._begun.get(order.id) is not known:
            return  # The other half of a double click was quicker.
        if len(self._tasks) >= UNDER_WAY_MAX:
            raise LimitExceeded("transfers under way", UNDER_WAY_MAX, len(self._tasks) + 1)
        self._keep(DeskOrder(order, asked))
        task = asyncio.create_task(self._make(order, asked), name=f"transfer {order.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, order: Order, asked: Asked) -> None:
        try:
            status, _, why = await ask(self.bank, asked)
        except Exception as error:
            # No task awaits this one; the page must show the error all the same.
            log.exception("transfer %s failed", order.id)
            status, why = 500, f"an operator must look at this: {error!r}"
        self._keep(DeskOrder(order, asked, status, why))

    def _keep(self, begun: DeskOrder) -> None:
        self._begun[begun.order.id] = begun
        self._begun.move_to_end(begun.order.id)
        while len(self._begun) > KEPT_MAX:
            self._begun.popitem(last=False)
