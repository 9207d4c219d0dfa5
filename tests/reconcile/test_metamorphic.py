"""What changes nothing, changes nothing: the order of rows, parts, places, banks and names."""

from datetime import date, timedelta
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from tests.reconcile.days import BANKS, Plan, write_day
from tests.reconcile.frames import RowsInMemory, collected, left_by, read
from txmq.reconcile import core, ledgers, sieve
from txmq.reconcile.columns import hash_column
from txmq.reconcile.core import ROWS_AT_A_PLACE, reconcile
from txmq.reconcile.ledgers import Role
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.results import open_results
from txmq.reconcile.workers import Workers

PLAN = Plan(transfers=1_500, planted=2, accounts=150, part=400, altered=1)
END_MS = PLAN.rules.day.window(PLAN.day).end_ms
TABLES = ("items", "matches", "balances", "totals")
OF_SECOND_PASS = ("closed", "entries", "messages", "failures", "by_hand")
RUN = "0123456789abcdef"
ONE, TWIN = "icbc/00039789016", "icbc/cUpH1PWx6OS"
"""Keys with the same hash: the hash of a word can be reversed, and this one was."""
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
def first(whole, tmp_path_factory):
    """The same as files."""
    return written(whole, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def matching(whole):
    """The keys of six transfers of ICBC's that are matched."""
    return sorted(
        row.key
        for row in collected(whole.tables["matches"])
        if (row["class"], row.currency) == ("matched", "CNY") and row.key.startswith("icbc/")
    )[:6]


@pytest.fixture(scope="module")
def changed(day, matching):
    """The result of the day if each of these transfers has another oddity."""
    twin, huge, *copied = matching
    copies = dict(zip(copied, COPIES, strict=True))

    def entry(row):
        if row["key"] == twin:
            yield row | {"key": TWIN if row["kind"] == "credit" else ONE}
        elif row["key"] == huge:
            yield row | {"amount": HUGE if row["amount"] > 0 else -HUGE}
        else:
            yield row

    def message(row):
        if row["key"] == twin:
            yield row | {"key": ONE}
        elif row["key"] == huge:
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


def run(ledgers, rules=PLAN.rules, **more):
    return reconcile(ledgers, {}, rules, PLAN.day, END_MS, **more)


def rows_for(places):
    """The number of rows that need so many places."""
    return ROWS_AT_A_PLACE * places // 2


def rows_of(table):
    return pa.concat_tables([rows for part in table for rows in part.pieces()])


def rewritten(table, rewrite):
    """A table with other rows for each of its rows."""
    rows = rows_of(table)
    found = [new for row in rows.to_pylist() for new in rewrite(row)]
    return [RowsInMemory(pa.Table.from_pylist(found, rows.schema))]


def kept(table, condition):
    return [RowsInMemory(rows_of(table).filter(condition))]


def written(outcome, folder):
    """The results as files; every table's content, and the bytes of all."""
    with open_results(folder) as results:
        contents = {
            name: results.write_table(name, outcome.tables[name], PLAN.day, RUN) for name in TABLES
        }
        balances = results.table("balances", PLAN.day, RUN)
        proofs = proofs_of(outcome, balances.pieces(), PLAN.rules)
        contents["proofs"] = results.write_table("proofs", proofs, PLAN.day, RUN)
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.parquet")}
    return contents, files


def shuffled(ledgers, parts):
    """The same rows in another order, in so many parts."""
    random = np.random.default_rng(parts)

    def of(table):
        rows = rows_of(table)
        some = np.array_split(random.permutation(len(rows)), parts)
        return [RowsInMemory(rows.take(places)) for places in some]

    return {role: of(table) for role, table in ledgers.items()}


def breaks(rows, *, renamed=str):
    """All about each break but its name."""
    return {
        renamed(row.key): (row["class"], row.amount, row.currency, row.holder, row.status)
        for row in rows
    }


def _content(written, parted=("matches", "balances")):
    """The hashes of all tables, and the bytes of those whose order cannot differ."""
    contents, files = written
    return contents, {
        name: data for name, data in files.items() if name.split("/")[1] not in parted
    }


def _but_matches(written):
    """These stand in the order of the books."""
    return _content(written, ("matches",))


def second_pass_of(outcome):
    """The tables that the second pass alone fills."""
    return {name: sorted(collected(outcome.tables[name]), key=str) for name in OF_SECOND_PASS}


@pytest.mark.parametrize(("parts", "places"), [(1, 4), (3, 1), (3, 16), (8, 4)])
def test_order_parts_and_places_do_not_matter(day, first, tmp_path, parts, places):
    again = run(shuffled(read(day.folder), parts), rows=rows_for(places))

    assert _content(written(again, tmp_path)) == _content(first)


def test_a_day_that_is_run_again_has_the_same_bytes(day, first, tmp_path):
    contents, files = written(run(read(day.folder)), tmp_path)

    assert {name.split("/")[1] for name in files} == {*TABLES, "proofs"}
    assert (contents, files) == first


def test_it_does_not_matter_which_bank_comes_first(day, first, tmp_path):
    rules = replace(PLAN.rules, bank=PLAN.rules.bank[::-1])
    again = written(run(read(day.folder, BANKS[::-1]), rules), tmp_path)

    assert _but_matches(again) == _but_matches(first)


def test_a_part_without_rows_adds_nothing(day, first, tmp_path):
    ledgers = read(day.folder)
    more = {
        role: [*table, RowsInMemory(rows_of(table).slice(0, 0))] for role, table in ledgers.items()
    }

    assert written(run(more), tmp_path) == first


@pytest.mark.parametrize("few", [0, core.FEW])
@pytest.mark.parametrize("hashes", [PLAN.transfers, 50])
def test_transfers_whose_hashes_meet_are_told_apart(
    day, whole, first, tmp_path, monkeypatch, hashes, few
):
    def few_hashes(column, seed=0):
        found = hash_column(column, seed)
        is_key = pa.types.is_string(column.type) and pc.all(pc.match_substring(column, "/")).as_py()
        if seed or not is_key:
            return found
        # They are spread again, since their upper bits choose the place.
        return found % np.uint64(hashes) * np.uint64(2**64 // hashes)

    for module in (core, ledgers, sieve):
        monkeypatch.setattr(module, "hash_column", few_hashes)
    again = run(read(day.folder), rows=rows_for(4), few=few)

    assert written(again, tmp_path)[0] == first[0]
    assert second_pass_of(again) == second_pass_of(whole)


@pytest.mark.parametrize("places", [1, 4, 16])
def test_it_does_not_matter_where_the_second_pass_runs(day, whole, first, tmp_path, places):
    again = run(read(day.folder), rows=rows_for(places), few=0)

    assert written(again, tmp_path)[0] == first[0]
    assert second_pass_of(again) == second_pass_of(whole)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("few", [0, core.FEW])
def test_the_workers_of_spark_come_to_the_same(spark, day, whole, first, tmp_path, few):
    again = run(read(day.folder), rows=rows_for(4), few=few, workers=Workers(spark))

    assert written(again, tmp_path)[0] == first[0]
    assert second_pass_of(again) == second_pass_of(whole)


def test_a_credit_to_the_twin_of_a_key_is_no_credit(changed):
    one, twin = hash_column(pa.chunked_array([[ONE, TWIN]]))
    assert one == twin

    found = [row for row in collected(changed.tables["items"]) if row.key in (ONE, TWIN)]
    assert {row.key: row["class"] for row in found} == {
        ONE: "delivered-uncredited",
        TWIN: "credit-without-message",
    }


def test_an_amount_that_the_first_pass_has_no_room_for_is_as_good_as_any(changed, matching):
    matches = collected(changed.tables["matches"])
    (row,) = (row for row in matches if row.key == matching[1])
    assert (row["class"], row.amount) == ("matched", HUGE)


def test_however_many_copies_of_a_message_there_are_it_is_one(changed, matching):
    """More of four messages, each so often."""
    found = {row.key: row["class"] for row in collected(changed.tables["matches"])}
    assert [found[key] for key in matching[2:]] == ["matched"] * len(COPIES)


def test_all_else_is_what_it_was(whole, changed, matching):
    """Of the transfers with which nothing is odd."""
    odd = {ONE, TWIN, *matching}
    found, expected = (
        {row.key: row["class"] for row in rows if row.key not in odd}
        for rows in (collected(changed.tables["items"]), collected(whole.tables["items"]))
    )
    assert found == expected


def test_other_keys_are_other_names_for_the_same_breaks(day, whole):
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


def test_a_day_in_two_parts_comes_to_the_same(day, whole):
    """The same hours, with the cut-off in the middle: what is open then is closed or is open at the
    end, and each transfer's last class is that of the whole day. What is late depends on when a day
    begins, so that is left out.
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
    """What an extract of a part of the time holds; balances are not asked for."""
    start, end = rules.day.window(on)

    def is_inside(name):
        return (pc.field(name) >= start) & (pc.field(name) < end)

    is_told = is_inside("stored_ms") | is_inside("decided_ms")
    return ledgers | {
        Role.ENTRIES: kept(ledgers[Role.ENTRIES], is_inside("recorded_ms")),
        Role.MESSAGES: kept(ledgers[Role.MESSAGES], is_told),
    }
