"""The shop takes orders over HTTP: an order and its payment are one transaction."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from death import die
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from txmq import SQLResource, TransactionManager
from txmq.errors import RollBack

PLACE = text("INSERT INTO placed VALUES (:id, :customer, :amount)")
PAY = text(
    "UPDATE account SET balance = balance - :amount WHERE name = :customer RETURNING balance"
)
BOOK = text(
    "INSERT INTO entry (order_id, account, kind, amount) VALUES (:id, :customer, 'debit', -:amount)"
)

engine = create_async_engine("postgresql+psycopg:///shop")
transactions = TransactionManager("shop", "127.0.0.1:9876", SQLResource(engine))


@dataclass
class Order:
    """An order, and the body of its message; the caller makes up the id."""

    id: str
    customer: str
    amount: int
    seller: str = "seller"


@transactions.transactional(topic="Payments", keys=lambda order: order.id)
async def place(session: AsyncSession, order: Order) -> None:
    """Write the order, take its money, and tell the seller: all of it, or nothing."""
    for statement in (PLACE, BOOK):
        await session.execute(statement, asdict(order))
    if (await session.execute(PAY, asdict(order))).scalar_one() < 0:
        raise RollBack("too little money")
    die("before-commit")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Keep the manager open as long as the service runs: it also answers the broker's checks."""
    async with transactions:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take(order: Order) -> JSONResponse:
    """Place an order, unless it is placed already."""
    try:
        outcome = await place(order)
    except IntegrityError:
        return JSONResponse({"state": "PLACED BEFORE"})
    answer = {"state": outcome.state.name}
    if outcome.problem is not None:
        answer["reason"] = str(outcome.problem)
    return JSONResponse(answer)
