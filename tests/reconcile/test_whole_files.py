"""Whole runs over two dates, with one bank's book from CSV files of each date."""

import csv

import pyarrow.compute as pc
import pytest

from tests.reconcile.whole_stage import PAYEE, RULES, THURSDAY, WEDNESDAY, Posting, Stage, at

pytestmark = pytest.mark.timeout(600)

FILES = """[bank.files]
path = "in/ccb-{date}.csv"
format = "csv"
balances = "in/ccb-balances-{date}.csv"
delimiter = ";"
"""
NAMES = ("id", "transfer", "account", "amount", "currency", "kind", "booked_ms", "recorded_ms")


def send(stage, day):
    """The bank sends its files of a date."""
    start_ms, end_ms = stage.rules.day.window(day)
    (stage.home / "in").mkdir(exist_ok=True)
    rows = stage.sql(
        "ccb",
        f"SELECT {', '.join(NAMES)} FROM journal WHERE recorded_ms >= ? AND recorded_ms < ?",
        *(start_ms, end_ms),
    )
    balances = stage.sql("ccb", "SELECT number, currency, balance FROM accounts")
    for name, head, lines in (
        ("ccb", NAMES, rows),
        ("ccb-balances", ("number", "currency", "balance"), balances),
    ):
        with (stage.home / "in" / f"{name}-{day}.csv").open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows([head, *lines])


def stage_of_files(home):
    """CCB's book comes in files."""
    stage = Stage.set_up(home)
    ours, theirs = RULES.rsplit("[[bank]]", 1)
    theirs = theirs.replace('database = "sqlite:///ccb.db"\n', FILES)
    theirs = theirs.replace('table = "journal"\n', "").replace('table = "accounts"\n', "")
    (home / "recon.toml").write_text(f"{ours}[[bank]]{theirs}")
    return stage


def test_a_bank_that_sends_files_is_reconciled_like_one_with_a_database(spark, tmp_path):
    stage = stage_of_files(tmp_path)
    stage.first_day()
    send(stage, WEDNESDAY)

    first = stage.run(spark, WEDNESDAY)

    assert {proof.proof for proof in first.result.proofs if not proof.holds} == set()
    counted = {total.class_: total.transfers for total in first.result.totals}
    assert counted == {"matched": 8, "rolled-back": 1, "in-flight": 1}

    stage.second_day()
    stage.book(
        "ccb", None, "fee", (Posting(PAYEE, -5), Posting("capital", 5)), at(THURSDAY, "12:00")
    )
    send(stage, THURSDAY)
    second = stage.run(spark, THURSDAY)

    assert {proof.proof for proof in second.result.proofs if not proof.holds} == set()
    counted = {total.class_: total.transfers for total in second.result.totals}
    assert counted == {"matched": 4, "delivered-uncredited": 1}
    held = {"roll-forward", "roll-forward-rows", "account-table", "gapless", "double-entry"}
    assert held <= {proof.proof for proof in second.result.proofs}
    balances = stage.results().table("balances", THURSDAY, second.run_id)
    told = dict(stage.sql("ccb", "SELECT number, balance FROM accounts"))
    of_ccb = balances.rows("account", "closing", "bank", where=pc.field("bank") == "ccb")
    assert {row["account"]: row["closing"] for row in of_ccb} == told


@pytest.mark.soak  # test_extract_files.py and test_balance_proofs.py cover its parts.
def test_a_changed_amount_in_a_file_of_a_bank_fails_its_proofs(spark, tmp_path):
    stage = stage_of_files(tmp_path)
    stage.first_day()
    send(stage, WEDNESDAY)
    changed = tmp_path / "in" / f"ccb-{WEDNESDAY}.csv"
    changed.write_text(changed.read_text().replace(";10000;", ";10001;"))

    done = stage.run(spark, WEDNESDAY)

    broken = {proof.proof for proof in done.result.proofs if not proof.holds}
    assert {"account-table", "double-entry"} <= broken
