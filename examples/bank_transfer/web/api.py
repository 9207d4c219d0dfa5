"""The banks' API: JSON over HTTP, for programs.

A caller without an answer, or with one that says to ask again, repeats the order with the same id,
as often as necessary: the money moves once. Another id would be another transfer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.bank_transfer.books import State, Transfer
from examples.bank_transfer.icbc import ICBC, Booked
from examples.bank_transfer.money import Money
from examples.bank_transfer.orders import Drill, Order, Reason, Refused
from examples.bank_transfer.queries import Queries
from examples.bank_transfer.texts import words
from examples.bank_transfer.ways import Way
from txmq.errors import OutcomeUnknown, TransactionConflict, TxmqError

__all__ = ["Asked", "answer", "api_of", "ask", "paying_api_of"]

BODY_BYTES_MAX: Final = 16 * 1024

STATUS: Final = {
    State.SENT: 201,
    State.SETTLED: 201,
    State.RETURNED: 201,
    State.REFUSED: 409,
    None: 202,
}


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order; the amount is written as people write it."""

    id: str
    payer: str
    payee: str
    amount: str
    currency: str = "CNY"
    way: Way = Way.HALF
    drill: Drill = Drill.NONE

    def order(self) -> Order:
        """The order.

        Raises:
            Refused: The amount is invalid.
        """
        try:
            money = Money.read(self.amount, self.currency)
        except ValueError as error:
            raise Refused(Reason.BAD_AMOUNT, str(error)) from error
        return Order(self.id, self.payer, self.payee, money.minor, self.currency)


def api_of(queries: Queries) -> list[Route]:
    """The routes of both banks."""

    @from_books
    async def account(request: Request) -> Response:
        number = request.path_params["number"]
        found = await queries.account(number)
        if found is None:
            return _no(404, f"account {number} does not exist")
        return JSONResponse({
            "number": found.number, "holder": found.holder, "is_open": found.is_open,
            "balance": found.balance, "currency": found.currency,
        })  # fmt: skip

    @from_books
    async def transfer(request: Request) -> Response:
        of = request.path_params["id"]
        found = await queries.transfer(of)
        if found is None:
            return _no(404, f"transfer {of} does not exist")
        return JSONResponse(_shown(found))

    @from_books
    async def health(_: Request) -> Response:
        await queries.well()
        return JSONResponse({"state": "well"})

    return [
        Route("/api/accounts/{number}", account),
        Route("/api/transfers/{id}", transfer),
        Route("/api/health", health),
    ]


def from_books(
    read: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Answer 503 if the books cannot be read."""

    @wraps(read)
    async def answered(request: Request) -> Response:
        try:
            return await read(request)
        except SQLAlchemyError as error:
            return _no(503, f"the database does not answer: {words(error)}")

    return answered


def paying_api_of(bank: ICBC) -> list[Route]:
    """Further routes of the payer's bank."""

    async def transfer(request: Request) -> Response:
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    return _no(413, f"an order has {BODY_BYTES_MAX} bytes at most")
            asked = msgspec.json.decode(body, type=Asked)
        except ClientDisconnect:
            return _no(400, "the order has no end")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _no(422, f"{Reason.BAD_ORDER.value}: {error}")
        status, booked, why = await ask(bank, asked)
        return _no(status, why) if booked is None else answer(status, booked)

    async def steps(request: Request) -> Response:
        return JSONResponse([step._asdict() for step in bank.steps.of(request.path_params["id"])])

    return [
        Route("/api/transfers", transfer, methods=["POST"]),
        Route("/api/transfers/{id}/steps", steps),
    ]


async def ask(bank: ICBC, asked: Asked) -> tuple[int, Booked | None, str]:
    """Make a transfer; returns the status of the answer, and the booking or what prevented it."""
    try:
        booked = await bank.transfer(asked.order(), asked.way, asked.drill)
    except Refused as error:
        return 409 if error.reason is Reason.SAME_ID else 422, None, str(error)
    except OutcomeUnknown as error:
        return 202, None, f"not known yet, ask again: {error}"
    except TransactionConflict as error:
        return 500, None, f"an operator must look at this: {error}"
    except (TxmqError, SQLAlchemyError) as error:
        # An earlier order with this id may be booked; that is unknown here.
        return 503, None, f"not made now, ask again with the same id: {words(error)}"
    return STATUS[booked.state], booked, booked.reason


def answer(status: int, booked: Booked) -> Response:
    """The booking, for programs."""
    state = "unknown" if booked.state is None else booked.state.value
    fields = {
        "id": booked.order.id, "state": state, "xid": booked.xid, "reason": booked.reason,
    }  # fmt: skip
    return JSONResponse(fields, status)


def _shown(found: Transfer) -> dict[str, Any]:
    return {
        "id": found.id, "state": found.state, "payer": found.payer, "payee": found.payee,
        "amount": found.amount, "currency": found.currency, "reason": found.reason,
        "way": found.way, "xid": found.xid, "made_ms": found.made_ms, "ended_ms": found.ended_ms,
    }  # fmt: skip


def _no(status: int, error: str) -> Response:
    again = {"retry-after": "1"} if status == 503 else {}
    return JSONResponse({"problem": error}, status, headers=again)
