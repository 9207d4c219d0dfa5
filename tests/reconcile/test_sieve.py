"""The sieve says of random rows what a plain Python model of plain agreement says."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from tests.reconcile.days import BANKS, RULES, Plan
from txmq.reconcile.classes import Class
from txmq.reconcile.columns import hash_column
from txmq.reconcile.extract.table_writer import arrow_table
from txmq.reconcile.ledgers import Role, messages_at, with_keys
from txmq.reconcile.rules import Flow
from txmq.reconcile.sieve import PLAIN, SUSPECT, Others, Sieve, split_by_hash
from txmq.reconcile.tables import BOOKED, LONE, MESSAGES, EntryRow, MessageRow

START_MS = RULES.day.window(Plan.day).start_ms
END_MS = RULES.day.window(Plan.day).end_ms
BOTH = Plan(transfers=1, double_entry=True).rules


def of_banks(*changes):
    """The rules, with changes of each bank's entries."""
    banks = zip(RULES.bank, changes, strict=True)
    return replace(
        RULES,
        bank=tuple(replace(bank, entries=replace(bank.entries, **more)) for bank, more in banks),
    )


CLEARING = {"clearing": ("clearing",)}
RULESETS = {
    "no proofs": RULES,
    "both sides": BOTH,
    "one bank's sides": of_banks({"double_entry": True, **CLEARING}, {}),
    "clearing": of_banks(CLEARING, CLEARING),
}
ROOM = 1 << 61 - len(RULES.money).bit_length()
"""Amounts from here on do not fit beside a currency."""
AMOUNTS = [1, 100, (1 << 32) - 1, 1 << 32, ROOM - 1, ROOM, 1 << 62, (1 << 63) - 1]
VALUES = {
    "key": [None, "icbc/1", "icbc/2"],
    "kind": ["debit", "credit", "return", "recall", "fee", "other"],
    "role": ["customer", "clearing", "suspense", "capital"],
    "account": ["ann", "bob", "eve"],
    "amount": [0, *AMOUNTS, *(-amount for amount in AMOUNTS), -(1 << 63)],
    "currency": ["CNY", "JPY", "XXX"],
    "booked_ms": [START_MS - 1, START_MS],
    "bank": BANKS,
    "id": ["M1", "M2"],
    "payer": [None, "ann", "eve"],
    "payee": [None, "bob", "eve"],
    "state": ["sent", "committed", "prepared", "parked", "rolled_back"],
}
"""The values that a field may have instead of its own."""
OF_ENTRIES = ("key", "kind", "role", "account", "amount", "currency", "booked_ms", "bank")
OF_MESSAGES = ("key", "id", "payer", "payee", "state")
OF_ORDERS = {"amount": [None, -1, *VALUES["amount"]], "currency": [None, *VALUES["currency"]]}
SHAPES = {
    "matched": ("debit", "credit", "sent"),
    "returned": ("debit", "return", "rolled_back"),
    "returned after delivery": ("debit", "return", "committed"),
    "rolled back": ("rolled_back",),
}


def entry(key, kind, amount, role="customer"):
    bank = "ccb" if kind == "credit" else "icbc"
    account = "clearing" if role == "clearing" else "bob" if kind == "credit" else "ann"
    signed = -amount if (kind == "debit") == (role == "customer") else amount
    at = START_MS, START_MS
    return EntryRow(None, key, kind, role, account, signed, "CNY", *at, bank)


def message(key, state, amount):
    where = "t", 0, None, START_MS, None if state == "sent" else START_MS
    return MessageRow(key, "M1", "ann", "bob", amount, "CNY", state, *where, None, None, 7, None)


@st.composite
def changed(draw, row):
    """A row that is missing, copied or changed."""
    how = draw(st.integers(0, 2))
    if how == 0:
        return []
    if how == 1:
        return [row] * draw(st.sampled_from([2, 3, 14, 15, 16]))
    if isinstance(row, EntryRow):
        name = draw(st.sampled_from(OF_ENTRIES))
        return [row._replace(**{name: draw(st.sampled_from(VALUES[name]))})]
    name = draw(st.sampled_from([*OF_MESSAGES, *OF_ORDERS]))
    return [replace(row, **{name: draw(st.sampled_from(OF_ORDERS.get(name) or VALUES[name]))})]


@st.composite
def transfers(draw):
    """The rows of some transfers, as they should be but for up to three rows of each."""
    rows = []
    for key in draw(st.lists(st.sampled_from([f"icbc/{n}" for n in range(6)]), max_size=6)):
        amount = draw(st.sampled_from(AMOUNTS))
        of_key = []
        for word in SHAPES[draw(st.sampled_from(sorted(SHAPES)))]:
            if word in VALUES["kind"]:
                of_key += [entry(key, word, amount), entry(key, word, amount, "clearing")]
            else:
                of_key.append(message(key, word, amount))
        for _ in range(draw(st.integers(0, 3)) if of_key else 0):
            place = draw(st.integers(0, max(len(of_key) - 1, 0)))
            of_key[place : place + 1] = draw(changed(of_key[place])) if of_key else []
        rows += of_key
    return rows


KEYS = st.frozensets(st.sampled_from([f"icbc/{n}" for n in range(6)]), max_size=2)


# The model


def key_of(row):
    """The key of a row; rows without one have a key of their own."""
    if row.key is not None:
        return row.key
    is_entry = isinstance(row, EntryRow)
    return f"{row.bank}{LONE}{row.recorded_ms}" if is_entry else f"log/#{row.position}"


def plainly(rows, rules, *, is_seen, is_carried):
    """The class of a transfer that plainly agrees, with its amount and currency."""
    entries = [row for row in rows if isinstance(row, EntryRow)]
    messages = [row for row in rows if not isinstance(row, EntryRow)]
    legs = [row for row in entries if row.role != "clearing"]
    of = defaultdict(list)
    for row in legs:
        has_sign = row.amount < 0 if row.kind == "debit" else row.amount > 0
        is_theirs = row.role == "customer" and row.booked_ms >= START_MS and has_sign
        is_theirs &= row.bank == ("ccb" if row.kind == "credit" else "icbc")
        of[row.kind if is_theirs and row.kind in {"debit", "credit", "return"} else "odd"] += [row]
    visible = [row for row in messages if row.state in {"sent", "committed"}]
    void = [row for row in messages if row.state == "rolled_back"]
    if is_carried or of["odd"] or len(visible) + len(void) < len(messages) or len(rows) > 15:
        return None
    if not (proves_nothing(entries, rules) or adds_up(entries, rules)):
        return None
    payers = {row.account for row in of["debit"] + of["return"]} | {row.payer for row in void}
    payers |= {row.payer for row in visible if row.payer is not None}
    payees = {row.account for row in of["credit"]}
    payees |= {row.payee for row in visible if row.payee is not None}
    worths = {worth(abs(row.amount), row.currency) for row in entries}
    worths |= {worth(row.amount, row.currency) for row in visible}
    if max(map(len, (payers, payees, worths, {row.id for row in visible}))) > 1:
        return None
    if void and not legs and not visible:
        return Class.ROLLED_BACK, 0, ""
    counts = tuple(len(of[kind]) for kind in ("debit", "credit", "return"))
    if is_seen or None in worths:
        return None
    if counts == (1, 1, 0) and visible and not void:
        return Class.MATCHED, *worths.pop()
    if counts == (1, 0, 1) and bool(visible) != bool(void):
        return Class.RETURNED, *worths.pop()
    return None


def worth(amount, currency):
    is_known = amount is not None and 0 <= amount < ROOM and currency in RULES.money
    return (amount, currency) if is_known else None


def proves_nothing(entries, rules):
    return not entries or not any(bank.entries.clearing for bank in rules.bank)


def adds_up(entries, rules):
    """True if the sides of each booking, and the clearing rows, add up to zero."""
    both_sides = {bank.name for bank in rules.bank if bank.entries.double_entry}
    sums = Counter()
    for row in entries:
        if row.bank in both_sides:
            sums["side", row.bank, row.kind] += row.amount
        if row.role == "clearing" and all(bank.entries.clearing for bank in rules.bank):
            sums["clearing"] += row.amount
    return not any(sums.values())


def takes_part(row, rules):
    """True unless it is a clearing row that no proof reads, or no row of a transfer."""
    if not isinstance(row, EntryRow):
        return True
    return row.kind != "other" and (row.role != "clearing" or not proves_nothing([row], rules))


# The comparison


def sift(rules, rows, agreed, carried, pieces):
    """The rows through the sieve: by key, the code and whether it was seen; and the sums."""
    sieve = Sieve(rules, START_MS)
    booked, told = [], []
    for some in np.array_split(np.arange(len(rows)), pieces):
        of = [rows[place] for place in some]
        entries = arrow_table(BOOKED, [row for row in of if isinstance(row, EntryRow)])
        messages = [astuple(row) for row in of if not isinstance(row, EntryRow)]
        booked.append(sieve.entries(with_keys(Role.ENTRIES, entries)))
        told.append(sieve.messages(messages_at(arrow_table(MESSAGES, messages), END_MS)))
    booked.append(sieve.carried(pa.table({"key": pa.array(sorted(carried), pa.string())})))
    hashes = hash_column(pa.chunked_array([sorted(agreed)], pa.string()))
    return sieve.sift(booked, told, [hashes]), (booked, told), hashes


@pytest.mark.parametrize("rules", RULESETS.values(), ids=RULESETS)
@given(rows=transfers(), agreed=KEYS, carried=KEYS, random=st.randoms(), pieces=st.integers(1, 3))
@example(rows=[], agreed=frozenset(), carried=frozenset(), random=None, pieces=1)
def test_what_plainly_agrees_is_what_the_model_says(rules, rows, agreed, carried, random, pieces):
    if random is not None:
        random.shuffle(rows)
    (others, sums), both, seen = sift(rules, rows, agreed, carried, pieces)

    cases = defaultdict(list, {key: [] for key in carried})
    for row in rows:
        if takes_part(row, rules):
            cases[key_of(row)].append(row)
    expected, expected_sums = {}, Counter()
    for key, of_key in cases.items():
        is_seen = key in agreed
        found = plainly(of_key, rules, is_seen=is_seen, is_carried=key in carried)
        class_, amount, currency = found or (None, 0, "")
        if class_ is not Class.MATCHED:
            expected[key] = PLAIN.get(class_, SUSPECT), is_seen
        if class_ is not None:
            is_ordered = any(getattr(row, "state", "") in {"sent", "committed"} for row in of_key)
            received = "credited" if class_ is Class.MATCHED else "returned"
            for name, value in (
                ("transfers", 1), ("debited", amount), (received, amount),
                ("ordered", amount * is_ordered),
            ):  # fmt: skip
                expected_sums[name, class_.value, currency] += value
    assert by_key(others, cases) == expected
    assert +sums == +expected_sums

    places = [([], []) for _ in range(4)]
    for kind, narrow in enumerate(both):
        for columns in narrow:
            for place, some in split_by_hash(columns[0], 4):
                places[place][kind].append(columns[:, some])
    sifted = [Sieve(rules, START_MS).sift(*of_both, [seen]) for of_both in places]
    together = Others(*map(np.concatenate, zip(*(of for of, _ in sifted), strict=True)))
    assert all(map(np.array_equal, together, others))
    assert sum((+some for _, some in sifted), Counter()) == +sums


def by_key(others, keys):
    """The others by their keys."""
    names = dict(zip(hash_column(pa.chunked_array([[*keys]], pa.string())), keys, strict=True))
    found = zip(others.plain.tolist(), others.is_seen.tolist(), strict=True)
    return dict(zip((names[hash_] for hash_ in others.hashes), found, strict=True))


@pytest.mark.parametrize("change", [{}, {"currency": "JPY"}, {"bank": "ccb"}])
def test_a_clearing_row_of_another_currency_or_bank_is_not_plain(change):
    debit, credit = entry("icbc/1", "debit", 5), entry("icbc/1", "credit", 5)
    sides = [entry("icbc/1", kind, 5, "clearing") for kind in ("debit", "credit")]
    rows = [debit, credit, sides[0]._replace(**change), sides[1], message("icbc/1", "sent", 5)]

    (others, _), *_ = sift(BOTH, rows, frozenset(), frozenset(), 1)

    assert by_key(others, ["icbc/1"]) == ({"icbc/1": (SUSPECT, False)} if change else {})


@pytest.mark.parametrize("kinds", [("debit", "credit"), ("debit", "return")])
@pytest.mark.parametrize("wrong", [0, 1])
def test_an_entry_at_the_wrong_bank_is_not_plain(kinds, wrong):
    entries = [entry("icbc/1", kind, 5) for kind in kinds]
    other = "icbc" if entries[wrong].bank == "ccb" else "ccb"
    entries[wrong] = entries[wrong]._replace(bank=other)

    (others, _), *_ = sift(RULES, [*entries, message("icbc/1", "sent", 5)], set(), set(), 1)

    assert by_key(others, ["icbc/1"]) == {"icbc/1": (SUSPECT, False)}


def test_a_credit_is_not_plain_if_its_bank_depends_on_the_flow():
    flows = [Flow(name, "icbc", payee_bank=name) for name in BANKS]
    rules = replace(RULES, log=replace(RULES.log, flow=tuple(flows)))
    rows = [entry("icbc/1", "debit", 5), entry("icbc/1", "credit", 5), message("icbc/1", "sent", 5)]

    (others, _), *_ = sift(rules, rows, set(), set(), 1)

    assert by_key(others, ["icbc/1"]) == {"icbc/1": (SUSPECT, False)}


def test_clearing_rows_give_a_rolled_back_transfer_no_money():
    sides = [entry("icbc/1", kind, 5, "clearing") for kind in ("debit", "credit")]
    rows = [*sides, message("icbc/1", "rolled_back", 5)]

    (_, sums), *_ = sift(RULESETS["clearing"], rows, frozenset(), frozenset(), 1)

    assert +sums == {("transfers", "rolled-back", ""): 1}
