"""The auditor finds every mistake and reports no false one, at any moment."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer.booking import debit, pay_in, refuse, settle
from examples.bank_transfer.books import State
from examples.bank_transfer.databases import Opening, async_engine, create_books, open_accounts
from examples.bank_transfer.orders import Advice, Order, Outcome
from examples.bank_transfer.tour.audit import Auditor, combine, read, snapshot
from examples.bank_transfer.ways import Way

NOW_MS = 1_700_000_000_000


class Banks:
    """Both banks' books, and the steps of a transfer in them."""

    def __init__(self, directory):
        self.urls = [f"sqlite:///{directory / name}.db" for name in ("icbc", "ccb")]
        for url, bank in zip(self.urls, ("I", "C"), strict=True):
            create_books(url)
            accounts = [Opening(f"{bank}-{number}", "somebody", 1_000_00) for number in range(3)]
            open_accounts(url, [*accounts, Opening(f"{bank}-X", "gone", 0, is_open=False)], NOW_MS)
        self.count = 0
        self.runner = asyncio.Runner()
        self.engines = [async_engine(url) for url in self.urls]

    def close(self):
        for engine in self.engines:
            self.runner.run(engine.dispose())
        self.runner.close()

    def auditor(self):
        return Auditor(*self.urls)

    def order(self, payee="C-0", amount=7):
        self.count += 1
        return Order(f"o-{self.count}", "I-0", payee, amount)

    def at(self, bank, work):
        """Run a function in a transaction of one bank."""

        async def done():
            async with AsyncSession(self.engines[bank]) as session, session.begin():
                return await work(session)

        return self.runner.run(done())

    def debit(self, order):
        self.at(0, lambda session: debit(
            session, order, NOW_MS, way=Way.HALF, xid="x", state=State.SENT
        ))  # fmt: skip

    def pay_in(self, order):
        return self.at(1, lambda session: pay_in(session, order, NOW_MS))

    def settle(self, advice):
        self.at(0, lambda session: settle(session, advice, NOW_MS))

    def transfer(self, order):
        self.debit(order)
        self.settle(self.pay_in(order))

    def execute(self, bank, statement):
        self.at(bank, lambda session: session.execute(text(statement)))


@pytest.fixture
def banks(tmp_path):
    made = Banks(tmp_path)
    yield made
    made.close()


@pytest.fixture
def auditor(banks):
    made = banks.auditor()
    yield made
    made.close()


def mistakes(auditor):
    return [*auditor.look().mistakes, *auditor.match({})]


def test_correct_books_pass_the_audit(banks, auditor):
    banks.transfer(banks.order())
    banks.transfer(banks.order(payee="C-X"))
    banks.at(0, lambda session: refuse(session, banks.order(), "half", "too little", NOW_MS))

    assert mistakes(auditor) == []
    assert auditor.look().in_flight == {"CNY": 0}
    assert auditor.look().opening == {"CNY": 6_000_00}


def test_money_in_flight_is_not_reported_missing(banks, auditor):
    banks.debit(banks.order(amount=50))

    sheet = auditor.look()

    assert sheet.mistakes == ()
    assert sheet.in_flight == {"CNY": 50}
    assert auditor.match({}) == ["transfer o-1 is sent at ICBC, and at no end"]


def test_unclaimed_money_is_not_reported_missing(banks, auditor):
    order = banks.order(payee="C-X")
    banks.debit(order)
    banks.execute(0, "UPDATE accounts SET is_open = false WHERE number = 'I-0'")
    banks.settle(banks.pay_in(order))

    assert mistakes(auditor) == []
    assert auditor.look().icbc.journal["CNY", "unclaimed"] == order.amount


FRAUDS = {
    "a balance that was edited": (
        1, "UPDATE accounts SET balance = balance + 1 WHERE number = 'C-0'",
        ["CCB: C-0 has 100008, and 100007 by the journal", "0.01 CNY are there too many"],
    ),
    "a credit that was deleted": (
        1, "DELETE FROM journal WHERE kind = 'credit'",
        ["CCB: C-0 has 100007, and 100000 by the journal",
         "the transfers have 0.00 CNY in flight, and the journals 0.07 CNY",
         "transfer o-1 is credited at CCB, where these are booked: ()"],
    ),
    "a credit that was booked twice, on the balance too": (
        1, ("INSERT INTO journal (transfer, kind, account, amount, currency, booked_ms) "
           "SELECT transfer, kind, account, amount, currency, booked_ms FROM journal "
           "WHERE kind = 'credit'; UPDATE accounts SET balance = balance + 7 WHERE number = 'C-0'"),
        ["0.07 CNY are there too many",
         "the transfers have 0.00 CNY in flight, and the journals -0.07 CNY",
         ("transfer o-1 is credited at CCB, where these are booked: "
         "((<Kind.CREDIT: 'credit'>, 'C-0', 7), (<Kind.CREDIT: 'credit'>, 'C-0', 7))")],
    ),
    "one side of a booking that was changed": (
        0, "UPDATE journal SET amount = -8 WHERE kind = 'debit' AND account = 'I-0'",
        ["ICBC: I-0 has 99993, and 99992 by the journal",
         "ICBC: the debit of transfer o-1 adds up to -1, and not to nothing",
         ("transfer o-1 is settled at ICBC, where these are booked: "
         "((<Kind.DEBIT: 'debit'>, 'I-0', -8),)")],
    ),
    "a transfer that ICBC has forgotten": (
        0, "DELETE FROM journal WHERE transfer = 'o-1'; DELETE FROM transfers WHERE id = 'o-1'",
        ["ICBC: I-0 has 99993, and 100000 by the journal",
         "0.07 CNY were credited, and never debited",
         "0.07 CNY are missing" ,
         "transfer o-1 is credited at CCB, and unknown at ICBC"],
    ),
    "a transfer that was sent to somebody else": (
        1, "UPDATE transfers SET payee = 'C-1' WHERE id = 'o-1'",
        ["transfer o-1 is ('I-0', 'C-0', 7, 'CNY') at ICBC, and ('I-0', 'C-1', 7, 'CNY') at CCB",
         ("transfer o-1 is credited at CCB, where these are booked: "
         "((<Kind.CREDIT: 'credit'>, 'C-0', 7),)")],
    ),
    "an entry of nobody's account": (
        1, ("INSERT INTO journal (kind, account, amount, currency, booked_ms) "
           "VALUES ('credit', 'C-99', 5, 'CNY', 0), ('credit', 'capital', -5, 'CNY', 0)"),
        ["CCB: the journal has entries of C-99, but this account does not exist"],
    ),
    "a state that nobody has set": (
        1, "UPDATE transfers SET state = 'returned' WHERE id = 'o-1'",
        ["0.07 CNY are there too many",
         "the transfers have 0.07 CNY in flight, and the journals 0.00 CNY",
         "transfer o-1 is settled at ICBC, and returned at CCB",
         ("transfer o-1 is returned at CCB, where these are booked: "
         "((<Kind.CREDIT: 'credit'>, 'C-0', 7),)")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fraud", FRAUDS)
def test_the_audit_reports_each_fraud(banks, auditor, fraud):
    bank, statements, named = FRAUDS[fraud]
    banks.transfer(banks.order())
    assert mistakes(auditor) == []

    for statement in statements.split("; "):
        banks.execute(bank, statement)

    found = mistakes(auditor)
    assert found
    for name in named:
        assert name in found


def test_a_credited_payment_without_a_debit_is_reported(banks, auditor):
    """No bank debited its amount."""
    banks.transfer(banks.order())
    auditor.look()

    banks.pay_in(Order("forged", "I-0", "C-1", 500))

    assert "5.00 CNY were credited, and never debited" in auditor.look().mistakes
    assert "transfer forged is credited at CCB, and unknown at ICBC" in auditor.match({})


@pytest.mark.parametrize(
    ("said", "mistakes"),
    [
        ("sent", []),
        ("settled", []),
        ("unanswered", []),
        ("returned", ["transfer o-1 is settled at ICBC, but its answer was returned"]),
        ("refused", ["transfer o-1 is settled at ICBC, but its answer was refused"]),
    ],
)
def test_answers_to_customers_must_match_the_books(banks, auditor, said, mistakes):
    banks.transfer(banks.order())

    assert auditor.match({"o-1": said}) == mistakes


def test_a_transfer_lost_by_both_banks_is_reported(auditor):
    """No money is missing then, and no two books contradict each other."""
    assert auditor.match({"o-1": "sent"}) == [
        "transfer o-1 is unknown at ICBC, but its answer was sent"
    ]


# Transfers between the reading of one bank and the other


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory):
    made = Banks(tmp_path_factory.mktemp("banks"))
    yield made
    made.close()


def interleaved(banks, turns):
    """Run transfers step by step, in the given turns."""
    orders, open_steps = {}, {}
    for transfer in turns:
        if transfer not in orders:
            payee = "C-X" if transfer % 2 else "C-0"
            orders[transfer] = banks.order(payee=payee, amount=transfer + 1)
            open_steps[transfer] = 0
        order, step = orders[transfer], open_steps[transfer]
        if step == 0:
            banks.debit(order)
        elif step == 1:
            banks.pay_in(order)
        elif step == 2:
            is_returned = order.payee == "C-X"
            banks.settle(Advice(
                order.id, Outcome.RETURNED if is_returned else Outcome.CREDITED
            ))  # fmt: skip
        open_steps[transfer] += 1
        yield


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_reading_ccb_before_icbc_reports_no_false_mistake(long_lived, turns, data):
    auditor = long_lived.auditor()
    try:
        opening = auditor.look().opening
        pause = data.draw(st.integers(0, len(turns)), label="steps before CCB is read")
        between = data.draw(st.integers(0, len(turns)), label="steps between both")
        steps = interleaved(long_lived, turns)
        for _ in range(pause):
            next(steps, None)
        with snapshot(auditor._ccb) as connection:
            ccb = read(connection, "CCB")
        for _ in range(between):
            next(steps, None)
        with snapshot(auditor._icbc) as connection:
            icbc = read(connection, "ICBC")

        assert combine(icbc, ccb, opening).mistakes == ()
    finally:
        auditor.close()


def test_reading_icbc_before_ccb_would_report_a_false_mistake(banks, auditor):
    """That is why CCB's books are read first."""
    opening = auditor.look().opening
    with snapshot(auditor._icbc) as connection:
        icbc = read(connection, "ICBC")
    banks.transfer(banks.order())
    with snapshot(auditor._ccb) as connection:
        ccb = read(connection, "CCB")

    assert "0.07 CNY were credited, and never debited" in combine(icbc, ccb, opening).mistakes
