"""Two people sign the same result, or it is not signed."""

import json
from datetime import date, timedelta

import pytest
from msgspec.structs import replace

from tests.reconcile import breaks
from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.explanations import Explanation, Explanations
from txmq.reconcile.results import Results
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.summary import FIGURES

DAY = date(2026, 11, 20)


def item(letter, class_, **more):
    """A break, as results have it."""
    return breaks.transfer("icbc/1", class_) | {"break_id": letter * 16, "was": None} | more


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


@pytest.fixture
def explanations(tmp_path):
    return Explanations(tmp_path)


def explained(letter, class_="parked", by="Ann", reason="known", at_ms=1, **more):
    return [Explanation.of(item(letter, class_, **more), by, reason, at_ms)]


def test_one_person_prepares_and_another_reviews(results):
    run = breaks.run(DAY)
    assert results.signature_state(run) == "unsigned"

    prepared = results.sign("preparer", run, " Ann  Li ", 5, "all explained")
    assert results.signature_state(run) == "prepared"
    assert (prepared.preparer, prepared.is_complete) == ("Ann Li", False)

    signed = results.sign("reviewer", run, "Bo", 7)
    assert results.signature_state(run) == "signed"
    assert signed.is_complete
    assert (signed.preparer, signed.prepared_ms, signed.prepared_note) == (
        "Ann Li", 5, "all explained",
    )  # fmt: skip
    assert (signed.reviewer, signed.reviewed_ms) == ("Bo", 7)
    assert signed.result_digest == run.result_digest


@pytest.mark.parametrize("name", ["ann li", "  ANN LI ", "Ann\tLi", "Ａnn Li"])
def test_nobody_reviews_their_own_work(results, name):
    run = breaks.run(DAY)
    results.sign("preparer", run, "Ann Li", 5)

    with pytest.raises(UsageError, match="another person must review it"):
        results.sign("reviewer", run, name, 6)
    assert results.signature_state(run) == "prepared"


def test_different_names_are_different_people(results):
    run = breaks.run(DAY)
    results.sign("preparer", run, "Ann Li", 5)
    assert results.sign("reviewer", run, "Anna Li", 6).is_complete


@pytest.mark.parametrize(
    ("role", "name", "is_final", "told"),
    [
        ("preparer", "Ann", False, "2026-11-20 was not over"),
        ("reviewer", "Bo", True, "is not prepared yet"),
        ("preparer", "", True, "is missing: give it with --by"),
        ("preparer", "  ", True, "is missing: give it with --by"),
    ],
    ids=["before the day is over", "before a preparer", "without a name", "with a blank name"],
)
def test_a_signature_is_refused(results, role, name, is_final, told):
    with pytest.raises(UsageError, match=told):
        results.sign(role, breaks.run(DAY, is_final=is_final), name, 5)


def test_a_result_is_prepared_and_reviewed_once(results):
    run = breaks.run(DAY)
    results.sign("preparer", run, "Ann", 5)
    with pytest.raises(UsageError, match="Ann has prepared this result: another person must"):
        results.sign("preparer", run, "Bo", 6)

    results.sign("reviewer", run, "Bo", 7)
    for role in ("reviewer", "preparer"):
        with pytest.raises(UsageError, match="Ann and Bo have signed this result already"):
            results.sign(role, run, "Cy", 8)


def test_a_result_with_breaks_is_signed_only_with_a_reason(results):
    run = breaks.run(DAY, parked=2)
    for role, name in (("preparer", "Ann"), ("reviewer", "Bo")):
        with pytest.raises(UsageError, match="has 2 breaks: .* sign with --despite REASON"):
            results.sign(role, run, name, 5, despite=" ")
        signed = results.sign(role, run, name, 5, despite=f"{name} knows them")

    assert (signed.prepared_despite, signed.reviewed_despite) == ("Ann knows them", "Bo knows them")
    off = replace(run.result, totals=(), broken_proofs=1)
    assert off.unsolved == "1 failed proof"
    with pytest.raises(UsageError, match="no breaks and no failed proofs: omit --despite"):
        results.sign("preparer", breaks.run(DAY), "Ann", 5, despite="so")


@pytest.mark.parametrize("is_reviewed", [False, True])
def test_another_result_invalidates_what_was_signed(results, is_reviewed):
    first, second = breaks.run(DAY), breaks.run(DAY, "b" * 16, parked=1)
    results.sign("preparer", first, "Ann", 5)
    if is_reviewed:
        results.sign("reviewer", first, "Bo", 6)

    assert results.signature_state(second) == "invalidated"
    assert results.with_sign_off(second).sign_off.result_digest == first.result_digest
    with pytest.raises(UsageError, match="has a new result: a preparer must sign"):
        results.sign("reviewer", second, "Bo", 7)

    results.sign("preparer", second, "Bo", 8, despite="known")
    results.sign("reviewer", second, "Ann", 9, despite="known")
    assert results.signature_state(second) == "signed"
    assert results.signature_state(first) == ("signed" if is_reviewed else "prepared")


def test_a_signature_covers_the_same_result_of_another_run(results):
    first, again = breaks.run(DAY), breaks.run(DAY, "b" * 16)
    results.sign("preparer", first, "Ann", 5)
    results.sign("reviewer", first, "Bo", 6)

    assert results.signature_state(again) == "signed"
    held = results.signatures(DAY.isoformat())
    assert [signature.run_id for signature in held] == [first.run_id] * 2


def days(results, *parked):
    """Publish consecutive days, each continued from the one before."""
    previous, made = None, []
    for ago, count in enumerate(parked):
        run = breaks.run(DAY + timedelta(days=ago), parked=count)
        made.append(replace(run, previous_digest=previous))
        results.publish(made[-1], {})
        previous = run.result_digest
    return made


def not_from(day, before, last):
    return (
        f"2026-11-{day} was not made from the result of 2026-11-{before} that is in force: run it "
        f"again, and all after it, with --from 2026-11-{day} --to 2026-11-{last}"
    )


def test_a_signature_holds_while_the_previous_result_is_unchanged(results):
    first, second, third = days(results, 0, 0, 0)
    results.sign("preparer", second, "Ann", 5)
    results.sign("reviewer", second, "Bo", 6)
    results.sign("preparer", third, "Ann", 7)

    results.publish(breaks.run(DAY, "b" * 16), {})  # The result is the same.
    assert [results.signature_state(value) for value in (second, third)] == ["signed", "prepared"]
    results.publish(breaks.run(DAY, "b" * 16, parked=1), {})

    assert [results.signature_state(value) for value in (second, third)] == ["invalidated"] * 2
    assert results.signature_state(first) == "unsigned"
    with pytest.raises(UsageError) as refused:
        results.sign("reviewer", third, "Bo", 8)
    assert str(refused.value) == not_from(21, 20, 22)
    again = replace(second, previous_digest="of that one")
    with pytest.raises(UsageError) as refused:
        results.sign("preparer", again, "Cy", 9)
    assert str(refused.value) == not_from(21, 20, 21)

    results.publish(first, {})
    assert [results.signature_state(value) for value in (second, third)] == ["signed", "prepared"]


def test_the_first_outdated_day_is_named(results):
    *_, last = days(results, 0, 0, 0, 0)
    assert results.why_outdated(last) is None
    for parked, day in ((1, DAY + timedelta(days=2)), (2, DAY)):
        results.publish(breaks.run(day, parked=parked), {})

    assert results.why_outdated(last) == not_from(21, 20, 23)


def test_a_day_after_a_gap_does_not_depend_on_an_earlier_result(results):
    days(results, 0)
    begun = breaks.run(DAY + timedelta(days=9))
    later = replace(begun.result, start_ms=9, end_ms=10)
    begun = replace(begun, result=later, result_digest=later.digest)

    assert results.why_outdated(begun) is None
    at_once = breaks.run(DAY + timedelta(days=1))
    assert results.why_outdated(at_once) == not_from(21, 20, 21)


def test_an_edited_result_cannot_be_signed(results):
    run = breaks.run(DAY, parked=1)
    nicer = replace(run.result, verdict="clean")

    with pytest.raises(UsageError, match="changed since"):
        results.sign("preparer", replace(run, result=nicer), "Ann", 5)


def test_every_signature_stays_in_the_file(results, tmp_path):
    for parked, at in ((1, 1), (2, 2), (1, 3)):
        run = breaks.run(DAY, parked=parked)
        role, by = ("preparer", "Ann")
        if results.signature_state(run) == "prepared":
            role, by = ("reviewer", "Bo")
        results.sign(role, run, by, at, despite="known")

    kept = json.loads((tmp_path / "runs" / "2026-11-20" / "signoffs.json").read_text())
    assert [(row["role"], row["at_ms"]) for row in kept] == [
        ("preparer", 1), ("preparer", 2), ("reviewer", 3),
    ]  # fmt: skip


def test_an_invalid_signature_file_is_refused(results, tmp_path):
    path = tmp_path / "runs/2026-11-20/signoffs.json"
    path.parent.mkdir(parents=True)
    path.write_text("[{}]")

    with pytest.raises(ReconcileRefused, match=r"signoffs\.json is not a file of signatures"):
        results.signature_state(breaks.run(DAY))


def test_two_people_cannot_write_at_the_same_time(results, explanations, tmp_path):
    with LocalFolder(tmp_path).lock_signatures():
        with pytest.raises(ReconcileRefused, match="try again"):
            results.sign("preparer", breaks.run(DAY), "Ann", 5)
        with pytest.raises(ReconcileRefused, match="try again"):
            explanations.add(explained("0"))

    results.sign("preparer", breaks.run(DAY), "Ann", 5)


def test_the_last_explanation_of_a_break_holds_until_it_is_withdrawn(explanations, tmp_path):
    assert (explanations.in_force(), explanations.digest) == ([], "")

    explanations.add(explained("b", "parked", "Ann", "the service was down", 1))
    explanations.add(explained("a", "double-credit", "Ann", "a fee", 2))
    explanations.add(explained("b", "dead-letter", " Bo ", "a new\nreason", 3))

    held = explanations.in_force()
    assert [(said.break_id, said.class_, said.by, said.reason) for said in held] == [
        ("a" * 16, "double-credit", "Ann", "a fee"),
        ("b" * 16, "dead-letter", "Bo", "a new\nreason"),
    ]
    for explanation in held:
        known = breaks.transfer("icbc/1", explanation.class_)
        assert explanation.figures == {figure: known[figure] for figure in FIGURES}

    explanations.withdraw("a" * 16, "Cy", "it was none", 4)
    assert [value.break_id for value in explanations.in_force()] == ["b" * 16]
    with pytest.raises(UsageError, match="has no explanation"):
        explanations.withdraw("a" * 16, "Cy", "again", 5)
    kept = map(json.loads, (tmp_path / "explanations.jsonl").read_text().splitlines())
    assert [(line["at_ms"], line["is_withdrawn"]) for line in kept] == [
        (1, False), (2, False), (3, False), (4, True),
    ]  # fmt: skip


def test_the_digest_of_explanations_covers_those_in_force(explanations):
    explanations.add(explained("a"))
    one = explanations.digest
    explanations.add(explained("b", at_ms=2))
    both = explanations.digest
    explanations.withdraw("b" * 16, "Ann", "not known", 3)

    assert one != both
    assert explanations.digest == one

    explanations.add(explained("a", at_ms=4, ordered=7))
    assert explanations.digest not in {one, both}


@pytest.mark.parametrize(("by", "reason"), [(" ", "known"), ("Ann", "\n")])
def test_an_explanation_needs_a_name_and_a_reason(explanations, by, reason):
    with pytest.raises(UsageError, match="needs a name and a reason"):
        explanations.add(explained("a", by=by, reason=reason))


def test_an_explanation_without_figures_has_no_effect(explanations, tmp_path):
    line = {"break_id": "a" * 16, "class": "parked", "by": "Ann", "reason": "known", "at_ms": 1}
    (tmp_path / "explanations.jsonl").write_text(json.dumps(line) + "\n")

    assert (explanations.in_force(), explanations.digest) == ([], "")

    explanations.add(explained("a", at_ms=2))
    assert [value.at_ms for value in explanations.in_force()] == [2]


def test_an_invalid_explanation_file_is_refused(explanations, tmp_path):
    (tmp_path / "explanations.jsonl").write_text('{"break_id": "x"}\n')

    with pytest.raises(ReconcileRefused, match="is not a file of explanations"):
        explanations.in_force()
