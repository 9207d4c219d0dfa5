"""The desk where customers order transfers: it makes them while their page already shows them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from examples.bank_transfer.faces.api import Asked, ask
from examples.bank_transfer.icbc import ICBC
from examples.bank_transfer.orders import Order, Reason, Refused
from examples.bank_transfer.reading import Reading
from txmq.errors import LimitExceeded

__all__ = ["Begun", "Desk"]

log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 64
"""Transfers that are made at once; who orders one more is asked to wait."""
KEPT_MAX: Final = 1_000
"""What was said of older ones is forgotten; the books know more of them."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A transfer that was ordered here."""

    order: Order
    asked: Asked
    status: int | None = None
    """As the API answers; none while it is under way."""
    why: str = ""


class Desk:
    """``async with``: its end waits for what is under way, and a transfer knows its own bounds.

    Args:
        bank: Makes the transfers.
        reading: The bank's books.
    """

    def __init__(self, bank: ICBC, reading: Reading) -> None:
        self.bank = bank
        self._reading = reading
        self._begun: OrderedDict[str, Begun] = OrderedDict()
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

    def begun(self, of: str) -> Begun | None:
        """What is known here of a transfer."""
        return self._begun.get(of)

    async def begin(self, asked: Asked) -> None:
        """Begin a transfer, unless it was begun or made before: it is known by its id.

        Raises:
            Refused: The order makes no sense, or cannot be made in this way, or its id is another
                transfer's.
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
        if await self._reading.transfer(order.id) is not None:
            await self.bank.find(order)  # It sees whether that is the same one.
            return
        if self._begun.get(order.id) is not known:
            return  # The other half of a double click was quicker.
        if len(self._tasks) >= UNDER_WAY_MAX:
            raise LimitExceeded("transfers under way", UNDER_WAY_MAX, len(self._tasks) + 1)
        self._keep(Begun(order, asked))
        task = asyncio.create_task(self._make(order, asked), name=f"transfer {order.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, order: Order, asked: Asked) -> None:
        try:
            status, _, why = await ask(self.bank, asked)
        except Exception as error:
            # Nobody awaits this task; its page must say so all the same.
            log.exception("transfer %s failed", order.id)
            status, why = 500, f"somebody must look at this: {error!r}"
        self._keep(Begun(order, asked, status, why))

    def _keep(self, begun: Begun) -> None:
        self._begun[begun.order.id] = begun
        self._begun.move_to_end(begun.order.id)
        while len(self._begun) > KEPT_MAX:
            self._begun.popitem(last=False)
