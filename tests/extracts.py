"""Banks' books for tests of extracts: tables in a real database, rules that name their columns."""

import contextlib
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import NullPool, create_engine, text

from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.rules import Rules
from txmq.reconcile.tables import FAILURES, MESSAGES, OFFSETS

DAY = date(2024, 11, 20)
"""It was over before anybody ran this."""
START_MS = 1_732_060_800_000
"""When the day begins in UTC."""
NOON_MS = START_MS + 43_200_000

JOURNAL = {
    "id": "BIGINT",
    "transfer": "TEXT",
    "account": "TEXT",
    "amount": "BIGINT",
    "currency": "TEXT",
    "kind": "TEXT",
    "booked": "BIGINT",
}


class Book:
    """A bank's database."""

    def __init__(self, url):
        self.engine = create_engine(url, poolclass=NullPool)
        self.url = url.render_as_string(hide_password=False) if hasattr(url, "drivername") else url

    def run(self, statement, rows=()):
        with self.engine.begin() as connection:
            if rows or not isinstance(rows, tuple):
                if rows:
                    connection.execute(text(statement), rows)
            else:
                connection.execute(text(statement))

    def journal(self, rows, columns=None, name="journal"):
        """A table of entries; rows are dictionaries, which may leave out what is usual."""
        columns = columns or JOURNAL
        named = ", ".join(f'"{each}" {type_}' for each, type_ in columns.items())
        self.run(f"CREATE TABLE {name} ({named})")
        self.add(rows, columns, name)

    def add(self, rows, columns=None, name="journal"):
        columns = list(columns or JOURNAL)
        usual = {"account": "alice", "amount": 0, "currency": "CNY", "kind": "debit"}
        usual |= {"transfer": "t-1", "booked": NOON_MS}
        full = [
            {each: row.get(each, usual.get(each, number)) for each in columns}
            for number, row in enumerate(rows, 1)
        ]
        names = ", ".join(f'"{each}"' for each in columns)
        self.run(
            f"INSERT INTO {name} ({names}) VALUES ({', '.join(':' + each for each in columns)})",
            full,
        )


@contextlib.contextmanager
def book(kind, postgres, folder):
    """A database of a kind."""
    if kind == "sqlite":
        yield Book(f"sqlite:///{folder / 'bank.db'}")
        return
    with postgres.database() as url:
        yield Book(url)


def rules_of(folder, *banks, **more):
    """Rules of banks, as :func:`bank_of` makes them."""
    plain = {"name": "night", "directory": str(folder / "recon"), "bank": banks}
    return msgspec.convert(plain | {"log": {"directory": "log"}} | more, Rules)


def bank_of(book, name="icbc", accounts=None, zone="UTC", **entries):
    """A bank whose journal is as :data:`JOURNAL` is, but for what is said."""
    columns = {
        "table": "journal",
        "id": "id",
        "key": "transfer",
        "account": "account",
        "amount": "amount",
        "currency": "currency",
        "kind": "kind",
        "booked": "booked",
        "namespace": "icbc",
        "kinds": {"debit": ["debit", "D"], "credit": ["credit", "C"], "return": ["return"]},
        "clearing": ["clearing"],
    }
    found = {"name": name, "database": book.url, "entries": columns | entries, "zone": zone}
    return found | ({} if accounts is None else {"accounts": accounts})


def no_log(rules, window, directory):
    """A log with nothing in it."""
    found = []
    for table in (MESSAGES, FAILURES, OFFSETS):
        with TableWriter(table, directory / "log") as writer:
            pass
        found.append(writer.extracted())
    return ExtractedSource("log", "log", "", 1 << 50, 1 << 50, tuple(found), 0)


def taken(rules, day=DAY, **more):
    """An extract's manifest, and where it is."""
    manifest = extract_day(rules, day, take_log=no_log, **more)
    return manifest, Path(rules.directory, "extracts", day.isoformat(), manifest.extract_id)


def rows_of(folder, bank="icbc", table="entries"):
    """What was written of a table, in a fixed order."""
    files = sorted((folder / bank / table).glob("*.parquet"))
    found = pa.concat_tables([pq.read_table(each) for each in files]).to_pylist()
    return sorted(found, key=lambda row: [(each is not None, each) for each in row.values()])
