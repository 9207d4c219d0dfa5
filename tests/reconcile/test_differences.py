"""What explains the differences of proofs, and the verdict on what is left."""

from datetime import date

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from tests.reconcile import breaks
from txmq.errors import UsageError
from txmq.reconcile.arrow import arrow_schema
from txmq.reconcile.differences import differences_in
from txmq.reconcile.explanations import (
    BreakNote,
    Difference,
    Explanation,
    Explanations,
    ProofExplanation,
)
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.rules import Limits, Money
from txmq.reconcile.tables import ITEMS, PROOFS
from txmq.reconcile.verdict import Findings, judge

DATES = "2026-03-31", "2026-04-01", "2026-04-02"
OPEN = breaks.rules(money={"CNY": Money(materiality=50)})
SCHEMAS = {"proofs": PROOFS, "items": ITEMS}


def proof(name, off, account=None, bank=None, currency="CNY", since=DATES[0]):
    is_difference = off and (account or name in {"conservation", "clearing-total", "gapless"})
    return {
        "proof": name, "bank": bank, "account": account, "currency": currency, "expected": 1_000,
        "found": 1_000 + off, "holds": off == 0, "about": f"{name} is equal",
        "first_seen": since if is_difference else None,
    }  # fmt: skip


def item(key, class_="credit-without-message", **more):
    life = {
        "break_id": breaks.break_id(key), "was": None, "status": "new", "first_seen": DATES[0],
        "age_days": 0, "bucket": "0", "history": "", "explained_by": None, "explanation": None,
    }  # fmt: skip
    return breaks.transfer(key, class_) | life | more


AGREED = {"group": "agreed", "amount": 0}


def explained(row, by="Li"):
    more = {"was": row["class"], "class": "explained", "group": "open", "status": "explained"}
    return row | more | {"explained_by": by, "explanation": "a fee"}


class Nights:
    """The tables of some nights, as runs write them, and what people say about them."""

    def __init__(self, home, rules=OPEN):
        self.home, self.rules = home, rules
        self.people = Explanations(home)

    def judge(self, night, proofs, items=(), totals_of=None):
        """Write the tables of a night and judge them."""
        window = self.rules.day.window(self.day(night))
        manifest = Manifest(
            *("e", self.rules.name, "1", "d", DATES[night], window.start_ms, window.end_ms),
            *(window.end_ms, ()),
        )
        run_id = f"{night}" * 16
        for name, rows in (("proofs", proofs), ("items", items)):
            place = self.home / "results" / name / f"business_date={DATES[night]}/run={run_id}"
            place.mkdir(parents=True, exist_ok=True)
            written = pa.Table.from_pylist(list(rows), arrow_schema(SCHEMAS[name]))
            parquet.write_table(written, place / "part-00000.parquet", row_group_size=2)
        found = Findings(
            totals=totals(totals_of or items),
            proofs=pa.Table.from_pylist(list(proofs), arrow_schema(SCHEMAS["proofs"])),
            explaining=items,
            groups=[row | {"count": 1} for row in items],
            items=items,
            decisions=(),
            closed=0,
            decided_by_hand=0,
        )
        result = judge(found, self.rules, manifest, {}, self.people)
        self.run = replace(
            breaks.run(self.day(night), run_id), result=result, result_digest=result.digest
        )
        return result

    @staticmethod
    def day(night):
        return date.fromisoformat(DATES[night])

    def differences(self, **how):
        """The differences of the last judged night that nothing explains."""
        return msgspec.convert(differences_in(self.home, self.run, **how), list[Difference])

    def explain(self, *items):
        differences = self.differences(is_complete=True)
        self.people.add([Explanation.of(item, "Li", "a fee", 1, differences) for item in items])

    def explain_proofs(self, last):
        said = "Wu", "edited by hand", 1, self.run.result.business_date, last
        self.people.add([ProofExplanation.of(one, *said) for one in self.differences()])


def totals(items):
    return [
        {
            "class": row["class"], "group": row["group"], "currency": "CNY", "transfers": 1,
            "debited": 0, "returned": 0, "credited": 0, "ordered": 0,
            "at_risk": row["amount"] if row["group"] == "break" else 0,
        }
        for row in items
    ]  # fmt: skip


@pytest.fixture
def nights(tmp_path):
    return Nights(tmp_path)


def shares(result, name, account=None):
    (found,) = (proof for proof in result.proofs if (proof.proof, proof.account) == (name, account))
    return found.difference, found.by_items, found.by_person, found.rest, found.is_open


# Breaks explain the proofs of their transfers


def one_sided(off=300):
    """A credit that was booked by hand, with one side."""
    return [
        *(proof("clearing", off, "icbc/1"), proof("clearing", off)),
        *(proof("double-entry", off, "icbc/1", "ccb"), proof("double-entry", off, None, "ccb")),
        *(proof("clearing-total", 0), proof("conservation", 0)),
    ]


def test_items_of_earlier_days_do_not_count_in_the_match_rate(nights):
    carried = item("icbc/1", age_days=1)
    own, agreed = item("icbc/2", first_seen=DATES[1]), item("icbc/3", "matched")

    result = nights.judge(1, [], [carried, own], totals_of=[carried, own, agreed | AGREED])

    assert (result.carried, result.own_transfers, result.transfers) == (1, 2, 3)
    assert result.match_rate == 0.5
    alone = nights.judge(1, [], [carried])
    assert (alone.own_transfers, alone.past.transfers, alone.match_rate) == (0, 0, 1)


def test_each_reason_of_the_verdict_points_to_its_break_or_proof(tmp_path):
    strict = Limits(breaks=1, age_days=2)
    nights = Nights(tmp_path, replace(OPEN, limits=strict))
    old, great = item("icbc/1", age_days=3, amount=60), item("icbc/2", amount=90)

    result = nights.judge(0, [proof("clearing-total", 300)], [old, great])

    assert result.why_at == (
        "evidence", f"break-{old['break_id']}", f"break-{great['break_id']}",
        "proof-clearing-total-CNY",
    )  # fmt: skip
    assert [proof.place for proof in result.proofs if proof.is_open] == [result.why_at[-1]]


def test_an_explained_break_explains_the_differences_of_its_transfer(nights):
    broken = nights.judge(0, one_sided(), [item("icbc/1")])
    assert (broken.verdict, broken.broken_proofs) == ("over limits", 2)
    assert "the proof clearing does not hold: it is off by 3.00 CNY" in broken.why

    nights.explain(item("icbc/1"))
    known = explained(item("icbc/1"))
    cleared = nights.judge(0, one_sided(), [known])

    assert (cleared.verdict, cleared.why, cleared.broken_proofs) == ("clean", (), 0)
    for name in ("clearing", "double-entry"):
        for account in ("icbc/1", None):
            assert shares(cleared, name, account) == (300, 300, 0, 0, False)
    assert nights.differences() == []
    assert nights.judge(1, one_sided(), [known]).verdict == "clean"


def test_an_explained_break_does_not_cover_a_clearing_row_booked_later(nights):
    """The figures of a break have no clearing rows: one that is booked later shows only here."""
    nights.judge(0, one_sided(), [item("icbc/1")])
    nights.explain(item("icbc/1"))

    found = nights.judge(1, one_sided(off=301), [explained(item("icbc/1"))])

    assert found.broken_proofs == 2
    assert shares(found, "clearing", "icbc/1") == (301, 0, 0, 301, True)


def test_an_explanation_holds_only_while_both_differences_are_unchanged(nights):
    def rows(*offs):
        return [proof("double-entry", off, "icbc/1", "ccb") for off in offs]

    nights.judge(0, rows(-500, 500), [item("icbc/1")])
    nights.explain(item("icbc/1"))

    for offs, count in (((500, -500), 0), ((-500, 501), 2), ((-500,), 1)):
        found = nights.judge(0, rows(*offs), [explained(item("icbc/1"))])
        assert found.broken_proofs == count
        assert bool(nights.differences()) is (count > 0)


def test_an_open_break_or_another_transfer_explains_no_difference(nights):
    others = [
        proof("clearing", 5, "icbc/2"), proof("account-table", 300, "bob", "ccb"),
        proof("account-table", 300, None, "ccb"), proof("roll-forward", 300, "icbc/1", "ccb"),
    ]  # fmt: skip
    nights.judge(0, one_sided() + others, [item("icbc/1")])
    assert len(nights.differences()) == 5
    nights.explain(item("icbc/1"))

    nights.judge(0, one_sided() + others, [explained(item("icbc/1"))])

    left = {difference.proof for difference in nights.differences()}
    assert left == {"clearing", "account-table", "roll-forward"}


@pytest.mark.parametrize(
    ("off", "debits", "is_open"),
    [(-88, 1, False), (-87, 1, True), (88, 1, True), (88, 0, False), (-88, 0, True)],
)
def test_a_transfer_in_flight_explains_its_missing_side(nights, off, debits, is_open):
    """And not a side that is booked twice."""
    transfer = item("icbc/1", "in-flight", amount=88, debits=debits)
    found = nights.judge(0, [proof("clearing", off, "icbc/1"), proof("clearing", off)], [transfer])

    assert (found.broken_proofs > 0) is is_open


# People explain the others


EDITED = [
    proof("account-table", 5_000, "6222020200011112222", "icbc"),
    *(proof("account-table", 5_000, None, "icbc"), proof("conservation", -7)),
    *(proof("double-entry", 9, "other", "icbc"), proof("double-entry", 9, None, "icbc")),
]


def test_an_explanation_of_a_proof_holds_until_the_amount_changes_or_it_expires(nights):
    assert nights.judge(0, EDITED).broken_proofs == 3
    before = nights.people.digest
    nights.explain_proofs(DATES[1])
    assert nights.people.digest != before

    cleared = nights.judge(0, EDITED)
    assert (cleared.verdict, cleared.broken_proofs) == ("clean", 0)
    assert shares(cleared, "account-table", "62…2222") == (5_000, 0, 5_000, 0, False)
    (shown,) = (proof for proof in cleared.proofs if proof.account == "62…2222")
    assert (shown.explained_by, shown.explanation, shown.until) == (
        "Wu", "edited by hand", DATES[1],
    )  # fmt: skip

    assert nights.judge(1, EDITED).verdict == "clean"
    other = [proof("account-table", 5_001, "6222020200011112222", "icbc")]
    assert nights.judge(1, other).broken_proofs == 1
    assert nights.judge(2, EDITED).broken_proofs == 3, "the date is over"


def test_an_explanation_without_a_last_date_does_not_expire(nights):
    nights.judge(0, EDITED)
    nights.explain_proofs(None)

    found = nights.judge(2, EDITED)

    assert (found.verdict, found.broken_proofs) == ("clean", 0)
    (shown,) = (proof for proof in found.proofs if proof.proof == "conservation")
    assert (shown.first_seen, shown.explained_by, shown.until) == (DATES[0], "Wu", None)


def test_the_same_amount_on_another_date_is_a_separate_difference(nights):
    nights.judge(0, EDITED)
    nights.explain_proofs(None)

    rows = [*EDITED, proof("conservation", -7, since=DATES[1])]
    found = nights.judge(1, rows)

    (left,) = (row for row in found.proofs if row.is_open)
    assert (left.proof, left.first_seen) == ("conservation", DATES[1])
    (difference,) = nights.differences()
    assert (difference.first_seen, difference.amounts) == (DATES[1], (-7,))
    nights.explain_proofs(None)
    assert nights.judge(1, rows).verdict == "clean"
    assert nights.judge(0, EDITED).verdict == "clean", "the first day is still explained"


def test_a_withdrawn_explanation_of_a_proof_has_no_effect(nights):
    nights.judge(0, EDITED)
    nights.explain_proofs(DATES[2])
    (explanation, *_) = nights.people.proofs_in_force()

    nights.people.withdraw(explanation.difference.id, "Wu", "no", 2)

    assert nights.judge(0, EDITED).broken_proofs == 1
    with pytest.raises(UsageError, match="has no explanation"):
        nights.people.withdraw(explanation.difference.id, "Wu", "no", 3)


def test_an_explanation_cannot_end_before_it_begins(nights):
    nights.judge(1, EDITED)
    with pytest.raises(UsageError, match="--until 2026-03-31 is before 2026-04-01"):
        nights.explain_proofs(DATES[0])


def test_an_unexplained_difference_below_the_limits_gives_within_limits(nights):
    found = nights.judge(0, [*EDITED, proof("gapless", 0, None, "icbc", None)][2:3])

    assert (found.verdict, found.why) == (
        "within limits", ("the proof conservation does not hold, by an amount within the limits",),
    )  # fmt: skip


def test_unexplained_differences_are_shown_first(tmp_path):
    limits = replace(OPEN.limits, evidence=1)
    nights = Nights(tmp_path, replace(OPEN, limits=limits))
    nights.judge(0, EDITED[:2])
    nights.explain_proofs(DATES[0])

    small = proof("account-table", 60, "6222020200011113333", "icbc")
    both = proof("account-table", 5_060, None, "icbc")
    found = nights.judge(0, [EDITED[0], small, both])

    assert [row.account for row in found.proofs if row.account] == ["62…3333"]
    assert found.why == ("the proof account-table does not hold: it is off by 0.60 CNY",)


# Notes


def test_notes_keep_the_latest_owner_and_all_comments(tmp_path):
    people = Explanations(tmp_path)
    people.add([BreakNote("a", "Li", 1, "Wu", "", "2026-04-01", "asked the bank")])
    people.add([BreakNote("a", "Wu", 2, comment="no answer"), BreakNote("b", "Wu", 2, "Wu")])
    people.add([BreakNote("a", "Wu", 3, due="2026-04-09")])

    notes = people.notes()["a"]

    assert (notes.owner, notes.due) == ("Wu", "2026-04-09")
    assert [note.comment for note in notes.comments] == ["asked the bank", "no answer"]
    assert people.digest == "", "no result depends on notes"
