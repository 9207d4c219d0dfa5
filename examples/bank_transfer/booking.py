"""The bookings of a transfer, each in a database transaction of the caller."""

from __future__ import annotations

from typing import Final

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

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

__all__ = ["credit", "debit", "open_or_close", "pay_in", "refuse", "settle"]

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
    # The row comes first: a second order with the same id fails on its key before an account is
    # locked, and the end of a transfer locks in the same order. SQLite locks no rows, but has one
    # writer from here on, so the values read below do not change.
    await _open(session, order, now_ms, state, way=way, xid=xid)
    account = await _account(session, order.payer, order)
    today = now_ms // DAY_MS
    if account.sent_on == today + 1:
        today += 1  # The clock of another program is past midnight already; a day begins once.
    sent = order.amount + (account.sent_today if account.sent_on == today else 0)
    if sent > DAY_MAX:
        most = Money(DAY_MAX, order.currency)
        raise Refused(Reason.OVER_LIMIT, f"{order.payer} sends {most} a day at most")
    if account.balance < order.amount:
        raise Refused(Reason.TOO_LITTLE_MONEY, f"{order.payer} has less than {order.money}")
    account.balance -= order.amount
    account.sent_on, account.sent_today = today, sent
    await _book(session, order, Kind.DEBIT, order.payer, -order.amount, now_ms)


async def credit(
    session: AsyncSession, order: Order, now_ms: int, *, way: str = "", xid: str = ""
) -> None:
    """Give the money of a transfer to its payee.

    Raises:
        Refused: The books do not allow it.
    """
    account = await _account(session, order.payee, order)
    if account.balance + order.amount > BALANCE_MAX:
        raise Refused(Reason.TOO_MUCH_MONEY, order.payee)
    account.balance += order.amount
    await _open(session, order, now_ms, State.CREDITED, way=way, xid=xid)
    await _book(session, order, Kind.CREDIT, order.payee, order.amount, now_ms)


async def pay_in(session: AsyncSession, order: Order, now_ms: int) -> Advice:
    """Give the money of a transfer to its payee, or record why it goes back; returns the advice for
    the other bank.
    """
    try:
        await credit(session, order, now_ms)
    except Refused as error:
        reason = str(error)[:REASON_CHARS]
        await _open(session, order, now_ms, State.RETURNED, reason=reason)
        return Advice(order.id, Outcome.RETURNED, reason)
    return Advice(order.id, Outcome.CREDITED)


async def settle(session: AsyncSession, advice: Advice, now_ms: int) -> State:
    """Record the other bank's advice on a transfer, and give back money that it could not credit.

    Raises:
        Refused: The transfer was never sent, or has ended otherwise.
    """
    row = await session.get(Transfer, advice.id, with_for_update=True)
    if row is None:
        raise Refused(Reason.BAD_ADVICE, f"transfer {advice.id} was never sent")
    state = State.SETTLED if advice.outcome is Outcome.CREDITED else State.RETURNED
    if state not in MOVES[State(row.state)]:
        raise Refused(
            Reason.BAD_ADVICE, f"transfer {advice.id} is {row.state}, and cannot become {state}"
        )
    row.state, row.reason, row.ended_ms = state, advice.reason[:REASON_CHARS], now_ms
    if state is State.RETURNED:
        order = Order(row.id, row.payer, row.payee, row.amount, row.currency)
        account = await session.get(Account, row.payer, with_for_update=True)
        to = UNCLAIMED
        if account is not None and account.is_open and account.balance + row.amount <= BALANCE_MAX:
            account.balance += row.amount
            to = row.payer
        await _book(session, order, Kind.RETURN, to, row.amount, now_ms)
    return state


async def refuse(session: AsyncSession, order: Order, way: str, reason: str, now_ms: int) -> None:
    """Record that a transfer was refused."""
    await _open(session, order, now_ms, State.REFUSED, way=way, reason=reason[:REASON_CHARS])


async def open_or_close(session: AsyncSession, number: str, *, is_open: bool) -> None:
    """Open an account again, or close it: a closed account neither pays nor receives money.

    Raises:
        Refused: The account does not exist.
    """
    account = await session.get(Account, number, with_for_update=True)
    if account is None:
        raise Refused(Reason.UNKNOWN_ACCOUNT, number)
    account.is_open = is_open


async def _account(session: AsyncSession, number: str, order: Order) -> Account:
    account = await session.get(Account, number, with_for_update=True)
    if account is None:
        raise Refused(Reason.UNKNOWN_ACCOUNT, number)
    if not account.is_open:
        raise Refused(Reason.CLOSED_ACCOUNT, number)
    if account.currency != order.currency:
        raise Refused(Reason.WRONG_CURRENCY, f"{number} is in {account.currency}")
    return account


async def _open(
    session: AsyncSession,
    order: Order,
    now_ms: int,
    state: State,
    *,
    way: str = "",
    xid: str = "",
    reason: str = "",
) -> None:
    await session.execute(insert(Transfer).values(
        id=order.id, payer=order.payer, payee=order.payee, amount=order.amount,
        currency=order.currency, state=state, reason=reason, way=way, xid=xid, made_ms=now_ms,
        ended_ms=now_ms if state.is_final else None,
    ))  # fmt: skip


async def _book(
    session: AsyncSession, order: Order, kind: Kind, account: str, amount: int, now_ms: int
) -> None:
    """Write both sides: the amount for the account, and its opposite for clearing."""
    both = ((account, amount), (CLEARING, -amount))
    await session.execute(insert(Entry), [
        {
            "transfer": order.id, "kind": kind, "account": name, "amount": amount,
            "currency": order.currency, "booked_ms": now_ms,
        }
        for name, amount in both
    ])  # fmt: skip
