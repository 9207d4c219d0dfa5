"""What transfers do to the books of one bank, on SQLite."""

import asyncio
import contextlib
import sqlite3

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer.booking import credit, debit, pay_in, refuse, settle
from examples.bank_transfer.books import BALANCE_MAX, CAPITAL, CLEARING, UNCLAIMED, Entry, State
from examples.bank_transfer.databases import Opening
from examples.bank_transfer.orders import DAY_MAX, Advice, Order, Outcome, Reason, Refused
from tests.integration.bank.books_stage import DAY_MS, NOON_MS, Books, run, sqlite_in

LOTS = 10 * DAY_MAX
OPENED = [
    Opening("A-1", "Zhang", 10_000_00),
    Opening("A-2", "Li", LOTS),
    Opening("A-3", "Wang", 500, "EUR"),
    Opening("A-4", "Zhao", 500, is_open=False),
]
ORDER = Order("t-1", "A-1", "B-1", 4_000_00)
HALF = {"way": "half", "xid": "X", "state": State.SENT}


@pytest.fixture
def books(tmp_path):
    """A bank with four accounts."""
    found = Books(sqlite_in(tmp_path), OPENED)
    yield found
    found.close()


def refused(books, order, now_ms=NOON_MS):
    with pytest.raises(Refused) as error:
        books.do(debit, order, now_ms, **HALF)
    return error.value


def test_a_debit_moves_the_amount_to_clearing(books):
    books.do(debit, ORDER, NOON_MS, **HALF)

    row = books.transfer("t-1")
    assert (row.state, row.way, row.xid, row.made_ms, row.ended_ms) == (
        State.SENT, "half", "X", NOON_MS, None,
    )  # fmt: skip
    assert books.balances()["A-1"] == 6_000_00
    assert books.sums(Entry.account) == {
        "A-1": 6_000_00, "A-2": LOTS, "A-3": 500, "A-4": 500,
        CLEARING: 4_000_00, CAPITAL: -10_000_00 - LOTS - 1_000,
    }  # fmt: skip
    assert books.faults() == []


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (Order("t", "A-9", "B", 1), Reason.UNKNOWN_ACCOUNT),
        (Order("t", CLEARING.upper(), "B", 1), Reason.UNKNOWN_ACCOUNT),
        (Order("t", "A-4", "B", 1), Reason.CLOSED_ACCOUNT),
        (Order("t", "A-3", "B", 1), Reason.WRONG_CURRENCY),
        (Order("t", "A-1", "B", 1, "EUR"), Reason.WRONG_CURRENCY),
        (Order("t", "A-1", "B", 10_000_01), Reason.TOO_LITTLE_MONEY),
        (Order("t", "A-2", "B", DAY_MAX + 1), Reason.OVER_LIMIT),
    ],
)
def test_a_refused_debit_changes_nothing(books, order, reason):
    before = books.balances()

    assert refused(books, order).reason is reason

    assert books.balances() == before
    assert books.transfers() == {}
    assert books.faults() == []


def test_an_account_can_send_its_whole_balance_and_no_more(books):
    books.do(debit, Order("t", "A-1", "B", 10_000_00), NOON_MS, **HALF)

    assert refused(books, Order("u", "A-1", "B", 1)).reason is Reason.TOO_LITTLE_MONEY
    assert books.account("A-1").balance == 0


def test_an_id_is_debited_once_even_if_the_account_was_closed_since(books):
    books.do(debit, Order("t", "A-1", "B", 10_000_00), NOON_MS, **HALF)
    books.change("A-1", is_open=False)

    with pytest.raises(IntegrityError):
        books.do(debit, Order("t", "A-1", "B", 10_000_00), NOON_MS, **HALF)

    assert books.faults() == []


def test_a_refused_id_is_never_debited(books):
    books.do(refuse, ORDER, "half", "why" * 100, NOON_MS)

    with pytest.raises(IntegrityError):
        books.do(debit, ORDER, NOON_MS, **HALF)

    row = books.transfer("t-1")
    assert (row.state, row.ended_ms, row.reason) == (State.REFUSED, NOON_MS, ("why" * 67)[:200])
    assert books.balances()["A-1"] == 10_000_00


def test_the_daily_limit_starts_over_at_midnight(books):
    midnight_ms = NOON_MS + DAY_MS // 2
    books.do(debit, Order("t-1", "A-2", "B", DAY_MAX), midnight_ms - 1, **HALF)

    error = refused(books, Order("t-2", "A-2", "B", 1), midnight_ms - 1)
    books.do(debit, Order("t-3", "A-2", "B", DAY_MAX), midnight_ms, **HALF)

    assert error.reason is Reason.OVER_LIMIT
    assert "20,000,000.00 CNY" in str(error)
    assert refused(books, Order("t-4", "A-2", "B", 1), midnight_ms).reason is Reason.OVER_LIMIT


def test_a_clock_set_back_before_midnight_does_not_reset_the_daily_limit(books):
    midnight_ms = NOON_MS + DAY_MS // 2
    books.do(debit, Order("t-1", "A-2", "B", DAY_MAX), midnight_ms, **HALF)

    early = refused(books, Order("t-2", "A-2", "B", 1), midnight_ms - 1)
    late = refused(books, Order("t-3", "A-2", "B", 1), midnight_ms)

    assert (early.reason, late.reason) == (Reason.OVER_LIMIT, Reason.OVER_LIMIT)


def test_a_clock_that_was_far_ahead_does_not_block_the_daily_limit(books):
    books.do(debit, Order("t-1", "A-2", "B", DAY_MAX), NOON_MS + 1_000 * DAY_MS, **HALF)

    books.do(debit, Order("t-2", "A-2", "B", DAY_MAX), NOON_MS, **HALF)

    assert books.account("A-2").sent_today == DAY_MAX


def test_an_advice_of_a_credit_settles_the_transfer(books):
    books.do(debit, ORDER, NOON_MS, **HALF)

    assert books.do(settle, Advice("t-1", Outcome.CREDITED), NOON_MS + 1) is State.SETTLED

    row = books.transfer("t-1")
    assert (row.state, row.reason, row.ended_ms) == (State.SETTLED, "", NOON_MS + 1)
    assert books.balances()["A-1"] == 6_000_00
    assert books.sums(Entry.account)[CLEARING] == 4_000_00


@pytest.mark.parametrize("is_open", [True, False])
def test_a_returned_amount_goes_to_the_payer_or_is_unclaimed_if_closed(books, is_open):
    books.do(debit, ORDER, NOON_MS, **HALF)
    books.change("A-1", is_open=is_open)

    state = books.do(settle, Advice("t-1", Outcome.RETURNED, "no such account" * 20), NOON_MS)

    journal = books.sums(Entry.account)
    assert state is State.RETURNED
    assert books.transfer("t-1").reason == ("no such account" * 20)[:200]
    assert books.balances()["A-1"] == (10_000_00 if is_open else 6_000_00)
    assert journal.get(UNCLAIMED, 0) == (0 if is_open else 4_000_00)
    assert journal[CLEARING] == 0
    assert books.faults() == []


def test_a_returned_amount_that_overflows_the_account_is_unclaimed(books):
    books.do(debit, ORDER, NOON_MS, **HALF)
    books.change("A-1", balance=BALANCE_MAX)

    books.do(settle, Advice("t-1", Outcome.RETURNED), NOON_MS)

    assert books.account("A-1").balance == BALANCE_MAX
    assert books.sums(Entry.account)[UNCLAIMED] == 4_000_00


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_second_advice_for_a_transfer_is_refused(books, outcome):
    books.do(debit, ORDER, NOON_MS, **HALF)
    state = books.do(settle, Advice("t-1", outcome), NOON_MS)
    before = books.balances()

    for second in Outcome:
        with pytest.raises(Refused, match="cannot become"):
            books.do(settle, Advice("t-1", second), NOON_MS)

    assert books.transfer("t-1").state == state
    assert books.balances() == before
    assert books.faults() == []


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_advice_for_a_transfer_that_was_never_sent_is_refused(books, outcome):
    books.do(refuse, Order("t-0", "A-1", "B-1", 100), "half", "no", NOON_MS)
    before = books.balances()

    for transfer in ("t-0", "t-9"):
        with pytest.raises(Refused) as error:
            books.do(settle, Advice(transfer, outcome), NOON_MS)
        assert error.value.reason is Reason.BAD_ADVICE

    assert books.balances() == before
    assert books.faults() == []


@pytest.mark.fault("M10")
def test_an_incoming_payment_is_credited_and_advised(books):
    advice = books.do(pay_in, Order("t", "B-1", "A-1", 5), NOON_MS)

    assert advice == Advice("t", Outcome.CREDITED)
    assert books.account("A-1").balance == 10_000_05
    assert books.transfer("t").state == State.CREDITED
    assert books.faults() == []


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order("t", "B", "A-9", 5), "there is no such account: A-9"),
        (Order("t", "B", "A-4", 5), "the account is closed: A-4"),
        (Order("t", "B", "A-3", 5), "the account has another currency: A-3 is in EUR"),
    ],
)
def test_an_incoming_payment_that_cannot_be_credited_is_returned(books, order, words):
    before = books.balances()

    assert books.do(pay_in, order, NOON_MS) == Advice("t", Outcome.RETURNED, words)

    row = books.transfer("t")
    assert (row.state, row.reason, row.ended_ms) == (State.RETURNED, words, NOON_MS)
    assert books.balances() == before


def test_a_payment_that_overflows_the_account_is_returned(books):
    books.change("A-1", balance=BALANCE_MAX - 1)

    first = books.do(pay_in, Order("t-1", "B", "A-1", 1), NOON_MS)
    second = books.do(pay_in, Order("t-2", "B", "A-1", 1), NOON_MS)

    assert first.outcome is Outcome.CREDITED
    assert second == Advice("t-2", Outcome.RETURNED, "the account holds no more money: A-1")
    assert books.account("A-1").balance == BALANCE_MAX


@pytest.mark.parametrize("step", [credit, pay_in])
def test_an_id_is_credited_once(books, step):
    books.do(pay_in, Order("t", "B-1", "A-1", 5), NOON_MS)

    with pytest.raises(IntegrityError):
        books.do(step, Order("t", "B-1", "A-1", 5), NOON_MS)

    assert books.account("A-1").balance == 10_000_05
    assert books.faults() == []


def test_a_debit_locks_the_database_before_it_reads_the_balance(books, tmp_path):
    """SQLite locks no rows: two programs on one file could both spend the balance they read."""
    locked = []

    def spend_it_elsewhere(connection, cursor, statement, *rest):
        if statement.startswith("UPDATE accounts"):
            with contextlib.closing(sqlite3.connect(tmp_path / "bank.db", timeout=0)) as rival:
                try:
                    rival.execute("UPDATE accounts SET balance = 0 WHERE number = 'A-1'")
                    rival.commit()
                except sqlite3.OperationalError as error:
                    locked.append(str(error))

    async def spend():
        async with books.engine() as engine:
            event.listen(engine.sync_engine, "before_cursor_execute", spend_it_elsewhere)
            async with AsyncSession(engine) as session, session.begin():
                await debit(session, ORDER, NOON_MS, **HALF)

    run(spend())

    assert locked == ["database is locked"]
    assert books.faults() == []


@pytest.mark.parametrize(
    ("step", "given", "most"),
    [
        (debit, (ORDER, NOON_MS), 3),
        (pay_in, (Order("t", "B-1", "A-1", 5), NOON_MS), 3),
        (settle, (Advice("t-1", Outcome.CREDITED), NOON_MS), 1),
    ],
)
def test_a_booking_needs_few_sql_statements(books, step, given, most):
    """A transfer makes seven statements in both banks together, without BEGIN and COMMIT."""
    if step is settle:
        books.do(debit, ORDER, NOON_MS, **HALF)
    statements = []

    async def count():
        async with books.engine() as engine:
            event.listen(
                engine.sync_engine,
                "before_cursor_execute",
                lambda connection, cursor, text, *rest: statements.append(text),
            )
            async with AsyncSession(engine) as session, session.begin():
                await step(session, *given, **(HALF if step is debit else {}))

    run(count())

    assert len(statements) <= most, statements


@pytest.mark.parametrize(
    "statement", ["INSERT INTO transfers", "UPDATE accounts", "INSERT INTO journal"]
)
def test_a_debit_cancelled_within_a_statement_releases_its_lock(books, tmp_path, statement):
    """SQLite keeps a connection closed while one of its statements is open, and its lock."""

    async def spend(engine):
        async with AsyncSession(engine) as session, session.begin():
            await debit(session, ORDER, NOON_MS, **HALF)

    async def cancelled():
        async with books.engine() as engine:

            @event.listens_for(engine.sync_engine, "before_cursor_execute")
            def cancel(connection, cursor, text, *rest):
                if text.startswith(statement):
                    spending.cancel()

            spending = asyncio.create_task(spend(engine))
            try:
                await spending
            except asyncio.CancelledError as error:
                # A traceback that is still held keeps the frames and everything in them.
                with contextlib.closing(sqlite3.connect(tmp_path / "bank.db", timeout=0)) as rival:
                    rival.execute("BEGIN IMMEDIATE")
                return error

    assert run(cancelled()) is not None
    assert books.transfers() == {}
    assert books.faults() == []
