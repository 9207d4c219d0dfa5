"""Changes that must not matter: the order of rows and banks, places, and names."""

from datetime import date, timedelta
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from tests.reconcile.days import BANKS, Plan, write_day
from tests.reconcile.frames import collected, content, left_by, read, reconcile, session
from txmq.reconcile import match
from txmq.reconcile.ledgers import Role
from txmq.reconcile.tables import TABLES

PLAN = Plan(transfers=1_500, planted=2, accounts=150, part=400, altered=1)
END_MS = PLAN.rules.day.window(PLAN.day).end_ms
HUGE = 1 << 62
COPIES = 12, 13, 15, 255


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    return write_day(tmp_path_factory.mktemp("day"), PLAN)


@pytest.fixture(scope="module")
def whole(day):
    """The result of the day as it is."""
    return run(read(day.folder))


@pytest.fixture(scope="module")
def matching(whole):
    """The keys of five transfers of ICBC's that are matched."""
    return sorted(
        row.key
        for row in collected(whole.tables["matches"])
        if (row["class"], row.currency) == ("matched", "CNY") and row.key.startswith("icbc/")
    )[:5]


@pytest.fixture(scope="module")
def changed(day, matching):
    """The result of the day if each of these transfers has an oddity of its own."""
    huge, *copied = matching
    copies = dict(zip(copied, COPIES, strict=True))

    def entry(row):
        if row["key"] == huge:
            yield row | {"amount": HUGE if row["amount"] > 0 else -HUGE}
        else:
            yield row

    def message(row):
        if row["key"] == huge:
            yield row | {"amount": HUGE}
        else:
            yield from [row] * (1 + copies.get(row["key"], 0))

    ledgers = read(day.folder)
    return run(
        ledgers
        | {
            Role.ENTRIES: rewritten(ledgers[Role.ENTRIES], entry),
            Role.MESSAGES: rewritten(ledgers[Role.MESSAGES], message),
        }
    )


def run(ledgers, rules=PLAN.rules):
    return reconcile(ledgers, {}, rules, PLAN.day, END_MS)


def rewritten(rows, rewrite):
    """A table with each row replaced by the rows that ``rewrite`` yields."""
    found = [new for row in rows.to_pylist() for new in rewrite(row)]
    return pa.Table.from_pylist(found, rows.schema)


def shuffled(rows):
    return rows.take(np.random.default_rng(1).permutation(len(rows)))


def contents(outcome):
    """The hash of every table's rows, in whatever order they are."""
    return {name: content(TABLES[name], rows) for name, rows in outcome.all_tables.items()}


def breaks(rows, *, renamed=str):
    """The facts of each break, without its id."""
    return {
        renamed(row.key): (row["class"], row.amount, row.currency, row.holder, row.status)
        for row in rows
    }


def test_the_order_of_rows_does_not_matter(day, whole):
    again = run({role: shuffled(rows) for role, rows in read(day.folder).items()})

    assert contents(again) == contents(whole)


def test_the_partitioning_of_spark_does_not_matter(day, whole, monkeypatch):
    monkeypatch.setattr(match, "_KEYS_AT_A_PLACE", 20)
    monkeypatch.setattr(match, "_FEW", 0)
    session().conf.set("spark.sql.shuffle.partitions", "7")
    try:
        again = run(read(day.folder))
        assert contents(again) == contents(whole)
    finally:
        session().conf.set("spark.sql.shuffle.partitions", "2")


def test_the_order_of_banks_does_not_matter(day, whole):
    rules = replace(PLAN.rules, bank=PLAN.rules.bank[::-1])
    again = run(read(day.folder, BANKS[::-1]), rules)

    assert contents(again) == contents(whole)


def test_a_huge_amount_is_matched_like_any_other(changed, matching):
    matches = collected(changed.tables["matches"])
    (row,) = (row for row in matches if row.key == matching[0])
    assert (row["class"], row.amount) == ("matched", HUGE)


def test_any_number_of_copies_counts_as_one_message(changed, matching):
    """Each of four messages has a number of copies."""
    found = {row.key: row["class"] for row in collected(changed.tables["matches"])}
    assert [found[key] for key in matching[1:]] == ["matched"] * len(COPIES)


def test_oddities_of_some_transfers_leave_the_others_unchanged(whole, changed, matching):
    """Compare the transfers without an oddity."""
    odd = {*matching}
    found, expected = (
        {row.key: row["class"] for row in rows if row.key not in odd}
        for rows in (collected(changed.tables["items"]), collected(whole.tables["items"]))
    )
    assert found == expected


def test_renamed_keys_give_the_same_breaks(day, whole):
    def renamed(key):
        bank, _, number = key.partition("/")
        return f"{bank}/{number[::-1]}"

    def rename(row):
        yield row | {"key": row["key"] and renamed(row["key"])}

    ledgers = read(day.folder)
    named = {
        role: rewritten(ledgers[role], rename)
        for role in (Role.ENTRIES, Role.MESSAGES, Role.FAILURES)
    }
    there = run(ledgers | named)

    assert breaks(collected(there.tables["items"])) == breaks(
        collected(whole.tables["items"]), renamed=renamed
    )
    assert there.tables["totals"].equals(whole.tables["totals"])


def test_a_day_in_two_parts_gives_the_result_of_the_whole_day(day, whole):
    """The same hours with the cut-off in the middle. An item that is open then is closed or open at
    the end, and the last class of each transfer is that of the whole day. Lateness depends on when
    a day begins, so it is left out.
    """
    halved = replace(PLAN.rules, day=replace(PLAN.rules.day, cut_off="05:00"))
    morning, evening = PLAN.day, PLAN.day + timedelta(days=1)
    ledgers = read(day.folder)

    parts = [part(ledgers, halved, item) for item in (morning, evening)]
    noon = halved.day.window(morning).end_ms
    one = reconcile(parts[0], {}, halved, morning, noon)
    both = parts[1] | left_by(one, parts[0])
    two = reconcile(both, {}, halved, evening, END_MS)

    expected, found = (
        {
            row.key: row["class"]
            for row in collected(item.tables["items"])
            if row["class"] != "prior-period"
        }
        for item in (whole, two)
    )
    assert found == expected
    agreed = [
        {row.key: row["class"] for row in collected(item.tables["matches"])} for item in (one, two)
    ]
    agreed_in_all = reduce(dict.__or__, agreed)
    for key in expected:
        agreed_in_all.pop(key, None)
    closed = {row.key for row in collected(two.tables["closed"])}
    assert closed.isdisjoint(expected)
    whole_agreed = {row.key: row["class"] for row in collected(whole.tables["matches"])}
    assert {key: agreed_in_all.get(key) for key in whole_agreed} == whole_agreed


def part(ledgers, rules, on: date):
    """The extract of a part of the time, without balances."""
    start, end = rules.day.window(on)

    def is_inside(name):
        return (pc.field(name) >= start) & (pc.field(name) < end)

    is_told = is_inside("stored_ms") | is_inside("decided_ms")
    return ledgers | {
        Role.ENTRIES: ledgers[Role.ENTRIES].filter(is_inside("recorded_ms")),
        Role.MESSAGES: ledgers[Role.MESSAGES].filter(is_told),
    }
