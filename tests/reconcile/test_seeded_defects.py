"""Every planted defect is found, nothing else is, and the amounts are right to the cent."""

from collections import defaultdict
from dataclasses import replace

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.reconcile.days import BANKS, RULES, Plan, write_day
from tests.reconcile.frames import GROUPS, TOLERANCE, collected, proved, read, reconcile
from tests.reconcile.reference import Entry, Failure, Message, Rule, Told, balances_hold, classes
from tests.reconcile.shapes import SHAPES
from tests.soak import IS_SOAK
from txmq.reconcile.classes import Class
from txmq.reconcile.explanations import Explanation
from txmq.reconcile.summary import FIGURES

PLAN = Plan(
    transfers=1_000_000 if IS_SOAK else 5_000,
    accounts=100_000 if IS_SOAK else 2_000,
    part=250_000 if IS_SOAK else 2_000,
    altered=2,
)
END_MS = PLAN.rules.day.window(PLAN.day).end_ms
AGREED = [item for item in Class if item.group == "agreed"]
SUMS = ("debited", "returned", "credited", "ordered", "at_risk")
pytestmark = pytest.mark.timeout(1800 if IS_SOAK else 180)


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    return write_day(tmp_path_factory.mktemp("seeded"), PLAN)


@pytest.fixture(scope="module")
def listed(day, tmp_path_factory):
    """A day small enough for lists, whatever the size of the main one."""
    if not IS_SOAK:
        return day
    few = replace(PLAN, transfers=20_000, accounts=2_000, part=7_000)
    return write_day(tmp_path_factory.mktemp("listed"), few)


@pytest.fixture(scope="module")
def outcome(day):
    return reconcile(read(day.folder), {}, PLAN.rules, PLAN.day, END_MS)


@pytest.fixture(scope="module")
def items(outcome):
    return collected(outcome.tables["items"])


def truth_by_key(day, *, is_agreed):
    table = day.truth()
    chosen = pc.is_in(table["class"], value_set=_array(AGREED))
    return table.filter(chosen if is_agreed else pc.invert(chosen))


def _array(values):
    import pyarrow as pa

    return pa.array([str(value) for value in values])


def rows_of(folder, source, table, type_, *bank):
    return [type_(*bank, **row) for row in pq.read_table(folder / source / table).to_pylist()]


def test_every_class_is_planted_often_enough(day):
    counted = defaultdict(int)
    for name in day.truth()["class"].to_pylist():
        counted[name] += 1

    # Those need a second day, or rules of their own: see test_classification.
    others = {Class.EXPLAINED, Class.DUPLICATE_ID, Class.RECALLED_UNRETURNED, Class.FEE_TOO_HIGH}
    assert counted.keys() == set(Class) - others
    assert min(counted.values()) >= PLAN.planted
    assert {shape.name for shape in SHAPES} == set(day.truth()["shape"].to_pylist())


def test_few_accounts_have_a_fifth_of_the_rows(day):
    counted = defaultdict(int)
    for bank in BANKS:
        for account in pq.read_table(day.folder / bank / "entries")["account"].to_pylist():
            counted[account] += 1
    most = sorted(counted.values(), reverse=True)

    assert sum(most[:24]) >= 0.2 * sum(most)


def test_the_reference_finds_what_was_planted(listed):
    folder = listed.folder
    failures = defaultdict(list)
    for row_ in rows_of(folder, "log", "failures", Failure):
        failures[row_.id].append(row_)
    offsets = pq.read_table(folder / "log" / "offsets").to_pylist()
    told = Told(
        [row for bank in BANKS for row in rows_of(folder, bank, "entries", Entry, bank)],
        rows_of(folder, "log", "messages", Message),
        failures,
        {(o["group"], o["topic"], o["queue"]): o["next_offset"] for o in offsets},
    )
    window = PLAN.rules.day.window(PLAN.day)

    found = classes(told, Rule(RULES.day.grace_ms, GROUPS, TOLERANCE), *window, END_MS)

    expected = {row["key"]: row for row in listed.truth().to_pylist()}
    assert found.keys() == expected.keys()
    for key, unit in found.items():
        sums = (unit.debited, unit.returned, unit.credited, unit.ordered, unit.amount)
        truth = expected[key]
        assert (unit.class_, *sums) == (truth["class"], *(truth[name] for name in SUMS)), truth


@pytest.mark.fault("R2")
def test_exactly_the_planted_defects_are_found_with_their_amounts(day, items):
    expected = {
        row["key"]: (row["class"], *(row[name] for name in SUMS))
        for row in truth_by_key(day, is_agreed=False).to_pylist()
    }

    found = {
        row.key: (row["class"], row.debited, row.returned, row.credited, row.ordered, row.amount)
        for row in items
    }

    missed = {key: expected[key] for key in expected.keys() - found.keys()}
    invented = {key: found[key] for key in found.keys() - expected.keys()}
    assert (missed, invented) == ({}, {})
    assert {k: (found[k], expected[k]) for k in found if found[k] != expected[k]} == {}


def test_operator_decisions_are_listed_with_reasons_even_for_agreed_transfers(day, outcome):
    window = PLAN.rules.day.window(PLAN.day)
    messages = pq.read_table(day.folder / "log" / "messages").to_pylist()
    planted = {
        message["id"]: (message["key"], message["state"], message["reason"])
        for message in messages
        if message["decided_by"] == "operator"
        and window.start_ms <= message["decided_ms"] < window.end_ms
    }

    listed = collected(outcome.tables["by_hand"])

    assert {item.id: (item.key, item.state, item.reason) for item in listed} == planted
    assert all(item.reason for item in listed)
    agreed = set(truth_by_key(day, is_agreed=True)["key"].to_pylist())
    assert agreed.intersection(item.key for item in listed)


@pytest.mark.fault("R2")
def test_all_transfers_without_a_defect_are_agreed(day, outcome):
    expected = truth_by_key(day, is_agreed=True).select(["key", "class"]).sort_by("key")

    found = outcome.tables["matches"].select(["key", "class"]).sort_by("key")

    assert found["key"].combine_chunks().equals(expected["key"].combine_chunks())
    assert found["class"].combine_chunks().equals(expected["class"].combine_chunks())


def test_the_totals_of_the_classes_add_up_to_the_ledgers(day, outcome):
    truth, totals = day.truth(), collected(outcome.tables["totals"])

    assert sum(row.transfers for row in totals) == truth.num_rows
    for kind, name in (("debit", "debited"), ("return", "returned"), ("credit", "credited")):
        booked = 0
        for bank in BANKS:
            entries = pq.read_table(day.folder / bank / "entries")
            chosen = pc.equal(entries["kind"], kind)
            booked += pc.sum(pc.abs(entries["amount"].filter(chosen))).as_py() or 0
        assert sum(row[name] for row in totals) == booked
    expected = defaultdict(lambda: (0, 0))
    for row in (
        truth.group_by("class").aggregate([("key", "count"), ("at_risk", "sum")]).to_pylist()
    ):
        expected[row["class"]] = (row["key_count"], row["at_risk_sum"])
    found = defaultdict(lambda: (0, 0))
    for row in totals:
        count, at_risk = found[row["class"]]
        found[row["class"]] = (count + row.transfers, at_risk + row.at_risk)
    assert found == expected


def test_changed_balances_are_found_and_all_other_proofs_hold(day, outcome):
    broken = [row for row in proved(outcome, PLAN.rules) if not row.holds]

    named = {(row.bank, row.account) for row in broken if row.account is not None}
    assert named == set(day.altered)
    assert {row.proof for row in broken} == {"account-table"}


def test_the_reference_finds_the_changed_balances(listed):
    for bank in BANKS:
        sums = {
            table: {
                (row["account"], row["currency"]): row[name]
                for row in pq.read_table(listed.folder / bank / table).to_pylist()
            }
            for table, name in (("opening", "amount"), ("later", "amount"), ("accounts", "balance"))
        }
        entries = rows_of(listed.folder, bank, "entries", Entry, bank)

        wrong = balances_hold(entries, **sums)

        assert {(bank, account) for account, _ in wrong} == {
            a for a in listed.altered if a[0] == bank
        }


def test_breaks_with_an_explanation_get_the_class_explained(day, items):
    breaks = [row for row in items if row.group == "break"][: PLAN.planted]
    explanations = {
        row.break_id: Explanation(
            row.break_id,
            row["class"],
            "anna",
            "the branch has called",
            1,
            figures={name: row[name] for name in FIGURES},
        )
        for row in breaks
    }

    again = reconcile(read(day.folder), explanations, PLAN.rules, PLAN.day, END_MS)

    found = {
        row.key: row for row in collected(again.tables["items"]) if row["class"] == "explained"
    }
    assert {key: row.was for key, row in found.items()} == {b.key: b["class"] for b in breaks}
    assert {row.explained_by for row in found.values()} == {"anna"}


def test_double_entry_and_clearing_proofs_hold_on_a_whole_day(tmp_path):
    plan = Plan(transfers=3_000, planted=2, accounts=300, double_entry=True)
    write_day(tmp_path, plan)

    found = reconcile(read(tmp_path), {}, plan.rules, plan.day, END_MS)

    proofs = proved(found, plan.rules)
    assert {row.proof for row in proofs} >= {"double-entry", "clearing", "conservation"}
    assert [row for row in proofs if not row.holds] == []
