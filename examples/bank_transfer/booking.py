"""The bookings of a transfer, each in a database transaction of the caller."""

from __future__ import annotations

import time
from typing import Any, Final

from sqlalchemy import ColumnElement, Insert, case, insert, literal, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningUpdate

from examples.bank_transfer.books import (
    BALANCE_MAX,
    CLEARING,
    MOVES,
    UNCLAIMED,
    Account,
    Entry,
    Kind,
    State,
    Transfer,
)
from examples.bank_transfer.money import Money
from examples.bank_transfer.orders import (
    DAY_MAX,
    Advice,
    Order,
    Outcome,
    Reason,
    Refused,
)

__all__ = ["credit", "debit", "open_or_close", "pay_in", "refuse", "settle", "wall_ms"]

DAY_MS: Final = 86_400_000
REASON_CHARS: Final = 200
"""The longest reason that fits into the books."""


async def debit(
    session: AsyncSession, order: Order, now_ms: int, *, way: str, xid: str, state: State
) -> None:
    """Take the money of a transfer from its payer; then it is in flight.

    Raises:
        Refused: The books do not allow it; the caller rolls back.
        IntegrityError: A transfer with this id exists.
    """
    opened = _row(order, now_ms, state, way=way, xid=xid)
    sides = _sides(order, Kind.DEBIT, order.payer, -order.amount, now_ms)
    # The clock of another program may be past midnight already; a day begins once.
    today = now_ms // DAY_MS
    days = (today, today + 1)
    sent = order.amount + case((Account.sent_on.in_(days), Account.sent_today), else_=0)
    day = case((Account.sent_on == today + 1, today + 1), else_=today)
    # One statement compares and takes, so no second transfer comes between.
    take = (
        update(Account)
        .where(*_usable(order.payer, order), Account.balance >= order.amount, sent <= DAY_MAX)
        .values(balance=Account.balance - order.amount, sent_on=day, sent_today=sent)
        .returning(Account.number)
    )
    is_taken = await _open_and_take(session, opened, take, sides)
    while not is_taken:
        account = await _account(session, order.payer, order)
        sent_today = account.sent_today if account.sent_on in days else 0
        if sent_today + order.amount > DAY_MAX:
            most = Money(DAY_MAX, order.currency)
            raise Refused(Reason.OVER_LIMIT, f"{order.payer} sends {most} a day at most")
        if account.balance < order.amount:
            raise Refused(Reason.TOO_LITTLE_MONEY, f"{order.payer} has less than {order.money}")
        # Another transfer has changed the account meanwhile.
        is_taken = await _take(session, take, sides)


async def credit(
    session: AsyncSession, order: Order, now_ms: int, *, way: str = "", xid: str = ""
) -> None:
    """Give the money of a transfer to its payee.

    Raises:
        Refused: The books do not allow it.
    """
    while not await _give(session, order.payee, order):
        account = await _account(session, order.payee, order)
        if account.balance + order.amount > BALANCE_MAX:
            raise Refused(Reason.TOO_MUCH_MONEY, order.payee)
    await session.execute(_row(order, now_ms, State.CREDITED, way=way, xid=xid))
    sides = _sides(order, Kind.CREDIT, order.payee, order.amount, now_ms)
    await session.execute(insert(Entry).values(sides))


async def pay_in(session: AsyncSession, order: Order, now_ms: int) -> Advice:
    """Give the money of a transfer to its payee, or record why it goes back; returns the advice for
    the other bank.
    """
    try:
        await credit(session, order, now_ms)
    except Refused as error:
        reason = str(error)[:REASON_CHARS]
        await session.execute(_row(order, now_ms, State.RETURNED, reason=reason))
        return Advice(order.id, Outcome.RETURNED, reason)
    return Advice(order.id, Outcome.CREDITED)


async def settle(session: AsyncSession, advice: Advice, now_ms: int) -> State:
    """Record the other bank's advice on a transfer, and give back money that it could not credit.

    Raises:
        Refused: The transfer was never sent, or has ended otherwise.
    """
    state = State.SETTLED if advice.outcome is Outcome.CREDITED else State.RETURNED
    end = (
        update(Transfer)
        .where(
            Transfer.id == advice.id,
            Transfer.state.in_([before for before in State if state in MOVES[before]]),
        )
        .values(state=state, reason=advice.reason[:REASON_CHARS], ended_ms=now_ms)
        .returning(Transfer)
    )
    while (row := await session.scalar(end)) is None:
        found = await session.get(Transfer, advice.id, with_for_update=True)
        if found is None:
            raise Refused(Reason.BAD_ADVICE, f"transfer {advice.id} was never sent")
        if state not in MOVES[State(found.state)]:
            raise Refused(
                Reason.BAD_ADVICE,
                f"transfer {advice.id} is {found.state}, and cannot become {state}",
            )
    if state is State.RETURNED:
        order = Order(row.id, row.payer, row.payee, row.amount, row.currency)
        to = row.payer if await _give(session, row.payer, order) else UNCLAIMED
        sides = _sides(order, Kind.RETURN, to, row.amount, now_ms)
        await session.execute(insert(Entry).values(sides))
    return state


async def refuse(session: AsyncSession, order: Order, way: str, reason: str, now_ms: int) -> None:
    """Record that a transfer was refused."""
    row = _row(order, now_ms, State.REFUSED, way=way, reason=reason[:REASON_CHARS])
    await session.execute(row)


async def open_or_close(session: AsyncSession, number: str, *, is_open: bool) -> None:
    """Open an account again, or close it: a closed account neither pays nor receives money.

    Raises:
        Refused: The account does not exist.
    """
    account = await session.get(Account, number, with_for_update=True)
    if account is None:
        raise Refused(Reason.UNKNOWN_ACCOUNT, number)
    account.is_open = is_open


def _usable(number: str, order: Order) -> tuple[ColumnElement[bool], ...]:
    """The conditions for an account to pay or receive an order's money."""
    return Account.number == number, Account.is_open.is_(True), Account.currency == order.currency


async def _open_and_take(
    session: AsyncSession,
    opened: Insert,
    take: ReturningUpdate[Any],
    sides: list[dict[str, Any]],
) -> bool:
    """Open a transfer, and take its money from its account; returns whether the account allows it.

    The row comes first: a second order with the same id fails on its key before an account is
    locked, and the end of a transfer locks in the same order.
    """
    if session.get_bind().dialect.name != "postgresql":
        await session.execute(opened)
        return await _take(session, take, sides)
    # PostgreSQL does all of it in one statement, and so in one round trip. Each part reads the rows
    # of the part before it, which sets their order.
    row = opened.returning(Transfer.payer).cte("opened")
    taken = take.where(Account.number == row.c.payer).cte("taken")
    columns = Entry.__table__.columns
    values = [
        select(*[literal(value, columns[name].type) for name, value in side.items()])
        for side in sides
    ]
    booked = union_all(*[side.select_from(taken) for side in values])
    book = insert(Entry).from_select(list(sides[0]), booked).returning(Entry.id)
    return await session.scalar(book) is not None


async def _take(
    session: AsyncSession, take: ReturningUpdate[Any], sides: list[dict[str, Any]]
) -> bool:
    """Take money from an account, and write both sides; returns whether the account allows it."""
    if await session.scalar(take) is None:
        return False
    await session.execute(insert(Entry).values(sides))
    return True


async def _give(session: AsyncSession, number: str, order: Order) -> bool:
    """Give an order's money to an account; returns whether the account can take it."""
    give = (
        update(Account)
        .where(*_usable(number, order), Account.balance <= BALANCE_MAX - order.amount)
        .values(balance=Account.balance + order.amount)
        .returning(Account.number)
    )
    return await session.scalar(give) is not None


async def _account(session: AsyncSession, number: str, order: Order) -> Account:
    """Lock an account that an order names, to find out why it cannot be used."""
    account = await session.get(Account, number, with_for_update=True)
    if account is None:
        raise Refused(Reason.UNKNOWN_ACCOUNT, number)
    if not account.is_open:
        raise Refused(Reason.CLOSED_ACCOUNT, number)
    if account.currency != order.currency:
        raise Refused(Reason.WRONG_CURRENCY, f"{number} is in {account.currency}")
    return account


def _row(
    order: Order, now_ms: int, state: State, *, way: str = "", xid: str = "", reason: str = ""
) -> Insert:
    """The statement that opens a transfer, or records that it is refused."""
    return insert(Transfer).values(
        id=order.id, payer=order.payer, payee=order.payee, amount=order.amount,
        currency=order.currency, state=state, reason=reason, way=way, xid=xid, made_ms=now_ms,
        ended_ms=now_ms if state.is_final else None,
    )  # fmt: skip


def _sides(
    order: Order, kind: Kind, account: str, amount: int, now_ms: int
) -> list[dict[str, Any]]:
    """Both sides of a booking: the amount for the account, and its opposite for clearing."""
    return [
        {
            "transfer": order.id, "kind": kind, "account": name, "amount": part,
            "currency": order.currency, "booked_ms": now_ms,
        }
        for name, part in ((account, amount), (CLEARING, -amount))
    ]  # fmt: skip


def wall_ms() -> int:
    """The time of a booking."""
    return time.time_ns() // 1_000_000
