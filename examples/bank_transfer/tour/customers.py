"""Customers who order transfers at ICBC, and repeat each order until they have an answer.

With the same id it is safe to repeat an order, whatever the first attempt did; a customer need not
know more about transactions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final, Self

import httpx

from examples.bank_transfer.money import Money
from examples.bank_transfer.steps import NINE, Step
from examples.bank_transfer.tour.orders import Wish
from examples.bank_transfer.tour.record import Record

__all__ = ["Customers"]

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
ANSWER_S: Final = 30.0
GIVE_UP_S: Final = 120.0
"""When a customer without an answer gives up."""


class Customers:
    """``async with``.

    Args:
        icbc: The URL of ICBC's API.
        record: Receives their answers.
        concurrent: How many wait at once.
        rate: The most transfers a second; 0 means no limit.
    """

    def __init__(self, icbc: str, record: Record, *, concurrent: int, rate: float) -> None:
        limits = httpx.Limits(max_connections=concurrent * 3)
        self._http = httpx.AsyncClient(base_url=icbc, timeout=ANSWER_S, limits=limits)
        self._record = record
        self._concurrent = concurrent
        self._rate = rate

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *about: object) -> None:
        await self._http.aclose()

    async def ask_all(self, wanted: Iterable[Wish]) -> None:
        """Order all of them."""
        left = iter(wanted)
        began_s = time.monotonic()
        begun = 0

        async def one_after_the_other() -> None:
            nonlocal begun
            for wish in left:
                begun += 1
                if self._rate:
                    early_s = began_s + (begun - 1) / self._rate - time.monotonic()
                    await asyncio.sleep(max(0.0, early_s))
                await self.ask(wish)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrent):
                group.create_task(one_after_the_other())

    async def ask(self, wish: Wish) -> str:
        """Order one transfer; returns its state."""
        asking = [self._answer(wish) for _ in range(wish.times)]
        states = set(await asyncio.gather(*asking))
        if len(states) > 1 and not states <= {"sent", "settled", "returned"}:
            self._record.mistake(f"transfer {wish.id} was asked for {wish.times} times: {states}")
        state = min(states)
        self._record.answer(wish.id, state)
        return state

    async def all_steps(self, transfer: str) -> list[Step]:
        """The steps of a transfer, after the last: the ninth, or the answer to a check."""
        until_s = time.monotonic() + GIVE_UP_S
        while True:
            answer = await self._http.get(f"/api/transfers/{transfer}/steps")
            steps = [Step(**fields) for fields in answer.raise_for_status().json()]
            is_open = any("unknown" in step.text for step in steps if step.number == len(NINE))
            last = steps[-1].number if steps else -1
            if last == (0 if is_open else len(NINE)) or time.monotonic() > until_s:
                return steps
            await asyncio.sleep(PAUSE_S)

    async def _answer(self, wish: Wish) -> str:
        until_s = time.monotonic() + GIVE_UP_S
        pause_s = PAUSE_S
        while True:
            state = await self._try(wish)
            if state:
                return state
            if time.monotonic() > until_s:
                self._record.mistake(f"transfer {wish.id} has had no answer for {GIVE_UP_S:.0f} s")
                return "unanswered"
            self._record.retries += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _try(self, wish: Wish) -> str:
        order = {
            "id": wish.id, "payer": wish.payer, "payee": wish.payee, "way": wish.way,
            "amount": str(Money(wish.amount, "CNY")).removesuffix(" CNY"), "drill": wish.drill,
        }  # fmt: skip
        try:
            answer = await self._http.post("/api/transfers", json=order)
        except httpx.HTTPError:
            return ""  # The bank is down, or was killed before it could answer.
        if answer.status_code == 202:
            return await self._look(wish)
        if answer.status_code == 503:
            return ""
        if answer.status_code in {201, 409} and "state" in answer.json():
            return str(answer.json()["state"])
        self._record.mistake(f"transfer {wish.id}: {answer.status_code} {answer.text}")
        return "problem"

    async def _look(self, wish: Wish) -> str:
        """The state in the books, if the bank did not know it when it answered."""
        try:
            answer = await self._http.get(f"/api/transfers/{wish.id}")
        except httpx.HTTPError:
            return ""
        return str(answer.json()["state"]) if answer.status_code == 200 else ""
