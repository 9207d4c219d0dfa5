"""Each agreed outcome of the rules, and what is missing from it, as rows of one transfer."""

from datetime import date
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.reconcile.days import RULES
from txmq.reconcile.classes import Class
from txmq.reconcile.classification import classify, facts_of_item
from txmq.reconcile.rules import Flow, Money, Outcomes
from txmq.reconcile.tables import EntryRow, MessageRow
from txmq.reconcile.transfer import Consumers, TransferFacts, TransferRows

DAY = date(2026, 3, 10)
START, END = RULES.day.window(DAY)
NOON, LATE = START + 12 * 3_600_000, END - 60_000
"""Long before the day ends, and within the grace."""
PLAIN, PARTS = Outcomes(), Outcomes(parts=True)


def charged(bearer, most=10, **more):
    return Outcomes(charges=bearer, charges_max={"CNY": most}, **more)


NUMBERS = count(1)


def entry(kind, amount, *, at=NOON, account=None, bank=None, booked=None, role="customer"):
    is_payers = kind in ("debit", "return")
    return EntryRow(
        next(NUMBERS), "icbc/1", kind, role, account or ("ann" if is_payers else "bob"), amount,
        "CNY", booked or at, at, bank or ("icbc" if is_payers else "ccb"),
    )  # fmt: skip


def order(amount, *, at=NOON, payer="ann", payee="bob", state="committed"):
    number = next(NUMBERS)
    return MessageRow(
        "icbc/1", f"M{number}", payer, payee, amount, "CNY", state, "icbc-transfers", 0, 0, at, at,
        "producer", None, number, None,
    )  # fmt: skip


def found(rows, outcomes=PLAIN, *, was_open=False, is_unseen=False, tolerance=0, rules=RULES):
    rules = replace(rules, outcomes=outcomes, money={"CNY": Money(tolerance=tolerance)})
    entries = [row for row in rows if isinstance(row, EntryRow)]
    messages = [row for row in rows if isinstance(row, MessageRow)]
    transfer = TransferRows("icbc/1", entries, messages, was_open=was_open)
    transfer.settle()
    consumers = Consumers({flow.topic: flow.group for flow in rules.log.flow}, {})
    facts = TransferFacts(transfer, consumers, rules.day, START)
    class_ = classify(facts, rules, END, is_unseen=is_unseen)
    return facts_of_item(facts, class_)


def class_of(*rows, **more):
    return found(rows, **more)["class"]


def with_parts(*rows):
    """The class if the rules allow parts."""
    return class_of(*rows, outcomes=PARTS)


SUSPENSE = {"account": "unclaimed", "role": "suspense"}
SENT = [order(100), entry("debit", -100)]
DONE = [*SENT, entry("credit", 100)]


def test_one_debit_and_one_credit_agree_under_all_rules():
    for outcomes in (PLAIN, PARTS, charged("payer"), charged("payee")):
        assert found(DONE, outcomes)["class"] == Class.MATCHED
        assert found(SENT, outcomes)["class"] == Class.COMMITTED_UNDELIVERED


@pytest.mark.parametrize("back", [100, 30])
def test_a_recalled_credit_is_open_until_the_payer_is_paid_back(back):
    """Wholly or in part, whatever the rules say of other outcomes."""
    recalled = [*DONE, entry("recall", -back, at=LATE)]
    returned = [*recalled, entry("return", back, at=LATE)]

    on_its_way, there = found(recalled), found(returned)

    assert (on_its_way["class"], on_its_way["amount"]) == (Class.IN_FLIGHT, back)
    assert on_its_way["holder"] == "transit"
    assert there["class"] == Class.RETURNED
    assert there["credited"] == 100 - back
    stuck = [*DONE, entry("recall", -back)]
    assert class_of(*stuck) == Class.RECALLED_UNRETURNED


@pytest.mark.parametrize("tolerance", [0, 1])
@pytest.mark.parametrize("before", [(), (entry("return", 40),)])
def test_paying_back_the_amount_at_risk_closes_a_recalled_transfer(tolerance, before):
    credit = 100 - tolerance
    stuck = [*SENT, entry("credit", credit), entry("recall", -credit), *before]
    there = found(stuck, tolerance=tolerance)
    assert there["class"] == Class.RECALLED_UNRETURNED
    for owed in {there["amount"], there["amount"] - tolerance}:
        paid = [*stuck, entry("return", owed)]
        assert class_of(*paid, tolerance=tolerance) == Class.RETURNED
    assert class_of(*DONE, entry("recall", -1), tolerance=1) == Class.RECALLED_UNRETURNED


@pytest.mark.parametrize(
    "rows",
    [
        [*DONE, entry("recall", -150)],
        [*DONE, entry("recall", -100, **SUSPENSE)],
        [*SENT, entry("return", 100), entry("recall", -100)],
    ],
)
def test_a_recall_of_money_the_payee_never_had_is_an_account_mismatch(rows):
    assert class_of(*rows) == Class.ACCOUNT_MISMATCH


def test_a_copied_recall_is_a_duplicate_credit():
    recall = entry("recall", -30)
    assert class_of(*DONE, recall, recall) == Class.DUPLICATE_CREDIT
    other = recall._replace(bank="icbc", kind="return", amount=30, account="ann")
    assert class_of(*DONE, recall, other) == Class.RETURNED, "another bank's number"


def test_a_return_without_a_matching_recall_is_a_break():
    assert class_of(*DONE, entry("return", 100)) == Class.DOUBLE_CREDIT
    more = [entry("recall", -30), entry("return", 100)]
    assert class_of(*DONE, *more) == Class.DOUBLE_CREDIT
    assert class_of(*SENT, entry("recall", -100)) != Class.MATCHED
    others = [entry("recall", -100, account="eve"), entry("return", 100)]
    assert Class(class_of(*DONE, *others)).group == "break"


def test_a_credit_in_parts_agrees_only_if_the_rules_allow_parts():
    parts = [*SENT, entry("credit", 60), entry("credit", 40)]

    assert class_of(*parts) == Class.DOUBLE_CREDIT
    assert with_parts(*parts) == Class.MATCHED
    assert with_parts(*parts, entry("credit", 1)) == Class.DOUBLE_CREDIT
    first = [*SENT, entry("credit", 60)]
    sent_late = [order(100, at=LATE), entry("debit", -100, at=LATE)]
    assert with_parts(*sent_late, first[-1]) == Class.DELIVERED_UNCREDITED, "an older credit"
    waiting = found([*sent_late, entry("credit", 60, at=LATE)], PARTS)
    assert (waiting["class"], waiting["amount"]) == (Class.IN_FLIGHT, 40)
    late = found(first, PARTS)
    assert (late["class"], late["amount"]) == (Class.DELIVERED_UNCREDITED, 40)


@pytest.mark.parametrize("more", [[], [entry("recall", -60), entry("return", 60)]])
def test_a_refused_part_must_be_paid_back_to_the_cent(more):
    rows = [*SENT, entry("credit", 60), *more]
    refused = found([*rows, entry("return", 40)], PARTS)
    assert (refused["class"], refused["debited"]) == (Class.RETURNED, 100)
    assert refused["returned"] + refused["credited"] == 100
    twice = [*rows, entry("return", 30), entry("return", 10)]
    assert with_parts(*twice) == Class.RETURNED
    waiting = found([*rows, entry("return", 30)], PARTS)
    assert (waiting["class"], waiting["amount"]) == (Class.DELIVERED_UNCREDITED, 10)
    assert Class(with_parts(*rows, entry("return", 41))).group == "break"
    assert class_of(*rows, entry("return", 40)) in {Class.DOUBLE_CREDIT, Class.DUPLICATE_DEBIT}


def test_a_refused_part_must_go_back_to_its_payer():
    batch = [order(60), order(40, payee="carl"), entry("debit", -100), entry("credit", 60)]
    assert with_parts(*batch, entry("return", 40)) == Class.RETURNED
    other = entry("return", 40, account="eve")
    assert with_parts(*batch, other) == Class.ACCOUNT_MISMATCH
    all_ = [*SENT, entry("return", 60), entry("return", 40)]
    assert with_parts(*all_) == Class.RETURNED
    assert class_of(*all_) == Class.DUPLICATE_DEBIT
    charged_ = [*SENT, entry("credit", 57), entry("fee", 3), entry("return", 40)]
    assert class_of(*charged_, outcomes=charged("payee", parts=True)) == Class.RETURNED
    both = [*DONE, entry("return", 40)]
    assert found(both, PARTS)["amount"] == 40
    assert with_parts(*both) == Class.DOUBLE_CREDIT


def test_a_batch_agrees_if_its_orders_add_up():
    """One debit for two payees, and two payers for one credit."""
    orders = [order(60), order(40, payee="carl")]
    paid = [entry("credit", 60), entry("credit", 40, account="carl")]
    batch = [*orders, entry("debit", -100), *paid]
    assert class_of(*batch) == Class.DUPLICATE_MESSAGE
    assert with_parts(*batch) == Class.MATCHED
    assert with_parts(*batch[1:]) == Class.DOUBLE_CREDIT

    taken = [entry("debit", -60), entry("debit", -40, account="carl")]
    collected = [order(100, payer=None), *taken, entry("credit", 100)]
    assert class_of(*collected) == Class.DUPLICATE_DEBIT
    assert with_parts(*collected) == Class.MATCHED


def test_a_copied_row_does_not_count_as_a_part():
    credit = entry("credit", 50)
    assert with_parts(*SENT, credit, credit) == Class.DUPLICATE_CREDIT
    debit = entry("debit", -50)
    twice = [order(100), debit, debit, entry("credit", 100)]
    assert with_parts(*twice) == Class.DUPLICATE_DEBIT


BEARERS = pytest.mark.parametrize(
    ("bearer", "debited", "credited"), [("payee", -100, 97), ("payer", -103, 100)]
)


@BEARERS
def test_a_fee_agrees_only_if_the_rules_say_who_bears_it(bearer, debited, credited):
    rows = [order(100), entry("debit", debited), entry("credit", credited)]
    fee = entry("fee", 3, account="fees")

    assert class_of(*rows, fee, outcomes=charged(bearer)) == Class.MATCHED
    other = "payer" if bearer == "payee" else "payee"
    for outcomes in (PLAIN, charged(other), PARTS):
        assert class_of(*rows, fee, outcomes=outcomes) == Class.AMOUNT_MISMATCH
    assert class_of(*rows, outcomes=charged(bearer)) == Class.AMOUNT_MISMATCH


@BEARERS
def test_a_fee_above_the_limit_of_its_currency_is_a_break_at_once(bearer, debited, credited):
    fee = entry("fee", 3, account="fees", at=LATE)
    rows = [order(100, at=LATE), entry("debit", debited, at=LATE), fee]
    done = [*rows, entry("credit", credited, at=LATE)]

    assert class_of(*done, outcomes=charged(bearer, 3)) == Class.MATCHED
    for outcomes in (charged(bearer, 2), Outcomes(charges=bearer, charges_max={"USD": 3})):
        dear = found(done, outcomes)
        assert (dear["class"], dear["amount"]) == (Class.FEE_TOO_HIGH, 3)
    waiting = charged(bearer, 2, parts=True)
    assert class_of(*rows, entry("credit", 40, at=LATE), outcomes=waiting) == Class.FEE_TOO_HIGH
    back = [entry("recall", -credited), entry("return", credited)]
    assert class_of(*done, *back, outcomes=charged(bearer, 2)) == Class.FEE_TOO_HIGH


def test_a_fee_of_the_whole_transfer_or_more_is_a_break():
    more = [order(100), entry("debit", -201), entry("credit", 100), entry("fee", 101)]
    assert class_of(*more, outcomes=charged("payer", 500)) == Class.FEE_TOO_HIGH
    swallowed = [*SENT, entry("fee", 100, account="fees")]
    all_of_it = found(swallowed, charged("payee", 500, parts=True))
    assert Class(all_of_it["class"]).group == "break"


def test_an_id_reused_on_a_later_date_is_a_duplicate_id():
    before = START - 3_600_000
    moved = [entry("debit", -100, at=before), entry("credit", 100, at=before)]
    first = [order(100, at=before), *moved]

    again = found([*first, *DONE])

    assert (again["class"], again["amount"]) == (Class.DUPLICATE_ID, 100)
    assert class_of(*DONE, *SENT) == Class.DUPLICATE_DEBIT
    assert class_of(*first, entry("credit", 100)) == Class.DOUBLE_CREDIT


def test_a_backdated_booking_stays_an_item_until_somebody_explains_it():
    backdated = [*SENT, entry("credit", 100, booked=START - 1)]

    assert class_of(*backdated) == Class.PRIOR_PERIOD
    # The next day: the booking is an earlier one, and nobody has explained it.
    assert class_of(*DONE, was_open=True, is_unseen=True) == Class.PRIOR_PERIOD
    assert class_of(*DONE, was_open=True) == Class.MATCHED


CARLS = [order(60), order(40, payee="carl"), entry("debit", -100)]
JOINT = [order(60), order(40, payer="carl"), entry("credit", 100)]


@pytest.mark.parametrize(
    "rows",
    [
        [*SENT, entry("credit", 60), entry("credit", 40, account="eve")],
        [*SENT, entry("credit", 60, account="eve"), entry("credit", 40, account="eve")],
        [*SENT, entry("credit", 60), entry("credit", 40, account="capital", role="capital")],
        [*CARLS, entry("credit", 40), entry("credit", 60, account="carl")],
        [*JOINT, entry("debit", -40), entry("debit", -60, account="carl")],
        [*SENT, entry("credit", 60), entry("credit", 40), entry("recall", -40, account="eve"),
         entry("return", 40)],
        [*JOINT, entry("debit", -60), entry("debit", -40, account="carl"), entry("recall", -60),
         entry("return", 60, account="carl")],
    ],
)  # fmt: skip
def test_parts_on_the_wrong_accounts_are_an_account_mismatch(rows):
    assert with_parts(*rows) == Class.ACCOUNT_MISMATCH


def test_an_order_without_a_payee_allows_any_payee_for_its_own_amount_only():
    orders = [order(60), order(40, payee=None), entry("debit", -100)]
    fits = [entry("credit", 60), entry("credit", 40, account="eve")]
    assert with_parts(*orders, *fits) == Class.MATCHED
    stray = [entry("credit", 50), entry("credit", 50, account="eve")]
    assert with_parts(*orders, *stray) == Class.ACCOUNT_MISMATCH
    all_ = entry("credit", 100, account="eve")
    assert with_parts(*orders, all_) == Class.ACCOUNT_MISMATCH


def test_payers_may_share_a_fee_but_not_shift_amounts_between_them():
    orders = [order(60), order(40, payer="carl"), order(40, payer="dan"), entry("credit", 140)]
    shared = charged("payer", parts=True)

    def debited(*amounts):
        payers = zip(("ann", "carl", "dan"), amounts, strict=True)
        debits = [entry("debit", -amount, account=payer) for payer, amount in payers]
        return class_of(*orders, *debits, entry("fee", 3, account="fees"), outcomes=shared)

    assert debited(61, 41, 41) == Class.MATCHED
    assert debited(63, 43, 37) == Class.ACCOUNT_MISMATCH


def test_a_part_may_wait_on_a_suspense_account():
    waits = entry("credit", 40, **SUSPENSE)
    assert with_parts(*SENT, entry("credit", 60), waits) == Class.MATCHED


def test_a_recall_of_more_than_was_credited_is_a_double_credit():
    more = [*DONE, entry("recall", -150), entry("return", 150)]
    assert class_of(*more) == Class.DOUBLE_CREDIT
    others = entry("recall", -100, **SUSPENSE)
    assert class_of(*DONE, others, entry("return", 100)) == Class.DOUBLE_CREDIT


def test_a_credit_to_the_banks_own_account_is_an_account_mismatch():
    own = entry("credit", 100, account="capital", role="capital")
    assert class_of(*SENT, own) == Class.ACCOUNT_MISMATCH


@pytest.mark.parametrize("outcomes", [PLAIN, PARTS])
def test_a_changed_copy_of_an_order_or_a_negative_order_is_a_break(outcomes):
    copy = order(90)
    copy.id = SENT[0].id
    assert class_of(copy, *DONE, outcomes=outcomes) == Class.AMOUNT_MISMATCH
    assert class_of(order(-100), *DONE[1:], outcomes=outcomes) == Class.AMOUNT_MISMATCH
    less = [order(200), order(-100, payee="eve"), *DONE[1:]]
    assert Class(class_of(*less, outcomes=outcomes)).group == "break"


# Which bank booked

VOID = order(100, state="rolled_back")
AT_THE_WRONG_BANK = {
    "credit": [*SENT, entry("credit", 100, bank="icbc")],
    "credit to suspense": [*SENT, entry("credit", 100, bank="icbc", **SUSPENSE)],
    "debit": [order(100), entry("debit", -100, bank="ccb"), entry("credit", 100)],
    "debit of a young transfer": [order(100, at=LATE), entry("debit", -100, at=LATE, bank="ccb")],
    "return": [*SENT, entry("return", 100, bank="ccb")],
    "return after a rollback": [VOID, entry("debit", -100), entry("return", 100, bank="ccb")],
    "return without an order": [entry("debit", -100), entry("return", 100, bank="ccb")],
    "recall": [*DONE, entry("recall", -100, bank="icbc"), entry("return", 100)],
    "both": [order(100), entry("debit", -100, bank="ccb"), entry("credit", 100, bank="icbc")],
    "backdated credit": [*SENT, entry("credit", 100, bank="icbc", booked=START - 1)],
}


@pytest.mark.parametrize("outcomes", [PLAIN, PARTS, charged("payer"), charged("payee")])
@pytest.mark.parametrize("rows", AT_THE_WRONG_BANK.values(), ids=AT_THE_WRONG_BANK)
def test_an_entry_at_the_wrong_bank_has_the_class_wrong_bank(rows, outcomes):
    assert found(rows, outcomes)["class"] == "wrong-bank"
    assert found(rows, outcomes)["amount"] == 100


def test_a_part_at_the_wrong_bank_does_not_agree():
    part = [*SENT, entry("credit", 60), entry("credit", 40, bank="icbc")]
    assert with_parts(*part) == "wrong-bank"
    assert with_parts(*SENT, entry("credit", 60, bank="icbc")) == "wrong-bank"
    refused = [*SENT, entry("credit", 60), entry("return", 40, bank="ccb")]
    assert with_parts(*refused) == "wrong-bank"


@pytest.mark.parametrize(
    ("rows", "class_"),
    [
        ([*SENT, entry("credit", 100, bank="icbc"), entry("return", 100)], Class.DOUBLE_CREDIT),
        ([*SENT, entry("credit", 99, bank="icbc")], Class.AMOUNT_MISMATCH),
        ([*SENT, entry("credit", 100, bank="icbc", account="eve")], Class.ACCOUNT_MISMATCH),
        ([entry("credit", 100, bank="icbc")], Class.CREDIT_WITHOUT_MESSAGE),
        ([VOID, entry("debit", -100, bank="ccb")], Class.ROLLED_BACK_BUT_DEBITED),
    ],
)
def test_a_more_telling_class_takes_precedence_over_wrong_bank(rows, class_):
    assert class_of(*rows) == class_


def test_either_bank_of_a_transfer_may_charge_a_fee():
    for bank in ("icbc", "ccb"):
        fee = entry("fee", 3, account="fees", bank=bank)
        payees = [*SENT, entry("credit", 97), fee]
        assert class_of(*payees, outcomes=charged("payee")) == Class.MATCHED
        payers = [order(100), entry("debit", -103), entry("credit", 100), fee]
        assert class_of(*payers, outcomes=charged("payer")) == Class.MATCHED


def test_the_topic_of_an_order_decides_which_bank_must_credit():
    banks = (*RULES.bank, replace(RULES.bank[0], name="boc"))
    ccb, boc = (Flow(f"icbc-{name}", "icbc", payee_bank=name) for name in ("ccb", "boc"))
    rules = replace(RULES, bank=banks, log=replace(RULES.log, flow=(ccb, boc)))
    to_boc = order(100)
    to_boc.topic = boc.topic
    debit = entry("debit", -100)

    assert class_of(to_boc, debit, entry("credit", 100, bank="boc"), rules=rules) == Class.MATCHED
    assert class_of(to_boc, debit, entry("credit", 100), rules=rules) == "wrong-bank"


def test_an_item_names_each_bank_that_booked_a_side():
    """Also the bank of a return or a recall, which may be the wrong one."""
    returned = found([*SENT, entry("return", 100, bank="ccb")])
    assert (returned["debit_bank"], returned["credit_bank"]) == ("ccb / icbc", None)
    recalled = found([*DONE, entry("recall", -100, bank="icbc"), entry("return", 100)])
    assert (recalled["debit_bank"], recalled["credit_bank"]) == ("icbc", "ccb / icbc")


ROWS = st.one_of(
    st.builds(
        lambda kind, amount, at, where: entry(
            kind, -amount if kind in {"debit", "recall"} else amount, at=at, **where
        ),
        st.sampled_from(["debit", "credit", "return", "recall", "fee"]),
        st.sampled_from([100, 60, 40]),
        st.sampled_from([NOON, LATE]),
        st.sampled_from([{}, {}, {"account": "eve"}, SUSPENSE]),
    ),
    st.builds(
        order,
        st.sampled_from([100, 60, 40]),
        at=st.sampled_from([NOON, LATE]),
        payee=st.sampled_from(["bob", None]),
        state=st.sampled_from(["committed", "sent", "rolled_back", "prepared", "parked"]),
    ),
)
_IN_ORDER = list(Class)


@given(
    st.lists(ROWS, max_size=3),
    st.sampled_from([[entry("debit", -100)], SENT, DONE, [*SENT, entry("return", 100)]]),
    st.sampled_from([PLAIN, PARTS, charged("payer"), charged("payee", parts=True)]),
    st.data(),
)
def test_an_entry_moved_to_the_wrong_bank_is_wrong_bank_or_a_more_telling_class(
    more, rows, outcomes, data
):
    rows = [*rows, *more]
    at_home = class_of(*rows, outcomes=outcomes)
    booked = [row for row in rows if isinstance(row, EntryRow) and row.kind != "fee"]
    moved = data.draw(st.sampled_from(booked))
    other = moved._replace(bank="ccb" if moved.bank == "icbc" else "icbc")

    elsewhere = class_of(*(other if row is moved else row for row in rows), outcomes=outcomes)

    is_telling = _IN_ORDER.index(at_home) < _IN_ORDER.index("wrong-bank")
    assert elsewhere == (at_home if is_telling else "wrong-bank")
