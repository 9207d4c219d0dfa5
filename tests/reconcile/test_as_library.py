"""A day from Python: DataFrames of the user's own go in, and DataFrames come out."""

import io
from contextlib import redirect_stdout

import pytest

from tests.docs.checks import CHECKS, see_output
from tests.docs.pages import ROOT, read
from tests.reconcile.whole_stage import THURSDAY, WEDNESDAY
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile import reconcile

pytestmark = pytest.mark.timeout(600)  # The first of them starts Spark.

JOURNAL = ("id", "transfer", "account", "amount", "currency", "kind", "booked_ms", "recorded_ms")
ACCOUNT = ("number", "currency", "balance")


@pytest.fixture
def fresh(wednesday, tmp_path):
    """The banks and the log of Wednesday, without a result."""
    return wednesday[0].copy_without_results(tmp_path / "fresh")


def frames_of(spark, stage, bank):
    def read(table, names):
        return spark.createDataFrame(
            stage.sql(bank, f"SELECT {', '.join(names)} FROM {table}"), names
        )

    return {"entries": read("journal", JOURNAL), "accounts": read("accounts", ACCOUNT)}


def test_a_day_has_its_verdict_before_its_result_is_written(spark, wednesday, fresh):
    day = reconcile(spark, rules=fresh.home / "recon.toml", date="2024-03-06")

    assert fresh.results().current(WEDNESDAY) is None
    _, wanted = wednesday
    assert (day.verdict, day.date) == (wanted.result.verdict, WEDNESDAY)
    assert day.result.totals == wanted.result.totals
    assert [row.key for row in day.items.collect()] == ["icbc/night"]
    assert day.breaks.count() == 0
    assert day.matches.where("class = 'matched'").count() == 8
    assert day.proofs.where("not holds").count() == 0
    assert day.balances.select("bank").distinct().count() == 2

    done = day.write()

    assert done.result == wanted.result
    assert (done.run_id, done.extract_id) == (wanted.run_id, wanted.extract_id)
    assert fresh.results().current(WEDNESDAY) == done
    day.release()
    assert spark.range(3).count() == 3, "a session that was given goes on"


def test_dataframes_of_the_user_replace_the_banks_and_the_log(spark, wednesday, fresh):
    stage, done = wednesday
    log = stage.extract_of(done) / "log/source=log"
    text = (fresh.home / "recon.toml").read_text()
    for bank in ("icbc", "ccb"):
        text = text.replace(f'database = "sqlite:///{bank}.db"\n', "")
    (fresh.home / "recon.toml").write_text(text.replace('directory = "broker"\n', ""))

    day = reconcile(
        spark,
        rules=fresh.home / "recon.toml",
        date=WEDNESDAY,
        banks={bank: frames_of(spark, fresh, bank) for bank in ("icbc", "ccb")},
        messages={
            name: spark.read.parquet(str(log / f"table={name}")) for name in ("messages", "offsets")
        },
    )

    assert day.result.totals == done.result.totals
    assert day.result.controls == done.result.controls
    assert day.write().result.contents == done.result.contents


def test_a_ledger_without_a_source_is_named_before_anything_is_read(spark, fresh):
    path = fresh.home / "recon.toml"
    text = path.read_text()

    def told(text, **given):
        path.write_text(text)
        with pytest.raises((ConfigError, ReconcileRefused)) as found:
            reconcile(spark, rules=path, date=WEDNESDAY, **given)
        return str(found.value)

    journal = spark.createDataFrame([(1,)], "id int")
    nowhere = text.replace('database = "sqlite:///icbc.db"\n', "")
    assert "icbc: it has neither a database nor" in told(nowhere)
    assert "log has no place" in told(text.replace('directory = "broker"\n', ""))
    assert "'icb', which is not one of icbc, ccb" in told(text, banks={"icb": journal})
    assert "icbc: the frame of accounts is missing" in told(text, banks={"icbc": journal})
    both = {"entries": journal, "accounts": journal}
    assert "icbc/entries: column account is missing" in told(text, banks={"icbc": both})
    short = spark.createDataFrame([("icbc/1",)], "key string")
    assert "messages: column" in told(text, messages=short)


def test_a_day_is_not_written_if_the_day_before_has_a_new_result(spark, wednesday, tmp_path):
    later = wednesday[0].copy(tmp_path / "later")
    later.second_day()
    day = reconcile(spark, rules=later.rules, date=THURSDAY)
    later.sql("icbc", "UPDATE journal SET booked_ms = booked_ms + 1 WHERE transfer = 'T1'")
    later.run(spark, WEDNESDAY)

    with pytest.raises(ReconcileRefused, match="another result than when this day was reconciled"):
        day.write()
    assert later.results().current(THURSDAY) is None


def test_the_code_of_the_library_howto_runs(spark):
    page, names = read(ROOT / "docs/howto/reconcile-library.md"), {}
    for block in page.blocks():
        if block.language == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(block.text, names)
        elif block.is_output:
            see_output(block.text, printed.getvalue())
        else:
            CHECKS[block.language](page, block, None)
