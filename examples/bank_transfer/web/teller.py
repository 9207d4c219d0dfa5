"""The teller's page of each bank: what its books say, and a switch for every account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from examples.bank_transfer.booking import open_or_close
from examples.bank_transfer.books import CAPITAL, CLEARING, UNCLAIMED, State
from examples.bank_transfer.orders import Refused, is_number
from examples.bank_transfer.queries import CUSTOMERS, Part, Queries
from examples.bank_transfer.web.page_templates import error_page, page
from examples.bank_transfer.web.security import TooLarge, read_form
from examples.bank_transfer.web.transfer_view import HEADLINES

__all__ = ["TellerPage"]

LATEST: Final = 8
ACCOUNTS: Final = 20
"""On one page."""
REFRESH_S: Final = 5

SIDES: Final = {
    CUSTOMERS: "What customers have on their accounts",
    CLEARING: "Gone to the other bank, less what came from there",
    UNCLAIMED: "Came back, and its account is closed",
    CAPITAL: "Paid out when accounts were opened",
}


class TellerPage:
    """The page for tellers.

    Args:
        bank: Its name.
        writing: Its database.
        queries: Its books.
        links: Where transfers are shown; their names are put behind it.
    """

    def __init__(self, bank: str, writing: AsyncEngine, queries: Queries, links: str) -> None:
        self._bank = bank
        self._writing = writing
        self._queries = queries
        self._links = links

    def routes(self) -> list[Route]:
        """Where it is."""
        return [
            Route("/teller", self.teller),
            Route("/teller/accounts", self.switch, methods=["POST"]),
        ]

    async def teller(self, request: Request) -> Response:
        """The books, as they stand."""
        after = number_in(request.query_params.get("after", ""))
        accounts = await self._queries.accounts(after, ACCOUNTS + 1)
        movements = await self._queries.movements()
        totals = await self._queries.totals()
        shown = {
            "bank": self._bank, "links": self._links, "headlines": HEADLINES, "sides": SIDES,
            "refresh_s": 0 if "still" in request.query_params else REFRESH_S,
            "totals": sides(totals), "sums": sums(totals), "movements": movements,
            "in_flight": [movement for movement in movements if movement.name == State.SENT],
            "latest": await self._queries.transfers(limit=LATEST),
            "accounts": accounts[:ACCOUNTS], "after": after,
            "more": accounts[ACCOUNTS - 1].number if len(accounts) > ACCOUNTS else "",
        }  # fmt: skip
        return page(request, "teller.html", shown)

    async def switch(self, request: Request) -> Response:
        """Open an account, or close it."""
        try:
            fields = await read_form(request)
        except TooLarge as wrong:
            return error_page(request, self._bank, 413, "That is too much", f"{wrong}.")
        number, wanted = number_in(fields.get("number", "")), fields.get("wanted", "")
        if wanted not in {"open", "closed"}:
            text = "An account is open or closed."
            return error_page(request, self._bank, 422, "Nothing is changed", text)
        try:
            async with AsyncSession(self._writing) as session, session.begin():
                await open_or_close(session, number, is_open=wanted == "open")
        except Refused as wrong:
            return error_page(request, self._bank, 404, "Nothing is changed", f"{wrong}.")
        after = number_in(fields.get("after", ""))
        where = f"?{urlencode({'after': after})}" if after else ""
        return RedirectResponse(f"/teller{where}#accounts", 303)


def number_in(text: str) -> str:
    """The text if it is an account number, otherwise ""; a database may refuse other texts."""
    return text if is_number(text) else ""


def sides(totals: Sequence[Part]) -> list[Part]:
    """All four of each currency in one order, those that have nothing among them."""
    found = {(total.currency, total.name): total for total in totals}
    return [
        found.get((currency, name)) or Part(name, currency, 0, 0)
        for currency in sorted({total.currency for total in totals})
        for name in SIDES
    ]


def sums(totals: Sequence[Part]) -> dict[str, int]:
    """The sum of each currency's parts; zero if the books are right."""
    found: dict[str, int] = {}
    for total in totals:
        found[total.currency] = found.get(total.currency, 0) + total.amount
    return found
