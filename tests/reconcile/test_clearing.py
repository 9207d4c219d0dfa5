"""The clearing proofs of transfers over two dates, from rows to the total of each date."""

from datetime import date, timedelta

import pyarrow as pa
import pytest
from msgspec.structs import astuple

from tests.reconcile.days import Plan
from tests.reconcile.frames import session
from tests.reconcile.test_classification import order
from txmq.reconcile.arrow import arrow_schema, arrow_table
from txmq.reconcile.core import ReconciledDay
from txmq.reconcile.decisions import Decider
from txmq.reconcile.differences import carry_on
from txmq.reconcile.ledgers import Role
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.tables import BALANCES, BOOKED, MESSAGES, PROOFS

RULES = Plan(transfers=1, double_entry=True).rules
DAYS = [date(2026, 3, 10) + timedelta(days=number) for number in range(2)]
WINDOWS = [RULES.day.window(day) for day in DAYS]
ORDERS = arrow_table(MESSAGES, [astuple(order(100, at=WINDOWS[0].start_ms))])
MESSAGES_OF = {
    Role.OLD_ENTRIES: Role.OLD_MESSAGES,
    Role.OPEN_ENTRIES: Role.OPEN_MESSAGES,
}
"""The messages of transfers with these entries."""


def row(kind, amount, role="customer", day=0):
    bank = "icbc" if kind == "debit" else "ccb"
    account = f"{bank}-clearing" if role == "clearing" else "ann" if kind == "debit" else "bob"
    at = WINDOWS[day].start_ms
    return (None, "icbc/1", kind, role, account, amount, "CNY", at, at, bank)


DEBIT, DEBIT_SIDE = row("debit", -100), row("debit", 100, "clearing")
CREDIT, CREDIT_SIDE = row("credit", 100), row("credit", -100, "clearing")


def balances(rows):
    """These rows as the accounts of a day."""
    found = []
    for number, (*_, kind, role, account, amount, currency, _, _, bank) in enumerate(rows):
        moved = dict.fromkeys((c.name for c in BALANCES.columns if c.type == "long"), 0)
        moved |= {kind: amount, "moved": amount, "rows": 1, "told": None}
        place = {"bank": bank, "account": f"{account}-{number}", "role": role}
        found.append(place | {"currency": currency} | moved)
    return pa.Table.from_pylist(found, arrow_schema(BALANCES))


def proved(day, today, before=(), role=Role.OLD_ENTRIES, others=()):
    """The proofs of a day. ``others`` are bookings without a transfer."""
    evidence = {
        Role.ENTRIES: arrow_table(BOOKED, today),
        role: arrow_table(BOOKED, before),
        MESSAGES_OF[role] if day else Role.MESSAGES: ORDERS,
    }
    found = Decider(RULES, DAYS[day], WINDOWS[day].end_ms, {}, {}).decide(evidence)
    frame = session().createDataFrame
    single = frame(arrow_table(PROOFS, found.rows["proofs"]))
    accounts = {"balances": frame(balances([*today, *others]))}
    result = ReconciledDay(accounts, single, found.sums, was_closed=False, kept=())
    return proofs_of(result, RULES).toArrow()


def broken(*rows, **more):
    """The proofs of clearing that do not hold on a day, and by how much."""
    return {
        (proof["proof"], proof["account"]): proof["found"] - proof["expected"]
        for proof in proved(*rows, **more).to_pylist()
        if proof["proof"].startswith("clearing") and not proof["holds"]
    }


WHOLE = [DEBIT, DEBIT_SIDE, CREDIT, CREDIT_SIDE]


@pytest.mark.parametrize("late", [DEBIT_SIDE, CREDIT_SIDE])
@pytest.mark.parametrize("role", MESSAGES_OF)
def test_a_side_booked_a_day_later_corrects_the_difference_of_a_transfer(late, role):
    """Whether the day before has agreed it, or has left it open."""
    first = [side for side in WHOLE if side is not late]
    off = -late[5]
    assert broken(0, first) == {
        ("clearing", "icbc/1"): off, ("clearing", None): off
    }  # fmt: skip

    assert broken(1, [(*late[:7], *[WINDOWS[1].start_ms] * 2, late[9])], first, role) == {}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_difference_is_corrected_whether_or_not_the_earlier_rows_are_known(is_known):
    """Those of an agreed transfer are known for day.history dates."""
    first, second = [DEBIT, DEBIT_SIDE, CREDIT], row("credit", -100, "clearing", 1)
    left = carry_on(proved(0, first), (), RULES, DAYS[0])
    assert {proof["account"] for proof in left.to_pylist() if proof["first_seen"]} == {"icbc/1"}

    proofs = proved(1, [second], first if is_known else ())

    found = carry_on(proofs, [left], RULES, DAYS[1]).to_pylist()
    assert [proof for proof in found if not proof["holds"]] == []


def test_a_partial_correction_leaves_the_rest_of_the_difference():
    first, second = [DEBIT, DEBIT_SIDE, CREDIT], row("credit", -60, "clearing", 1)
    assert broken(1, [second], first) == {
        ("clearing", "icbc/1"): 40, ("clearing", None): 40
    }  # fmt: skip


def test_a_transfer_booked_over_two_dates_is_off_on_neither():
    second = [row("credit", 100, day=1), row("credit", -100, "clearing", 1)]
    assert broken(0, [DEBIT, DEBIT_SIDE]) == {}
    assert broken(1, second, [DEBIT, DEBIT_SIDE], Role.OPEN_ENTRIES) == {}
    assert broken(1, second[:1], [DEBIT, DEBIT_SIDE], Role.OPEN_ENTRIES) == {
        ("clearing", "icbc/1"): 100, ("clearing", None): 100
    }  # fmt: skip


def test_money_taken_from_clearing_is_not_hidden_by_a_transfer():
    """The clearing accounts hold what they should, because the two add up to zero."""
    teller = row("other", -100, "clearing")
    first = [DEBIT, DEBIT_SIDE, CREDIT]
    assert broken(0, first, others=[teller]) == {
        ("clearing", "icbc/1"): 100, ("clearing", None): 100, ("clearing-total", None): -100
    }  # fmt: skip
