"""A night that is cleared stays clean, until a fact changes or an explanation is over."""

import json

import pytest
from typer.testing import CliRunner

from tests.reconcile.whole_stage import (
    FRIDAY,
    PAYEE,
    SATURDAY,
    THURSDAY,
    WEDNESDAY,
    Posting,
    Stage,
    at,
)
from tests.servers import spark_session
from txmq.cli.root import app

pytestmark = pytest.mark.timeout(600)  # The first run starts Spark.

BY_HAND = (
    "INSERT INTO journal (transfer, account, amount, currency, kind, booked_ms, recorded_ms) "
    "VALUES ('hand', ?, 60000, 'CNY', 'credit', ?, ?)"
)
SAID = "--by", "Li Na", "--reason", "voucher 771"


@pytest.fixture
def stage(spark, tmp_path, monkeypatch):
    spark_session.lend(monkeypatch, spark)
    stage = Stage.set_up(tmp_path / "cleared")
    stage.first_day()
    when = at(WEDNESDAY, "12:00")
    # One side only, and without the table of accounts.
    stage.sql("ccb", BY_HAND, PAYEE, when, when)
    return stage


def call(stage, day, *arguments, more=()):
    how = ["--date", str(day), "--config", str(stage.home / "recon.toml"), *more]
    return CliRunner().invoke(app, ["reconcile", *arguments, *how])


def run(stage, day, *more):
    found = call(stage, day, more=["--quiet", "--json", *more])
    assert found.stdout, found.stderr
    result = json.loads(found.stdout)["result"]
    return found.exit_code, sorted(
        {proof["proof"] for proof in result["proofs"] if proof["is_open"]}
    )


def test_a_cleared_night_is_clean_until_a_fact_changes(stage):
    code, off = run(stage, WEDNESDAY)
    assert (code, off) == (2, ["account-table", "clearing", "double-entry"])

    # The break explains its own differences, and a person explains the table of accounts.
    hint = json.loads(call(stage, WEDNESDAY, "proofs", "--json").stdout)[0]
    assert (hint["account"], hint["amounts"]) == ("62…0002", [60000])
    explained = call(
        stage, WEDNESDAY, "breaks", "explain", "--class", "credit-without-message", *SAID
    )
    assert explained.exit_code == 0, explained.output
    edited = call(stage, WEDNESDAY, "proofs", "explain", hint["id"], *SAID, "--until", str(FRIDAY))
    assert edited.exit_code == 0, edited.output
    assert run(stage, WEDNESDAY, "--reuse-extract") == (0, [])

    # A clearing row for the same transfer is a new fact, although the facts of the break stay.
    stage.credit("night", 88_00, at(WEDNESDAY, "17:03"))
    stage.poll()
    row = "clearing", at(THURSDAY, "09:00"), at(THURSDAY, "09:00")
    stage.sql("ccb", BY_HAND.replace("60000", "-60001"), *row)
    assert run(stage, THURSDAY) == (2, ["account-table", "clearing", "double-entry"])


@pytest.mark.soak  # test_carried_proofs.py and test_differences.py cover the same on fewer runs.
def test_a_difference_fails_each_night_until_it_is_corrected_or_explained(
    spark, tmp_path, monkeypatch
):
    """A matched transfer lacks a row of clearing, and money leaves clearing without a transfer."""
    spark_session.lend(monkeypatch, spark)
    stage = Stage.set_up(tmp_path / "carried")
    stage.first_day()
    when = at(WEDNESDAY, "12:00")
    stage.order("alone", 700_00, when)
    stage.debit("alone", 700_00, when + 10)
    stage.sql("ccb", BY_HAND.replace("'hand', ?, 60000", "'alone', ?, 70000"), PAYEE, when, when)
    stage.sql("ccb", "UPDATE accounts SET balance = balance + 70000 WHERE number = ?", PAYEE)
    stage.book("ccb", None, "gift", (Posting("clearing", -600_00), Posting(PAYEE, 600_00)), when)
    stage.poll()

    def night(day):
        code, _ = run(stage, day)
        rows = json.loads(call(stage, day, "proofs", "--all", "--json").stdout)
        names = "amounts", "first_seen", "explained_by"
        return code, {row["proof"]: tuple(row[name] for name in names) for row in rows}

    wednesday = str(WEDNESDAY)
    found = {
        "clearing": ([700_00], wednesday, None),
        "clearing-total": ([-600_00], wednesday, None),
        "conservation": ([600_00], wednesday, None),
        "double-entry": ([700_00], wednesday, None),
    }
    assert night(WEDNESDAY) == (2, found)
    stage.credit("night", 88_00, at(WEDNESDAY, "17:03"))
    stage.poll()
    assert night(THURSDAY) == (2, found)
    page = stage.results().folder_of(stage.results().current(THURSDAY)).read("report.html")
    assert b"<small>since 2024-03-06</small>" in page

    for proof in ("clearing-total", "conservation"):
        assert call(stage, THURSDAY, "proofs", "explain", "--proof", proof, *SAID).exit_code == 0
    row = BY_HAND.replace("'hand', ?, 60000", "'alone', ?, -70000")
    stage.sql("ccb", row, "clearing", at(FRIDAY, "09:00"), at(FRIDAY, "09:00"))
    stage.sql("ccb", "UPDATE accounts SET balance = balance - 70000 WHERE number = 'clearing'")
    assert night(FRIDAY) == (
        0,
        {
            "clearing-total": ([-600_00], wednesday, "Li Na"),
            "conservation": ([600_00], wednesday, "Li Na"),
        },
    )


@pytest.mark.soak  # test_differences.py covers the same without Spark.
def test_a_difference_comes_back_when_its_explanation_expires(stage):
    run(stage, WEDNESDAY)
    call(stage, WEDNESDAY, "breaks", "explain", "--class", "credit-without-message", *SAID)
    call(stage, WEDNESDAY, "proofs", "explain", "--proof", "account-table", *SAID,
         "--until", str(FRIDAY))  # fmt: skip
    assert run(stage, WEDNESDAY, "--reuse-extract") == (0, [])
    stage.credit("night", 88_00, at(WEDNESDAY, "17:03"))
    stage.poll()

    assert [run(stage, day)[0] for day in (THURSDAY, FRIDAY)] == [0, 0]
    assert run(stage, SATURDAY) == (2, ["account-table"])


def test_an_unreadable_row_within_the_limit_does_not_stop_the_night(spark, tmp_path, monkeypatch):
    spark_session.lend(monkeypatch, spark)
    stage = Stage.set_up(tmp_path / "unread")
    stage.first_day()
    when = at(WEDNESDAY, "12:00")
    stage.sql("ccb", BY_HAND.replace("60000", "'many'"), PAYEE, when, when)
    stopped = call(stage, WEDNESDAY, more=["--quiet"])
    assert stopped.exit_code == 3
    assert "ccb/entries: 1 row cannot be read, and limits.quarantine_max is 0" in stopped.stderr

    rules = stage.home / "recon.toml"
    rules.write_text(f"{rules.read_text()}\n[limits]\nquarantine_max = 1\n")
    assert run(stage, WEDNESDAY) == (2, ["readable-rows"])
    (row,) = json.loads(call(stage, WEDNESDAY, "proofs", "--json").stdout)
    assert row["bank"] == "ccb"
    assert row["account"].endswith("key hand: amount is 'many': not a whole number of minor units")
    done = stage.results().current(WEDNESDAY)
    page = stage.results().folder_of(done).read("report.html").decode()
    assert "key hand: amount is" in page
    assert "of them is in quarantine" in page
    metrics = stage.results().folder_of(done).read("metrics.prom").decode()
    assert 'txmq_reconcile_quarantined_rows{name="icbc-ccb"} 1.0' in metrics

    explained = ["--proof", "readable-rows", *SAID, "--until", str(FRIDAY)]
    assert call(stage, WEDNESDAY, "proofs", "explain", *explained).exit_code == 0
    # It is still in the journal on the next night, and still explained. Its id is missing.
    stage.credit("night", 88_00, at(WEDNESDAY, "17:03"))
    stage.poll()
    assert run(stage, THURSDAY) == (2, ["gapless"])
