"""Balance proofs of books in which no single transfer is wrong: bookings without a transfer,
missing rows, and sums beyond 64 bits.
"""

from collections import defaultdict
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tests.reconcile.days import BANKS, Plan
from tests.reconcile.frames import collected, in_memory, ledgers_of, left_by, proved, reconcile
from tests.reconcile.reference import Entry
from txmq.errors import ReconcileRefused
from txmq.reconcile.ledgers import Role
from txmq.reconcile.tables import LATER, OPENING

PLAN = Plan(transfers=1, double_entry=True)
WORDS = {"clearing": "clearing", "capital": "capital", "unclaimed": "suspense"}
HOUR_MS = 3_600_000
LONG_MAX = (1 << 63) - 1


def rules(**changes):
    """Rules of two banks without tables of accounts; arguments change their entries."""
    given = {"gapless": False} | changes
    banks = (
        replace(bank, accounts=None, entries=replace(bank.entries, **given))
        for bank in PLAN.rules.bank
    )
    return replace(PLAN.rules, bank=tuple(banks))


DAYS = [PLAN.day + timedelta(days=index) for index in range(4)]
WINDOWS = [rules().day.window(day) for day in DAYS]


class Books:
    """The journals of both banks, whose days are read one after the other."""

    def __init__(self):
        self.rows = []
        self.ids = dict.fromkeys(BANKS, 0)

    def book(self, bank, key, kind, day=0, *, currency="CNY", late=False, **amounts):
        """A row for each account, in the middle of a day."""
        for account, amount in amounts.items():
            self.ids[bank] += 1
            recorded = WINDOWS[day].start_ms + HOUR_MS
            booked = recorded - 2 * HOUR_MS if late else recorded
            self.rows.append(
                Entry(
                    bank,
                    self.ids[bank],
                    key and f"icbc/{key}",
                    kind,
                    WORDS.get(account, "customer"),
                    f"{bank}-{account}",
                    amount,
                    currency,
                    booked,
                    recorded,
                )
            )

    def debit(self, key, amount, day=0, **more):
        self.book("icbc", key, "debit", day, ann=-amount, clearing=amount, **more)

    def credit(self, key, amount, day=0, **more):
        self.book("ccb", key, "credit", day, clearing=-amount, bob=amount, **more)

    def lose(self, **wanted):
        """Remove the rows with these values."""
        lost = [
            row for row in self.rows if all(getattr(row, name) == wanted[name] for name in wanted)
        ]
        assert lost
        self.rows = [row for row in self.rows if row not in lost]

    def read(self, day):
        """The extract of a day, made after the last day is over."""
        start, end = WINDOWS[day]
        inside = [row for row in self.rows if start <= row.recorded_ms < end]
        found = ledgers_of(inside, [], [], {})
        before = [row for row in self.rows if row.recorded_ms < start]
        after = [row for row in self.rows if row.recorded_ms >= end]
        found[Role.OPENING], found[Role.LATER] = summed(OPENING, before), summed(LATER, after)
        return found


def summed(table, rows):
    sums = defaultdict(lambda: (0, 0))
    for row in rows:
        amount, count = sums[row.bank, row.account, row.role, row.currency]
        sums[row.bank, row.account, row.role, row.currency] = amount + row.amount, count + 1
    given = [(*place, *name) for place, name in sums.items()]
    return in_memory(table, given, has_bank=True)


def run(books, given, day=0, before=None):
    """The result of a day that continues from the one before."""
    tables = books.read(day) | ({} if before is None else left_by(before))
    found = reconcile(tables, {}, given, DAYS[day], WINDOWS[day].end_ms)
    # The outcome is kept, so that no other object gets its id.
    _PROOFS[id(found)] = found, proved(found, given)
    return found


_PROOFS = {}


def proofs_of(outcome):
    return _PROOFS[id(outcome)][1]


def broken(outcome):
    """The proofs that do not hold: expected and found, by proof, bank, account and currency."""
    return {
        (row.proof, row.bank, row.account, row.currency): (row.expected, row.found)
        for row in proofs_of(outcome)
        if not row.holds
    }


def whole(outcome, proof):
    return {
        row.currency: (row.expected, row.found)
        for row in proofs_of(outcome)
        if row.account is None and row.proof == proof and row.currency
    }


# What is on its way


@pytest.fixture(scope="module")
def settled():
    """Books with bookings that belong to no transfer, and their result."""
    books = Books()
    books.debit("T1", 500, currency="EUR")
    books.debit("T2", 70, currency="USD")
    books.credit("T2", 70, currency="USD")
    # The banks settle with each other, against money from outside.
    books.book("icbc", None, "other", clearing=-300, capital=300, currency="USD")
    books.book("ccb", None, "other", clearing=300, capital=-300, currency="USD")
    # One teller books to a customer, and another out of the bank.
    books.book("icbc", None, "other", clearing=-1000, ann=1000)
    books.book("ccb", None, "other", clearing=-40, capital=40, currency="JPY")
    # Customers pay in, and pay out.
    books.book("icbc", None, "other", capital=-900, ann=900)
    for currency in ("CNY", "USD"):
        books.book("icbc", None, "other", ann=-100, capital=100, currency=currency)
        books.book("icbc", None, "other", ann=100, capital=-100, currency=currency)
    books.book("ccb", None, "other", capital=-900, bob=900)
    return books, run(books, rules())


def test_money_that_leaves_clearing_without_a_transfer_fails_the_proofs(settled):
    _, found = settled

    assert broken(found) == {
        ("clearing-total", None, None, "CNY"): (0, -1000),
        ("clearing-total", None, None, "JPY"): (0, -40),
        ("conservation", None, None, "CNY"): (1800, 2800),
        ("conservation", None, None, "JPY"): (-40, 0),
    }
    assert whole(found, "clearing-total") == {
        "CNY": (0, -1000), "EUR": (500, 500), "JPY": (0, -40), "USD": (0, 0),
    }  # fmt: skip


def test_a_transfer_in_flight_for_days_is_counted_once_in_the_proofs():
    books = Books()
    for key in ("credited", "returned", "lost", "twice"):
        books.debit(key, 100)
    books.book("icbc", "paid-out", "debit", capital=-50, clearing=50)
    books.credit("twice", 100)
    first = run(books, rules())
    assert broken(first) == {}
    assert whole(first, "clearing-total")["CNY"] == (350, 350)

    books.credit("credited", 100, 1)
    books.book("icbc", "returned", "return", 1, clearing=-100, ann=100)
    books.credit("twice", 100, 1)
    books.book("ccb", "paid-out", "credit", 1, clearing=-50, unclaimed=50)
    books.debit("new", 20, 1, late=True)
    books.debit("stolen", 7, 1, currency="USD")
    books.book("icbc", None, "other", 1, clearing=-7, ann=7, currency="USD")
    second = run(books, rules(), 1, first)

    assert whole(second, "clearing-total") == {"CNY": (-330, -330), "USD": (7, 0)}
    assert broken(second) == {
        ("clearing-total", None, None, "USD"): (7, 0),
        ("conservation", None, None, "USD"): (-7, 0),
    }


# What comes from outside


@pytest.mark.parametrize("capital", [True, False])
def test_money_from_nowhere_fails_conservation_if_capital_accounts_are_named(capital):
    books = Books()
    books.book("icbc", None, "other", ann=900, capital=-900, currency="USD")
    books.book("ccb", None, "other", unclaimed=-30, bob=30, currency="USD")
    books.book("icbc", "T1", "debit", ann=-100)
    books.book("ccb", "T1", "credit", bob=100)
    books.book("ccb", None, "other", bob=1_000_000)
    given = {"double_entry": False, "clearing": ()} | ({} if capital else {"capital": ()})
    if not capital:
        books.rows = [row for row in books.rows if row.role != "capital"]

    found = run(books, rules(**given))

    nowhere = {("conservation", None, None, "CNY"): (0, 1_000_000)}
    assert broken(found) == (nowhere if capital else {})


# What was booked on other days


def test_missing_row_numbers_are_found_within_a_day_and_between_days():
    given = rules(gapless=True)
    books = Books()
    for key in ("A", "B", "C"):
        books.debit(key, 10)
        books.credit(key, 10)
    books.lose(key="icbc/B", kind="credit")
    first = run(books, given)
    assert broken(first) == {("gapless", "ccb", None, None): (6, 4)}

    # Nothing is booked on the second day, and the first bookings of the third are removed.
    books.debit("D", 10, 2)
    books.credit("D", 10, 2)
    books.credit("E", 10, 2)
    books.debit("E", 10, 2)
    books.lose(key="icbc/D")
    second = run(books, given, 1, first)
    assert broken(second) == {}
    third = run(books, given, 2, second)
    assert broken(third) == {
        ("gapless", "ccb", None, None): (4, 2),
        ("gapless", "icbc", None, None): (4, 2),
    }


def test_a_duplicate_row_does_not_hide_a_missing_row():
    given = rules(gapless=True)
    books = Books()
    for key in ("A", "B", "C"):
        books.credit(key, 10)
        books.debit(key, 10)
    again = [row for row in books.rows if row.key == "icbc/C"]
    books.lose(key="icbc/B", bank="ccb")
    books.rows += again
    books.rows[-1] = again[-1]._replace(id=None)

    found = run(books, given)

    assert numbers_of(found) == {"ccb": (6, 4), "icbc": (6, 8)}

    # A number of the first day appears on the second.
    for key in ("D", "E"):
        books.credit(key, 10, 1)
        books.debit(key, 10, 1)
    again = books.rows[-1]._replace(bank="ccb", id=1)
    books.lose(key="icbc/D", bank="ccb", account="ccb-bob")
    books.rows.append(again)
    assert numbers_of(run(books, given, 1, found)) == {"ccb": (4, 3)}


def numbers_of(outcome):
    """Expected and found of each bank whose numbers have gaps."""
    return {place[1]: of for place, of in broken(outcome).items() if place[0] == "gapless"}


def test_rows_removed_together_fail_the_roll_forward_of_their_accounts(settled):
    books, first = settled
    for amount in (100, -100):
        books.lose(account="icbc-ann", amount=amount)
    books.lose(account="ccb-bob")
    second = run(books, rules(), 1, first)

    found = {place: item for place, item in broken(second).items() if place[2] is not None}
    assert found == {
        ("roll-forward", "ccb", "ccb-bob", "CNY"): (900, 0),
        ("roll-forward", "ccb", "ccb-bob", "USD"): (70, 0),
        ("roll-forward-rows", "ccb", "ccb-bob", None): (2, 0),
        # Counted in the currencies that lack rows.
        ("roll-forward-rows", "icbc", "icbc-ann", None): (7, 3),
    }


# Sums beyond 64 bits


def _book_twice(books, **amounts):
    for _ in range(2):
        books.book("icbc", None, "other", **amounts)


def _debit_twice(books, **_):
    for _ in range(2):
        books.debit("T1", LONG_MAX)


def _debit_many(books, **_):
    for number in range(9):
        books.debit(f"T{number}", (1 << 60) - 1)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (
            _book_twice,
            "icbc: the bookings of account ic…nn on the day, or its balance, do not fit ",
        ),
        (_debit_twice, "items of duplicate-debit, icbc/T1, icbc, ic…nn, CNY: amount is 1844"),
        (_debit_many, "totals of debit-without-message, CNY: debited is 10376293541461622775, "),
    ],
)
def test_a_sum_beyond_64_bits_is_one_clear_error(write, told):
    books = Books()
    write(books, ann=LONG_MAX, capital=-LONG_MAX)

    with pytest.raises(ReconcileRefused) as refused:
        run(books, rules())

    assert str(refused.value).startswith(told)


def test_the_largest_positive_and_negative_amounts_are_added_up():
    books = Books()
    _book_twice(books, ann=LONG_MAX, bob=-LONG_MAX)
    _book_twice(books, bob=LONG_MAX, ann=-LONG_MAX)
    books.book("icbc", "T1", "debit", ann=-LONG_MAX, clearing=LONG_MAX)

    found = run(books, rules())

    closing = {row.account: row.closing for row in collected(found.tables["balances"])}
    assert closing == {"icbc-ann": -LONG_MAX, "icbc-bob": 0, "icbc-clearing": LONG_MAX}


# Bookings without an id, or with a doubtful one


def test_bookings_without_an_id_and_two_spellings_of_an_id_are_items_of_their_own():
    books = Books()
    for amount in (100, 100, 70):
        books.book("icbc", None, "debit", ann=-amount, clearing=amount)
    books.credit(None, 30)
    books.debit("T1 ", 100)
    books.credit("t1", 100)

    found = run(books, rules())

    items = found.tables["items"].to_pylist()
    assert [(row["key"], row["amount"], row["id_doubt"], row["suggestion"]) for row in items] == [
        ("ccb/#2", 30, None, None),
        ("icbc/#1", 100, None, None),
        ("icbc/#3", 100, None, None),
        ("icbc/#5", 70, None, None),
        ("icbc/T1 ", 100, "blanks, case", "icbc/t1"),
        ("icbc/t1", 100, "blanks, case", "icbc/T1 "),
    ]
    assert broken(found) == {}
    assert {row["key"] for row in found.tables["entries"].to_pylist()} == {
        row["key"] for row in items
    }
