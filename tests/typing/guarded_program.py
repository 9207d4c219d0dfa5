"""A program that uses every public name of txmq.idempotent, for mypy; it is never run.

What is declared here with a type is what a user relies on; a change that breaks such a line breaks
programs.
"""

from __future__ import annotations

import functools

import psycopg
import redis
from sqlalchemy import MetaData, Table, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from txmq import Later, Message, Outbox, ReceivedMessage, blocking
from txmq.idempotent import (
    Attempt,
    DoneTable,
    Guard,
    PlainGuard,
    RedisGuard,
    SessionGuard,
    TokenGuard,
    UniqueKeyTable,
    Verdict,
    VersionGuard,
    create_done,
    idempotent,
    redelivery_horizon,
)
from txmq.testing import received


def consume(names: str) -> None:
    """Handlers behind a table."""
    consumer = blocking.PushConsumer("ccb", names)
    engine = create_engine("sqlite://")
    is_new: bool = create_done(engine, "seen")
    guard = UniqueKeyTable(engine, table="seen", schema=None)

    @consumer.on("transfer")
    @idempotent(guard, key=lambda message: message.key)
    def transfer_in(session: Session, message: ReceivedMessage) -> Later | None:
        return None if session.is_active else Later()

    @idempotent(guard, key=lambda order, at: order, keeps_result=True, scope="pay")
    def pay(session: Session, order: str, at: int) -> int:
        return at if session.is_active else 0

    class Desk:
        @idempotent(guard, key=lambda message: message.key)
        def transfer_in(self, session: Session, message: ReceivedMessage) -> Later | None:
            return None if session.is_active else Later()

    consumer.on("transfer")(Desk().transfer_in)
    paid: int | None = pay("order-1", at=9)
    print(paid, transfer_in, is_new)


def publish(names: str, outbox: Outbox) -> None:
    """One commit for the key, the work, and the messages to send."""
    consumer = blocking.PushConsumer("stock", names)
    guard = UniqueKeyTable(create_engine("sqlite://"))
    awaited = UniqueKeyTable(create_async_engine("sqlite+aiosqlite://"))

    @consumer.on("orders")
    @idempotent(guard, key=lambda message: message.key)
    @outbox.publishes(lane=lambda message: message.key)
    def reserve(session: Session, message: ReceivedMessage) -> Message | None:
        return Message(topic="reserved", body=message.body) if session.is_active else None

    @idempotent(awaited, key=lambda message: message.key)
    @outbox.publishes(lane="all")
    async def bill(session: AsyncSession, message: ReceivedMessage) -> list[Message]:
        return [message] if session.is_active else []

    reserved: Later | None = reserve(received("orders", b"tea"))
    print(reserved, bill)


def follow(names: str, accounts: Table) -> Verdict:
    """Versions, and tokens of calls that are no messages."""
    engine = create_engine("sqlite://")
    versions = VersionGuard(engine, accounts, version="version", gaps="wait", wait=1.0)
    removed: int = UniqueKeyTable(engine).clean(redelivery_horizon() + 1)
    tokens = TokenGuard(UniqueKeyTable(engine), secret=b"0" * 32, good_for=600.0)

    @idempotent(versions, key=lambda message: (message.key, int(message.properties["version"])))
    def change(session: Session, message: ReceivedMessage) -> None:
        print(session.is_active)

    @idempotent(tokens, key=lambda token, order: token, payload=lambda token, order: order)
    def buy(session: Session, token: str, order: bytes) -> dict[str, int]:
        return {"size": len(order)}

    answer: dict[str, int] | None = buy(tokens.issue(), b"tea")
    print(names, answer, change, removed)
    with Session(engine) as session:
        return versions.bump(session, ("A-1", 7))


async def consume_awaited(message: ReceivedMessage) -> str | None:
    """The same with asyncio, and with a connection of psycopg's."""
    guard = UniqueKeyTable(create_async_engine("sqlite+aiosqlite://"))

    @idempotent(guard, key=lambda message: message.key, payload=lambda message: message.body)
    async def transfer_in(session: AsyncSession, message: ReceivedMessage) -> str:
        return message.key if session.is_active else ""

    plain = UniqueKeyTable(functools.partial(psycopg.connect, "dbname=ccb"))

    @idempotent(plain, key=lambda number: str(number))
    def count(connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
        connection.execute("SELECT 1")

    count(7)
    quick = RedisGuard(redis.Redis(socket_timeout=0.25), lease=5.0)

    @idempotent(quick, key=lambda number: str(number))
    def mail(number: int) -> None:
        print(number)

    @idempotent(quick.before(plain), key=lambda number: str(number))
    def count_quickly(connection: psycopg.Connection[tuple[object, ...]], number: int) -> None:
        connection.execute("SELECT 1")

    mail(7)
    count_quickly(7)
    await guard.verify()
    removed: int = await guard.clean(redelivery_horizon(kept=3600.0) + 1)
    async with guard.attempt("key", scope="report", payload=b"1") as attempt:
        if attempt.verdict is Verdict.FIRST:
            attempt.keep(removed)
    return await transfer_in(message)


def any_of_them(
    any_guard: Guard[str, object], plain: PlainGuard[str], other: SessionGuard[str, Session]
) -> Attempt[object]:
    """Whoever writes guards of their own."""
    with plain.attempt("a") as first, other.attempt("b") as second:
        print(first.result, second.session.is_active)

    @idempotent(plain, key=lambda number: str(number))
    def handle(number: int) -> int:
        return number

    print(handle(1), DoneTable("seen", metadata=MetaData()).ddl("postgresql"))
    return any_guard.attempt("c")
