"""What changes nothing, changes nothing: the order of rows, partitions, banks and names."""

from datetime import date, timedelta
from functools import reduce

import pytest
from msgspec.structs import replace
from pyspark.sql import functions as f

from tests.reconcile.days import BANKS, Plan, write_day
from tests.reconcile.frames import collected, left_by, read
from tests.soak import some_of
from txmq.reconcile import core, sieve
from txmq.reconcile.core import reconcile
from txmq.reconcile.ledgers import EarlierDays, Ledgers
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.results import open_results

PLAN = Plan(transfers=1_500, planted=2, accounts=150, part=400, altered=1)
END_MS = PLAN.rules.day.window(PLAN.day).end_ms
TABLES = ("items", "matches", "balances", "totals")
RUN = "0123456789abcdef"
ONE, TWIN = "icbc/00039789016", "icbc/DMGgcoNKTdR"
"""Keys whose hashes are the same: XXH64 can be turned round step by step, and it was."""
HUGE = 1 << 62
COPIES = 12, 13, 15, 255
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    return write_day(tmp_path_factory.mktemp("day"), PLAN)


@pytest.fixture(scope="module")
def whole(spark, day):
    """What the day comes to as it is."""
    return run(read(spark, day.folder))


@pytest.fixture(scope="module")
def first(whole, tmp_path_factory):
    """The same as files."""
    return written(whole, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def matching(whole):
    """The keys of six transfers of ICBC's that are matched."""
    matched = whole.tables["matches"].where(
        "class = 'matched' and currency = 'CNY' and key like 'icbc/%'"
    )
    return [row.key for row in matched.select("key").distinct().orderBy("key").limit(6).collect()]


@pytest.fixture(scope="module")
def changed(spark, day, matching):
    """What the day comes to if something else is odd about each of these transfers."""
    is_twin, is_huge = (f.col("key") == key for key in matching[:2])
    key = f.when(is_twin, ONE).otherwise(f.col("key"))
    of_credit = f.when(is_twin & (f.col("kind") == "credit"), TWIN).otherwise(key)
    amount = f.col("amount")
    of_entry = f.when(is_huge, f.signum("amount").cast("long") * HUGE).otherwise(amount)
    of_message = f.when(is_huge, f.lit(HUGE)).otherwise(amount)
    copies = dict(zip(matching[2:], COPIES, strict=True))
    often = f.create_map(*(f.lit(each) for pair in copies.items() for each in pair))[f.col("key")]

    ledgers = read(spark, day.folder)
    more = ledgers.messages.where(f.col("key").isin(list(copies))).withColumn(
        "copy", f.explode(f.sequence(f.lit(1), often))
    )
    messages = ledgers.messages.unionByName(more.drop("copy"))
    return run(
        ledgers._replace(
            entries=ledgers.entries.withColumns({"key": of_credit, "amount": of_entry}),
            messages=messages.withColumns({"key": key, "amount": of_message}),
        )
    )


def run(ledgers, rules=PLAN.rules, yesterday=EarlierDays(), on=PLAN.day):  # noqa: B008
    return reconcile(ledgers, yesterday, rules, on, END_MS)


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
    """The same rows in another order, in so many partitions."""
    return Ledgers(*(ledger.orderBy(f.rand(parts)).repartition(parts) for ledger in ledgers))


def breaks(rows, *, renamed=str):
    """What is told of each break, but for its name."""
    return {
        renamed(row.key): (row["class"], row.amount, row.currency, row.holder, row.status)
        for row in rows
    }


@pytest.mark.parametrize("parts", some_of([1, 3, 8], [3]))
def test_order_and_partitions_do_not_matter(spark, day, first, tmp_path, parts):
    """Nor does it whether Spark plans again after each stage, as it does outside of tests."""
    changed = {"shuffle.partitions": str(parts), "adaptive.enabled": "true"}
    before = {name: spark.conf.get(f"spark.sql.{name}") for name in changed}
    set_all(spark, changed)
    try:
        again = written(run(shuffled(read(spark, day.folder), parts)), tmp_path)
    finally:
        set_all(spark, before)

    assert _content(again) == _content(first)


def set_all(spark, settings):
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.{name}", value)


def _content(written, parted=("matches", "balances")):
    """What all tables hold, and the bytes of those that are not parted in another way."""
    contents, files = written
    return contents, {
        name: data for name, data in files.items() if name.split("/")[1] not in parted
    }


def _but_matches(written):
    """These stand in the order of the books."""
    return _content(written, ("matches",))


@pytest.mark.soak  # test_whole_runs.py has it, too.
def test_a_day_that_is_run_again_has_the_same_bytes(spark, day, first, tmp_path):
    contents, files = written(run(read(spark, day.folder)), tmp_path)

    assert {name.split("/")[1] for name in files} == {*TABLES, "proofs"}
    assert (contents, files) == first


@pytest.mark.soak  # test_nothing_of_this_matters_together has it, and so the next ones.
def test_it_does_not_matter_which_bank_comes_first(spark, day, first, tmp_path):
    rules = replace(PLAN.rules, bank=PLAN.rules.bank[::-1])
    again = written(run(read(spark, day.folder, BANKS[::-1]), rules), tmp_path)

    assert _but_matches(again) == _but_matches(first)


@pytest.mark.soak
def test_an_extract_of_no_rows_adds_nothing(spark, day, first, tmp_path):
    again = written(run(with_no_rows_more(read(spark, day.folder))), tmp_path)

    assert _but_matches(again) == _but_matches(first)


def with_no_rows_more(ledgers):
    return Ledgers(*(ledger.unionByName(ledger.limit(0)) for ledger in ledgers))


@pytest.mark.soak
@pytest.mark.parametrize("hashes", [PLAN.transfers, 50])
def test_transfers_whose_hashes_meet_are_told_apart(
    spark, day, first, tmp_path, monkeypatch, hashes
):
    shorten_hashes(monkeypatch, hashes)

    assert _content(written(run(read(spark, day.folder)), tmp_path)) == _content(first)


def shorten_hashes(monkeypatch, hashes):
    """There are no more than these."""
    for room in (core, sieve):
        monkeypatch.setattr(room, "HASH", f"pmod(xxhash64(key), {hashes}) AS hash")


def test_it_does_not_matter_where_the_second_pass_runs(spark, day, whole, first, tmp_path):
    window = PLAN.rules.day.window(PLAN.day)
    again = reconcile(
        read(spark, day.folder), EarlierDays(), PLAN.rules, PLAN.day, window.end_ms, few=0
    )

    assert written(again, tmp_path)[0] == first[0]
    for name in ("closed", "entries", "messages", "failures", "by_hand"):
        there, here = (collected(outcome.tables[name]) for outcome in (again, whole))
        assert sorted(there, key=str) == sorted(here, key=str)


def test_nothing_of_this_matters_together(spark, day, first, tmp_path, monkeypatch):
    """The banks turned round, extracts of no rows, and hashes that meet."""
    shorten_hashes(monkeypatch, 50)
    ledgers = with_no_rows_more(read(spark, day.folder, BANKS[::-1]))
    again = written(run(ledgers, replace(PLAN.rules, bank=PLAN.rules.bank[::-1])), tmp_path)

    assert _but_matches(again) == _but_matches(first)


def test_a_credit_to_the_twin_of_a_key_is_no_credit(spark, changed):
    hashes = spark.createDataFrame([(ONE,), (TWIN,)], "key string").select(f.xxhash64("key"))
    assert hashes.distinct().count() == 1

    found = [row for row in collected(changed.tables["items"]) if row.key in (ONE, TWIN)]
    assert {row.key: row["class"] for row in found} == {
        ONE: "delivered-uncredited",
        TWIN: "credit-without-message",
    }


def test_an_amount_that_the_first_pass_has_no_room_for_is_as_good_as_any(changed, matching):
    (row,) = changed.tables["matches"].where(f.col("key") == matching[1]).collect()
    assert (row["class"], row.amount) == ("matched", HUGE)


def test_however_many_copies_of_a_message_there_are_it_is_one(changed, matching):
    """More of four messages, each so often."""
    found = changed.tables["matches"].where(f.col("key").isin(matching[2:])).collect()
    assert {row.key: row["class"] for row in found} == dict.fromkeys(matching[2:], "matched")


def test_all_else_is_what_it_was(whole, changed, matching):
    """Of the transfers with which nothing is odd."""
    odd = {ONE, TWIN, *matching}
    found, expected = (
        {row.key: row["class"] for row in rows if row.key not in odd}
        for rows in (collected(changed.tables["items"]), collected(whole.tables["items"]))
    )
    assert found == expected


def test_other_keys_are_other_names_for_the_same_breaks(spark, day, whole):
    def renamed(key):
        bank, _, number = key.partition("/")
        return f"{bank}/{number[::-1]}"

    def rename(frame):
        bank, number = (f.split("key", "/")[item] for item in (0, 1))
        return frame.withColumn("key", f.concat_ws("/", bank, f.reverse(number)))

    ledgers = read(spark, day.folder)
    there = run(
        ledgers._replace(
            entries=rename(ledgers.entries).withColumn(
                "key", f.when(f.col("kind") != "other", f.col("key"))
            ),
            messages=rename(ledgers.messages),
            failures=rename(ledgers.failures),
        )
    )

    assert breaks(collected(there.tables["items"])) == breaks(
        collected(whole.tables["items"]), renamed=renamed
    )
    assert sorted(collected(there.tables["totals"])) == sorted(collected(whole.tables["totals"]))


@pytest.mark.soak  # test_planted_cases.py has three dates that follow each other.
def test_a_day_in_two_parts_comes_to_the_same(spark, day, whole):
    """The same hours, with the cut-off in the middle: what is open then is closed or is open at the
    end, and each transfer's last class is that of the whole day. What is late depends on when a day
    begins, so that is left out.
    """
    halved = replace(PLAN.rules, day=replace(PLAN.rules.day, cut_off="05:00"))
    morning, evening = PLAN.day, PLAN.day + timedelta(days=1)
    ledgers = read(spark, day.folder)

    parts = [part(ledgers, halved, item) for item in (morning, evening)]
    noon = halved.day.window(morning).end_ms
    one = reconcile(parts[0], EarlierDays(), halved, morning, noon)
    yesterday = left_by(spark, one, history=parts[0], agreed=one.tables["matches"].select("key"))
    two = reconcile(parts[1], yesterday, halved, evening, END_MS)

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


def part(ledgers: Ledgers, rules, on: date) -> Ledgers:
    """What an extract of a part of the time holds; balances are not asked for."""
    start, end = rules.day.window(on)
    stored, decided = (f.col(name).between(start, end - 1) for name in ("stored_ms", "decided_ms"))
    return ledgers._replace(
        entries=ledgers.entries.where(f.col("recorded_ms").between(start, end - 1)),
        messages=ledgers.messages.where(stored | decided),
    )
