"""Differences of proofs from date to date: each stays until it is corrected."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reconcile import breaks
from tests.reconcile.test_balance_proofs import DAYS, WINDOWS, Books, proofs_of, rules, run
from txmq.reconcile.arrow import arrow_table
from txmq.reconcile.differences import carry_on
from txmq.reconcile.rules import AccountColumns, BankFiles
from txmq.reconcile.tables import PROOFS

pytestmark = pytest.mark.timeout(600)  # Some of them start Spark.

RULES = breaks.rules()
FRIDAY, SATURDAY, SUNDAY, MONDAY = (date(2026, 11, day) for day in (20, 21, 22, 23))
OF_SUMS = [
    ("clearing-total", None, None, "CNY"),
    ("conservation", None, None, "CNY"),
    ("gapless", "icbc", None, None),
]
OF_A_DATE = [
    *OF_SUMS,
    ("roll-forward", "icbc", "ann", "CNY"),
    ("roll-forward-rows", "icbc", "ann", None),
    ("double-entry", "icbc", "other", "CNY"),
]
CLEARING = "clearing", None, "icbc/1", "CNY"
TABLE = "account-table", "icbc", "ann", "CNY"
UNREAD = "readable-rows", "icbc", "entries, icbc.csv line 3: amount is 'x'", None


def row(place, off, first_seen=None):
    """A row as the proofs of a day have it."""
    return (*place, 100, 100 + off, not off, "", first_seen)


def whole(place, *offs):
    """The proof as a whole, if it has single accounts or transfers."""
    proof, bank, account, currency = place
    return [row((proof, bank, None, currency), sum(offs))] if account else []


def night(day, place, *offs, before=(), given=RULES):
    """The proofs of a day that finds these differences in a place."""
    rows = [row(place, off) for off in offs] or whole(place, 0) or [row(place, 0)]
    if place[2] and offs:
        rows += whole(place, *offs)
    return carry_on(arrow_table(PROOFS, rows), before, given, day)


def left(proofs):
    """The differences of a day, with their dates."""
    return [
        (proof["found"] - proof["expected"], proof["first_seen"])
        for proof in proofs.to_pylist()
        if proof["first_seen"]
    ]


def wholes(proofs):
    """The proofs as a whole: by how much each is off, and whether it holds."""
    return [
        (proof["found"] - proof["expected"], proof["holds"])
        for proof in proofs.to_pylist()
        if not proof["first_seen"]
    ]


# Proofs of the bookings of one date


@pytest.mark.parametrize("place", OF_A_DATE)
def test_a_difference_stays_until_its_opposite_corrects_it(place):
    first = night(FRIDAY, place, -7)
    second = night(SATURDAY, place, before=[first])
    again = night(SATURDAY, place, before=[first])
    third = night(SUNDAY, place, 7, before=[second])

    assert left(first) == left(second) == [(-7, "2026-11-20")]
    assert again == second, "a rerun does not count the day before twice"
    assert (left(third), wholes(third)) == ([], [(0, True)])
    assert left(night(MONDAY, place, -7, before=[third])) == [(-7, "2026-11-23")]


@pytest.mark.parametrize("place", OF_A_DATE)
def test_each_date_has_its_own_difference(place):
    first = night(FRIDAY, place, -7)
    second = night(SATURDAY, place, -5, before=[first])
    third = night(SUNDAY, place, -2, before=[second])

    assert left(second) == [(-7, "2026-11-20"), (-5, "2026-11-21")]
    assert left(night(MONDAY, place, 5, before=[third])) == [(-7, "2026-11-20"), (-2, "2026-11-22")]
    assert left(night(MONDAY, place, 14, before=[third])) == []


@pytest.mark.parametrize("place", OF_A_DATE[3:])
def test_the_total_of_a_proof_includes_the_differences_of_earlier_dates(place):
    second = night(SATURDAY, place, -5, before=[night(FRIDAY, place, -7)])

    assert wholes(second) == [(-12, False)]
    assert wholes(night(SUNDAY, place, before=[second])) == [(-12, False)]
    gone = carry_on(arrow_table(PROOFS, []), [second], RULES, SUNDAY)
    assert wholes(gone) == [(-12, False)], "also if the books do not have it any more"


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.sampled_from(OF_A_DATE))
def test_the_differences_of_all_dates_add_up(offs, place):
    """However they are corrected: no amount is lost, and none counts twice."""
    before, by_date = [], {}
    for number, off in enumerate(offs):
        day = FRIDAY + timedelta(days=number)
        by_date[day.isoformat()] = off
        before = [night(day, place, *filter(None, [off]), before=before)]
        found = left(before[0])
        assert sum(difference for difference, _ in found) == sum(offs[: number + 1])
        assert all(by_date[first_seen] == difference for difference, first_seen in found)


def test_nothing_is_carried_from_a_missing_result_or_one_of_an_older_version():
    older = night(FRIDAY, OF_SUMS[0], -7).drop_columns(["first_seen"])

    for before in ((), [older]):
        assert left(night(SATURDAY, OF_SUMS[0], before=before)) == []


# Proofs that compare everything


def test_the_account_table_is_compared_afresh_each_night():
    first = night(FRIDAY, TABLE, 500)
    second = night(SATURDAY, TABLE, 400, before=[first])

    assert left(second) == [(400, "2026-11-20")]
    assert wholes(second) == [(400, False)]
    assert left(night(SUNDAY, TABLE, before=[second])) == []


def of_files(**more):
    (bank,) = RULES.bank
    files = BankFiles("in/{date}.csv", "csv", balances="in/balances-{date}.csv")
    accounts = AccountColumns("accounts", "account", "currency", "balance", **more)
    return replace(RULES, bank=(replace(bank, files=files, accounts=accounts),))


def test_a_difference_stays_if_files_of_a_later_date_cannot_show_it():
    for place, files in ((UNREAD, of_files()), (TABLE, of_files(opening="opening"))):
        first = night(FRIDAY, place, -1, given=files)
        assert left(night(MONDAY, place, before=[first], given=files)) == [(-1, "2026-11-20")]
    assert left(night(MONDAY, UNREAD, before=[night(FRIDAY, UNREAD, -1)])) == []


def test_a_weekend_without_balances_corrects_no_difference():
    files = of_files()
    first = night(FRIDAY, TABLE, 500, given=files)
    weekend = night(SUNDAY, TABLE, before=[first], given=files)

    assert left(weekend) == [(500, "2026-11-20")]
    assert left(night(MONDAY, TABLE, before=[weekend], given=files)) == []


# Proofs of transfers


def test_a_transfer_without_new_bookings_keeps_its_difference():
    first = carry_on(arrow_table(PROOFS, [row(CLEARING, 100, "2026-11-20")]), (), RULES, FRIDAY)
    second = night(SATURDAY, CLEARING, before=[first])

    assert left(second) == [(100, "2026-11-20")]
    # Its rows of all dates are known again.
    part = carry_on(arrow_table(PROOFS, [row(CLEARING, 40)]), [second], RULES, SUNDAY)
    assert left(part) == [(40, "2026-11-20")]
    held = carry_on(arrow_table(PROOFS, [row(CLEARING, 0)]), [part], RULES, MONDAY)
    assert (left(held), wholes(held)) == ([], [(0, True)])
    # Only the rows of the day are known: day.history does not reach that far back.
    late = row(CLEARING, -100, "2026-11-23")
    assert left(carry_on(arrow_table(PROOFS, [late]), [second], RULES, MONDAY)) == []


def test_bookings_of_two_kinds_on_one_date_do_not_offset_each_other():
    place = "double-entry", "ccb", "icbc/1", "CNY"
    rows = [row(place, off, "2026-11-20") for off in (-500, 500)]
    first = carry_on(arrow_table(PROOFS, rows), (), RULES, FRIDAY)

    kept = night(SATURDAY, place, before=[first])

    assert sorted(left(kept)) == [(-500, "2026-11-20"), (500, "2026-11-20")]
    assert wholes(kept) == [(0, False)]


# From the books


def nights(rows_of_each):
    """The differences of each date, given the rows of the books on that date."""
    books, given, outcome, proofs = Books(), rules(gapless=True), None, []
    for day, books.rows in enumerate(rows_of_each):
        outcome = run(books, given, day, outcome)
        today = arrow_table(PROOFS, [tuple(proof.values()) for proof in proofs_of(outcome)])
        proofs = [carry_on(today, proofs, given, DAYS[day])]
        yield [
            (proof["proof"], proof["found"] - proof["expected"], proof["first_seen"])
            for proof in proofs[0].to_pylist()
            if proof["first_seen"]
        ]


def test_a_lost_row_fails_each_night_until_it_is_back():
    """CCB loses a row of an earlier date, and ICBC a row on the date of its booking."""
    books = Books()
    for day in (0, 1):
        books.book("ccb", None, "other", day, capital=-10, bob=10)
    for _ in range(3):
        books.book("icbc", None, "other", capital=-10, ann=10)

    def found(night, *lost):
        return [
            entry
            for entry in books.rows
            if entry.recorded_ms < WINDOWS[night].end_ms and (entry.bank, entry.id) not in lost
        ]

    lost = ("ccb", 2), ("icbc", 3), ("icbc", 4)
    late = [
        entry._replace(recorded_ms=WINDOWS[3].start_ms)
        for entry in books.rows
        if (entry.bank, entry.id) in lost[1:]
    ]
    first, *between, last = nights(
        [
            found(0, *lost[1:]),
            found(1, *lost),
            found(2, *lost),
            [*found(3, *lost[1:]), *late],
        ]
    )

    missing = ("gapless", -2, "2026-11-20")
    removed = [("roll-forward", -10, "2026-11-21"), ("roll-forward-rows", -1, "2026-11-21")]
    assert first == [missing]
    assert between == [[missing, *removed]] * 2
    assert last == []
