"""A bank's book comes from files, and gives the extract that a database would give."""

import json
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.extracts import DAY, NOON_MS, START_MS, bank_of, book, rows_of, rules_of, taken
from txmq.errors import ConfigError, ReconcileRefused
from txmq.reconcile.rules import read_rules

DAY_MS = 86_400_000
COLUMNS = ("id", "transfer", "account", "amount", "currency", "kind", "booked")
HEAD = """
name = "night"
directory = "recon"
[log]
directory = "log"
[[bank]]
name = "ccb"
"""
ENTRIES = """
[bank.entries]
id = "id"
key = "transfer"
account = "account"
amount = "amount"
currency = "currency"
kind = "kind"
booked = "booked"
namespace = "icbc"
kinds = { debit = ["debit", "D"], credit = ["credit", "C"], return = ["return"] }
clearing = ["clearing"]
"""


def files_of(tmp_path, files, entries=ENTRIES, more=""):
    """Rules of one bank with files."""
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "recon.toml"
    path.write_text(f"{HEAD}[bank.files]\n{files}\n{entries}\n{more}")
    return read_rules(path, {})


def csv_of(tmp_path, text, name="ccb.csv", charset="utf-8"):
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_bytes(text.encode(charset))


WHOLE = 'path = "in/ccb.csv"\nformat = "csv"'
DATED = 'path = "in/ccb-{date}*.csv"\nformat = "csv"'


def lines_of(*rows):
    """A CSV file with a header."""
    usual = {"transfer": "t-1", "account": "alice", "amount": 0, "currency": "CNY"}
    usual |= {"kind": "credit", "booked": NOON_MS}
    lines = [",".join(COLUMNS)]
    for number, row in enumerate(rows, 1):
        full = {"id": number} | usual | row
        lines.append(",".join(str(full[name]) for name in COLUMNS))
    return "\n".join(lines) + "\n"


def test_a_database_and_a_file_of_the_same_day_give_the_same_extract(tmp_path):
    rows = [
        {"amount": 70, "booked": START_MS - 1, "kind": "other", "transfer": None},
        {"amount": 30, "booked": START_MS - DAY_MS, "account": "bob"},
        {"amount": -10, "booked": START_MS, "transfer": "a,\"b\"\nc"},
        {"amount": 10, "account": "clearing", "booked": START_MS + DAY_MS - 1},
        {"amount": -3, "booked": START_MS + DAY_MS, "account": "工商"},
    ]
    with book("sqlite", None, tmp_path) as bank:
        bank.journal(rows)
        told = bank_of(bank, name="ccb")
        manifest, folder = taken(rules_of(tmp_path / "db", told))
        csv_rows = [
            {"id": number, "account": "alice", "currency": "CNY", "kind": "debit"}
            | {"transfer": "t-1", "booked": NOON_MS} | row
            for number, row in enumerate(rows, 1)
        ]
        import csv
        (tmp_path / "in").mkdir()
        with (tmp_path / "in" / "ccb.csv").open("w", encoding="gb18030", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(csv_rows)

        other, elsewhere = taken(files_of(tmp_path, WHOLE + '\ncharset = "gb18030"'))

    for table in ("entries", "opening", "later"):
        assert rows_of(elsewhere, "ccb", table) == rows_of(folder, "ccb", table)
    assert [t.written for t in other.sources[0].tables] == [
        t.written for t in manifest.sources[0].tables
    ]
    assert other.sources[0].kind == "files"
