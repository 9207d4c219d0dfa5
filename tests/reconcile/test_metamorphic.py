"""What changes nothing, changes nothing: the order of rows, partitions, banks and names."""

from datetime import date, timedelta
from functools import reduce

import pytest
from msgspec.structs import replace
from pyspark.sql import functions as f

from tests.reconcile.days import BANKS, Plan, write_day
from tests.reconcile.frames import read
from tests.soak import some_of
from txmq.reconcile import core, rows, sieve
from txmq.reconcile.core import reconcile
from txmq.reconcile.ledgers import EarlierDays, Ledgers
from txmq.reconcile.results import open_results

PLAN = Plan(transfers=1_500, planted=2, accounts=150, part=400, altered=1)
END_MS = PLAN.rules.day.window(PLAN.day).end_ms
TABLES = ("items", "matches", "balances", "proofs", "totals")
RUN = "0123456789abcdef"
ONE, TWIN = "icbc/00039789016", "icbc/DMGgcoNKTdR"
"""Keys whose hashes are the same: XXH64 can be turned round step by step, and it was."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    return write_day(tmp_path_factory.mktemp("day"), PLAN)


@pytest.fixture(scope="module")
def first(spark, day, tmp_path_factory):
    """The day as it is, and what it comes to."""
    return written(run(read(spark, day.folder)), tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def some_matching(spark, day):
    """The keys of four transfers that are matched."""
    matched = run(read(spark, day.folder)).matches.where("class = 'matched' and currency = 'CNY'")
    return [row.key for row in matched.select("key").distinct().orderBy("key").limit(4).collect()]


@pytest.fixture(scope="module")
def matching(some_matching):
    """The key of a transfer that is matched."""
    return some_matching[0]


def run(ledgers, rules=PLAN.rules, yesterday=EarlierDays(), on=PLAN.day):  # noqa: B008
    return reconcile(ledgers, yesterday, rules, on, END_MS)


def written(outcome, folder):
    """The results as files; every table's content, and the bytes of all."""
    with open_results(folder) as results:
        contents = {
            name: results.write_table(name, getattr(outcome, name), PLAN.day, RUN)
            for name in TABLES
        }
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
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(parts))
    try:
        again = written(run(shuffled(read(spark, day.folder), parts)), tmp_path)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)

    assert _content(again) == _content(first)


def _content(written, parted=("matches", "balances")):
    """What all tables hold, and the bytes of those that are not parted in another way."""
    contents, files = written
    return contents, {
        name: data for name, data in files.items() if name.split("/")[1] not in parted
    }


def _but_matches(written):
    """These stand in the order of the books."""
    return _content(written, ("matches",))


def test_a_day_that_is_run_again_has_the_same_bytes(spark, day, first, tmp_path):
    contents, files = written(run(read(spark, day.folder)), tmp_path)

    assert {name.split("/")[1] for name in files} == set(TABLES)
    assert (contents, files) == first


@pytest.mark.soak  # The next test has it, too.
def test_it_does_not_matter_which_bank_comes_first(spark, day, first, tmp_path):
    rules = replace(PLAN.rules, bank=PLAN.rules.bank[::-1])
    again = written(run(read(spark, day.folder, BANKS[::-1]), rules), tmp_path)

    assert _but_matches(again) == _but_matches(first)


def test_the_banks_turned_round_and_no_rows_more_change_nothing(spark, day, first, tmp_path):
    ledgers = read(spark, day.folder, BANKS[::-1])
    twice = Ledgers(*(each.unionByName(each.limit(0)) for each in ledgers))
    again = written(run(twice, replace(PLAN.rules, bank=PLAN.rules.bank[::-1])), tmp_path)

    assert _but_matches(again) == _but_matches(first)


@pytest.mark.parametrize("hashes", some_of([PLAN.transfers, 50], [50]))
def test_transfers_whose_hashes_meet_are_told_apart(
    spark, day, first, tmp_path, monkeypatch, hashes
):
    def short(key):
        return f.pmod(f.xxhash64(key), f.lit(hashes)).alias("hash")

    for room in (core, rows, sieve):
        monkeypatch.setattr(room, "hash_of", short)

    assert _content(written(run(read(spark, day.folder)), tmp_path)) == _content(first)


def test_a_credit_to_the_twin_of_a_key_is_no_credit(spark, day):
    hashes = spark.createDataFrame([(ONE,), (TWIN,)], "key string").select(f.xxhash64("key"))
    assert hashes.distinct().count() == 1
    ledgers = read(spark, day.folder)
    matched = run(ledgers).matches.where("class = 'matched' and key like 'icbc/%'")
    is_it = f.col("key") == matched.agg(f.min("key")).first()[0]
    key = f.when(is_it, ONE).otherwise(f.col("key"))
    of_credit = f.when(is_it & (f.col("kind") == "credit"), TWIN).otherwise(key)
    there = run(
        ledgers._replace(
            entries=ledgers.entries.withColumn("key", of_credit),
            messages=ledgers.messages.withColumn("key", key),
        )
    )

    found = there.items.where(f.col("key").isin(ONE, TWIN)).collect()
    assert {row.key: row["class"] for row in found} == {
        ONE: "delivered-uncredited",
        TWIN: "credit-without-message",
    }


def test_an_amount_that_the_first_pass_has_no_room_for_is_as_good_as_any(spark, day, matching):
    ledgers, is_one, huge = read(spark, day.folder), f.col("key") == matching, 1 << 62
    entries = ledgers.entries.withColumn(
        "amount", f.when(is_one, f.signum("amount").cast("long") * huge).otherwise(f.col("amount"))
    )
    messages = ledgers.messages.withColumn(
        "amount", f.when(is_one, f.lit(huge)).otherwise(f.col("amount"))
    )
    there = run(ledgers._replace(entries=entries, messages=messages))

    (row,) = there.matches.where(is_one).collect()
    assert (row["class"], row.amount) == ("matched", huge)


def test_however_many_copies_of_a_message_there_are_it_is_one(spark, day, some_matching):
    """More of four messages, each so often."""
    copies = dict(zip(some_matching, (12, 13, 15, 255), strict=True))
    ledgers, are_they = read(spark, day.folder), f.col("key").isin(some_matching)
    often = f.create_map(*(f.lit(each) for pair in copies.items() for each in pair))[f.col("key")]
    more = ledgers.messages.where(are_they).withColumn(
        "copy", f.explode(f.sequence(f.lit(1), often))
    )
    there = run(ledgers._replace(messages=ledgers.messages.unionByName(more.drop("copy"))))

    found = {row.key: row["class"] for row in there.matches.where(are_they).collect()}
    assert found == dict.fromkeys(copies, "matched")


@pytest.mark.soak  # Among others, test_the_banks_turned_round_and_no_rows_more_change_nothing.
def test_an_extract_of_no_rows_adds_nothing(spark, day, first, tmp_path):
    ledgers = read(spark, day.folder)
    twice = Ledgers(*(ledger.unionByName(ledger.limit(0)) for ledger in ledgers))

    assert _but_matches(written(run(twice), tmp_path)) == _but_matches(first)


def test_other_keys_are_other_names_for_the_same_breaks(spark, day):
    def renamed(key):
        bank, _, number = key.partition("/")
        return f"{bank}/{number[::-1]}"

    def rename(frame):
        bank, number = (f.split("key", "/")[item] for item in (0, 1))
        return frame.withColumn("key", f.concat_ws("/", bank, f.reverse(number)))

    ledgers = read(spark, day.folder)
    here = run(ledgers)
    there = run(
        ledgers._replace(
            entries=rename(ledgers.entries).withColumn(
                "key", f.when(f.col("kind") != "other", f.col("key"))
            ),
            messages=rename(ledgers.messages),
            failures=rename(ledgers.failures),
        )
    )

    assert breaks(there.items.collect()) == breaks(here.items.collect(), renamed=renamed)
    assert sorted(there.totals.collect()) == sorted(here.totals.collect())


def test_a_day_in_two_parts_comes_to_the_same(spark, day):
    """The same hours, with the cut-off in the middle: what is open then is closed or is open at the
    end, and each transfer's last class is that of the whole day. What is late depends on when a day
    begins, so that is left out.
    """
    halved = replace(PLAN.rules, day=replace(PLAN.rules.day, cut_off="05:00"))
    morning, evening = PLAN.day, PLAN.day + timedelta(days=1)
    ledgers = read(spark, day.folder)
    whole = run(ledgers)

    parts = [part(ledgers, halved, item) for item in (morning, evening)]
    noon = halved.day.window(morning).end_ms
    one = reconcile(parts[0], EarlierDays(), halved, morning, noon)
    names = ("items", "entries", "messages", "failures", "balances")
    left = {name: getattr(one, name).localCheckpoint() for name in names}
    two = reconcile(parts[1], EarlierDays(**left, history=parts[0]), halved, evening, END_MS)

    expected, found = (
        {row.key: row["class"] for row in item.items.where("class <> 'prior-period'").collect()}
        for item in (whole, two)
    )
    assert found == expected
    agreed = [{row.key: row["class"] for row in item.matches.collect()} for item in (one, two)]
    agreed_in_all = reduce(dict.__or__, agreed)
    for key in expected:
        agreed_in_all.pop(key, None)
    closed = {row.key for row in two.closed.collect()}
    assert closed.isdisjoint(expected)
    whole_agreed = {row.key: row["class"] for row in whole.matches.collect()}
    assert {key: agreed_in_all.get(key) for key in whole_agreed} == whole_agreed


def part(ledgers: Ledgers, rules, on: date) -> Ledgers:
    """What an extract of a part of the time holds; balances are not asked for."""
    start, end = rules.day.window(on)
    stored, decided = (f.col(name).between(start, end - 1) for name in ("stored_ms", "decided_ms"))
    return ledgers._replace(
        entries=ledgers.entries.where(f.col("recorded_ms").between(start, end - 1)),
        messages=ledgers.messages.where(stored | decided),
    )
