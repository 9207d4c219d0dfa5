"""Spark writes an extract, and its manifest says what was written."""

from datetime import date
from pathlib import Path

import pytest

from tests.reconcile.extracts import (
    DAY,
    NOON_MS,
    START_MS,
    Books,
    bank_of,
    book,
    extracted,
    rows_of,
    rules_of,
)
from txmq.errors import ReconcileRefused
from txmq.reconcile.extract import extraction

DAY_MS = 86_400_000
LONG_MAX = (1 << 63) - 1


@pytest.fixture
def bank(tmp_path):
    with book("sqlite", None, tmp_path) as found:
        yield found


@pytest.fixture
def rules(bank, tmp_path):
    """Rules of two banks with one journal."""
    return rules_of(tmp_path, bank_of(bank), bank_of(bank, name="ccb"))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_extract_has_the_rows_and_the_totals_of_its_banks(spark, bank, kind, request, tmp_path):
    postgres = request.getfixturevalue("postgres") if kind == "postgresql" else None
    accounts = {"table": "balances", "account": "account", "balance": "balance"}
    accounts["currency"] = {"is": "CNY"}
    with book(kind, postgres, tmp_path) as other:
        other.journal(
            [
                {"amount": 100, "booked": START_MS - 1, "kind": "other"},
                {"amount": -10, "booked": START_MS},
                {"amount": 10, "account": "clearing", "booked": START_MS + DAY_MS - 1},
                {"amount": -3, "booked": START_MS + DAY_MS},
                {"amount": None},
            ]
        )
        other.run("CREATE TABLE balances (account TEXT, balance BIGINT)")
        other.run("INSERT INTO balances VALUES ('alice', 87)")
        if kind != "sqlite":
            bank.journal([{}])
        rules = rules_of(
            tmp_path,
            bank_of(other, accounts=accounts),
            bank_of(bank, name="ccb"),
            limits={"quarantine_max": 1},
        )

        manifest, folder = extracted(spark, rules)
        books = Books(rules)

    for table in ("entries", "opening", "later", "accounts"):
        for name in ("icbc", "ccb"):
            assert rows_of(folder, name, table) == books.rows(name, table)
    entries, opening, later, balances = manifest.sources[0].tables
    assert (entries.written.rows, entries.written.amounts) == (2, {"CNY": 0})
    assert (entries.written.least, entries.written.most) == (2, 3)
    assert entries.written.hash_total == 2 + 3 + 2 * (START_MS + START_MS + DAY_MS - 1)
    assert (opening.written.rows, opening.written.amounts) == (1, {"CNY": 100})
    assert (later.written.rows, balances.written.amounts) == (1, {"CNY": 87})
    assert [(row.row, row.reason) for row in entries.quarantine] == [
        ("id 5, key t-1", "amount is empty")
    ]
    assert "icbc/entries: 3 rows were read, and 1 of them is in quarantine" in manifest.notes
    assert [table.table for table in manifest.sources[1].tables] == ["entries", "opening", "later"]
    assert {part.path for table in manifest.tables for part in table.parts} == {
        str(path.relative_to(folder)) for path in folder.rglob("*.parquet")
    }


def test_the_same_books_give_the_same_extract_and_changed_books_a_new_one(spark, rules, bank):
    bank.journal([{"amount": 1}, {"amount": 1, "account": "bob"}])
    first, folder = extracted(spark, rules)
    again, _ = extracted(spark, rules)
    assert again == first

    bank.run("UPDATE journal SET account = 'mallory' WHERE id = 2")
    other, elsewhere = extracted(spark, rules)

    assert other.controls == first.controls
    assert other.extract_id != first.extract_id
    assert {path.parent for path in folder.parent.glob("*/*")} == {folder, elsewhere}


def test_empty_books_make_an_extract_without_rows(spark, rules, bank):
    bank.journal([])

    manifest, folder = extracted(spark, rules)

    assert rows_of(folder) == rows_of(folder, table="opening") == []
    assert {control.rows for control in manifest.controls} == {0}


def test_totals_beyond_64_bits_are_exact(spark, rules, bank):
    booked = [{"id": (1 << 62) + index, "amount": (1 << 61) - index} for index in range(5)]
    booked += [
        {"account": f"a{index}", "amount": LONG_MAX, "booked": START_MS - 1} for index in range(3)
    ]
    bank.journal(booked)

    manifest, _ = extracted(spark, rules)

    entries, opening, _ = (table.written for table in manifest.sources[0].tables)
    assert entries.amounts == {"CNY": sum(row["amount"] for row in booked[:5])}
    whole = sum(row["id"] + row["amount"] + 2 * NOON_MS for row in booked[:5])
    assert entries.hash_total == whole % (1 << 63)
    assert opening.amounts == {"CNY": 3 * LONG_MAX}


def test_the_log_is_read_after_all_banks(spark, rules, bank, monkeypatch):
    bank.journal([{}])
    there, write = [], extraction.write_sheets

    def watched(frame, folder):
        there.append({path.parent.parent.name for path in folder.local.parent.rglob("*.parquet")})
        write(frame, folder)

    monkeypatch.setattr(extraction, "write_sheets", watched)

    extracted(spark, rules)

    assert there == [set(), {"source=icbc", "source=ccb"}]


def test_a_day_that_is_not_over_is_extracted_as_it_stands(spark, rules, bank):
    bank.journal([{}])

    past, _ = extracted(spark, rules)
    future, _ = extracted(spark, rules, date(2999, 1, 1))

    assert (past.is_final, past.as_of_ms) == (True, past.end_ms)
    assert not future.is_final
    assert future.as_of_ms == min(source.taken_ms for source in future.sources)


def test_a_refusal_by_a_worker_is_an_error_of_the_extract(spark, rules, bank):
    bank.journal([{"currency": "yuan"}])

    told = r"^\w+/entries: 1 row cannot be read, .*currency is 'yuan': not a currency code$"
    with pytest.raises(ReconcileRefused, match=told):
        extracted(spark, rules)
    assert [path.name for path in (open_home(rules) / DAY.isoformat()).iterdir()] == ["lock"]


def open_home(rules):
    return Path(rules.directory, "extracts")
