"""The bank with FastAPI, an ``AsyncSession``, and one manager for the life of the process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from examples.web.bank import (
    GROUP,
    UNAVAILABLE,
    Answer,
    Transfer,
    answer_of,
    booked,
    later,
    see_balance,
)
from txmq import SQLResource, TransactionManager

__all__ = ["create_app"]

BOOK = text("INSERT INTO transfer (id, xid, payer, amount) VALUES (:id, :xid, :payer, :amount)")
TAKE = text("UPDATE account SET balance = balance - :amount WHERE name = :payer RETURNING balance")
FIND = text("SELECT xid, payer, amount FROM transfer WHERE id = :id")


async def find(engine: AsyncEngine, order: Transfer) -> Answer | None:
    """The answer to a transfer that is in the books already."""
    async with engine.connect() as connection:
        found = (await connection.execute(FIND, {"id": order.id})).one_or_none()
    return None if found is None else booked(order, *found)


def create_app(database: str, names: str) -> FastAPI:
    """The application; nothing is opened before its lifespan begins."""
    engine = create_async_engine(database)
    tm = TransactionManager(GROUP, names, SQLResource(engine))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with tm:
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @tm.transactional(topic="transfer", tags="CCB", keys=lambda order: order.id)
    async def transfer_out(session: AsyncSession, order: Transfer) -> None:
        current = tm.current()
        assert current is not None
        row = {"id": order.id, "payer": order.payer, "amount": order.amount}
        await session.execute(BOOK, {**row, "xid": current.xid})
        left = (await session.execute(TAKE, row)).scalar_one_or_none()
        see_balance(order, left)

    @app.post("/transfers")
    async def transfer(order: Transfer) -> JSONResponse:
        answer = await find(engine, order)
        if answer is None:
            try:
                answer = answer_of(await transfer_out(order))
            except IntegrityError as error:
                # The same request came twice at the same moment, and the other was first.
                answer = await find(engine, order) or later(error)
            except UNAVAILABLE as error:
                answer = later(error)
        return JSONResponse(answer.body, answer.status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        return {"state": "well"}

    return app


def main() -> FastAPI:
    """For ``uvicorn --factory examples.web.fastapi_bank:main``."""
    return create_app(os.environ["BANK_DATABASE"], os.environ["TXMQ_NAMES"])
