"""The customer's pages at ICBC: order a transfer, and watch it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.bank_transfer.money import DIGITS
from examples.bank_transfer.orders import Drill, Reason, Refused
from examples.bank_transfer.queries import Queries
from examples.bank_transfer.ways import Way
from examples.bank_transfer.web.api import Asked
from examples.bank_transfer.web.desk import Desk
from examples.bank_transfer.web.page_templates import error_page, page
from examples.bank_transfer.web.security import TooLarge, read_form
from examples.bank_transfer.web.transfer_view import TransferView
from txmq.errors import LimitExceeded

__all__ = ["CustomerPages"]

log = logging.getLogger(__name__)

OFFERED_MAX: Final = 100
"""Accounts that the form offers; others can be typed."""
WATCHERS_MAX: Final = 64
"""Live pages at once; others ask to be reloaded."""
LOOK_S: Final = 0.25
"""How often a live page reads the books. The steps are pushed."""
AGAIN_MS: Final = 500
"""How soon a live page tries again if the bank does not answer."""
ID_BYTES: Final = 8

WAYS: Final = {
    Way.HALF: ("Half message", "CCB receives the message if the debit commits. All nine steps."),
    Way.OUTBOX: ("Outbox", "The message is committed with the debit, and a relay sends it."),
    Way.XA: ("XA", "Both databases prepare, then both commit."),
}
DRILLS: Final = {
    Drill.NONE: ("None", "An ordinary transfer."),
    Drill.TAGA: ("TAGA", "The debit commits, as without a drill."),
    Drill.TAGB: ("TAGB", "The debit fails after it was written: it is rolled back."),
    Drill.TAGC: ("TAGC", "The debit commits, but ICBC does not report it: the broker has to ask."),
    Drill.SLOW: ("SLOW", "The debit takes three seconds, so that the steps can be watched."),
}
EMPTY: Final = {
    "payer": "", "payee": "", "amount": "", "currency": "CNY", "way": Way.HALF.value, "drill": "",
}  # fmt: skip


class CustomerPages:
    """The pages of customers.

    Args:
        desk: Takes their orders.
        queries: The bank's books.
        ending: Set when the program ends; otherwise open live pages would keep it running.
    """

    def __init__(self, desk: Desk, queries: Queries, ending: asyncio.Event) -> None:
        self._desk = desk
        self._queries = queries
        self._ending = ending
        self._steps = desk.bank.steps
        self._watchers = 0

    def routes(self) -> list[Route]:
        """The routes of the pages."""
        return [
            Route("/", self.home),
            Route("/transfers", self.begin, methods=["POST"]),
            Route("/transfers/{id}", self.transfer),
            Route("/transfers/{id}/events", self.events),
        ]

    async def home(self, request: Request) -> Response:
        """The form; a link may fill it in."""
        typed = {name: request.query_params.get(name, usual) for name, usual in EMPTY.items()}
        return await self._form(request, typed)

    async def begin(self, request: Request) -> Response:
        """Begin the transfer, or show the form again with its values and the reason."""
        try:
            fields = await read_form(request)
        except TooLarge as wrong:
            return error_page(request, "ICBC", 413, "That is too much", f"{wrong}.")
        typed = {name: fields.get(name, usual).strip() for name, usual in EMPTY.items()}
        try:
            asked = msgspec.convert({**typed, "id": fields.get("id", "")}, Asked)
            await self._desk.begin(asked)
        except msgspec.ValidationError as wrong:
            return await self._form(request, typed, f"{Reason.BAD_ORDER.value}: {wrong}", 422)
        except Refused as wrong:
            is_used = wrong.reason is Reason.SAME_ID
            why = "this form has made another transfer already; send it again to make this one"
            status = 409 if is_used else 422
            return await self._form(request, typed, why if is_used else str(wrong), status)
        except LimitExceeded:
            why = "too many transfers are under way; send it again in a moment"
            return await self._form(request, typed, why, 503)
        # A redirect to GET, so that a reload does not send the form again.
        return RedirectResponse(f"/transfers/{asked.id}", 303)

    async def _form(
        self, request: Request, typed: Mapping[str, str], why: str = "", status: int = 200
    ) -> Response:
        # Each form is one transfer, however often it is sent.
        new = f"web-{secrets.token_hex(ID_BYTES)}"
        accounts = await self._queries.accounts(limit=OFFERED_MAX)
        shown = {
            "bank": "ICBC", "id": new, "typed": typed, "why": why, "drills": DRILLS,
            "ways": {way: text for way, text in WAYS.items() if way in self._desk.bank.ways},
            "currencies": list(DIGITS),
            "accounts": [account for account in accounts if account.is_open],
        }  # fmt: skip
        return page(request, "customer.html", shown, status)

    async def transfer(self, request: Request) -> Response:
        """One transfer, in its current state."""
        of = request.path_params["id"]
        view = await self._view(of)
        if view is None:
            text = (
                f"Transfer {of} does not exist, and nothing was booked with this id. If you "
                "ordered it a moment ago, the bank restarted before the booking."
            )
            return error_page(request, "ICBC", 404, "This transfer does not exist", text)
        again = {name: getattr(view.order, name) for name in ("payer", "payee", "currency")}
        again["amount"] = str(view.order.money).partition(" ")[0]
        shown = {"bank": "ICBC", "view": view, "parts": dict(view.parts()), "again": again}
        return page(request, "transfer.html", shown)

    async def events(self, request: Request) -> Response:
        """Each part of that page whenever it changes, until the transfer has ended."""
        of = request.path_params["id"]
        if await self._view(of) is None:
            return PlainTextResponse("this transfer does not exist\n", 404)
        if self._watchers >= WATCHERS_MAX:
            return PlainTextResponse("too many live pages are open\n", 503)
        return StreamingResponse(
            self._changes(of), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _changes(self, of: str) -> AsyncIterator[str]:
        woken = asyncio.Event()
        following = asyncio.create_task(self._wake(of, woken), name=f"live page of {of}")
        self._watchers += 1
        try:
            sent: dict[str, str] = {}
            view: TransferView | None = None
            yield f"retry: {AGAIN_MS}\n\n"
            while not self._ending.is_set():
                woken.clear()
                with suppress(SQLAlchemyError):  # The database may answer next time.
                    view = await self._view(of)
                for name, html in () if view is None else view.parts():
                    if sent.get(name) != html:
                        sent[name] = html
                        yield _event("part", {"name": name, "html": html})
                try:
                    async with asyncio.timeout(LOOK_S):
                        await woken.wait()
                except TimeoutError:
                    if view is not None and view.is_over:
                        yield _event("end", {})
                        return
        finally:
            self._watchers -= 1
            following.cancel()

    async def _wake(self, of: str, woken: asyncio.Event) -> None:
        async for _ in self._steps.follow(of):
            woken.set()

    async def _view(self, of: str) -> TransferView | None:
        # The desk first: a transfer that has ended there is in the books when they are read.
        begun = self._desk.begun(of)
        row = await self._queries.transfer(of)
        if begun is None and row is None:
            return None
        entries = [] if row is None else await self._queries.entries(of)
        return TransferView(of, begun, row, entries, self._steps.of(of))


def _event(kind: str, about: Mapping[str, str]) -> str:
    return f"event: {kind}\ndata: {msgspec.json.encode(about).decode()}\n\n"
