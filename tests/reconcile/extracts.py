"""Banks' books for tests of extracts: tables in a real database, rules that name their columns."""

import contextlib
from datetime import date

import msgspec
import pyarrow.parquet as pq
from msgspec.structs import replace
from sqlalchemy import NullPool, create_engine, text

from txmq.reconcile.extract import postgres
from txmq.reconcile.extract.bank_source import BankSource, kind_of
from txmq.reconcile.extract.books import BOOKS, BookRequest
from txmq.reconcile.extract.extraction import extract_day
from txmq.reconcile.rules import LogRules, Rules
from txmq.reconcile.storage import open_folder
from txmq.reconcile.tables import LOG_TABLES

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

    def run(self, statement, rows=None):
        with self.engine.begin() as connection:
            connection.execute(text(statement), rows)

    def journal(self, rows, columns=None, name="journal"):
        """A table of entries; rows are dictionaries, which may leave out the usual values."""
        columns = columns or JOURNAL
        named = ", ".join(f'"{column}" {type_}' for column, type_ in columns.items())
        self.run(f"CREATE TABLE {name} ({named})")
        self.add(rows, columns, name)

    def add(self, rows, columns=None, name="journal"):
        columns = list(columns or JOURNAL)
        usual = {"account": "alice", "amount": 0, "currency": "CNY", "kind": "debit"}
        usual |= {"transfer": "t-1", "booked": NOON_MS}
        full = [
            {
                f"v{at}": row.get(column, usual.get(column, number))
                for at, column in enumerate(columns)
            }
            for number, row in enumerate(rows, 1)
        ]
        names = ", ".join(f'"{column}"' for column in columns)
        values = ", ".join(f":v{at}" for at in range(len(columns)))
        if full:
            self.run(f"INSERT INTO {name} ({names}) VALUES ({values})", full)


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
    """A bank with a journal like :data:`JOURNAL`; arguments override its settings."""
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


class Books:
    """What the source of a bank gives, read in this process as workers of Spark read it."""

    def __init__(self, rules, day=DAY):
        self.parts = {}
        self.sheets = {bank.name: list(self._read(rules, bank, day)) for bank in rules.bank}

    def _read(self, rules, bank, day):
        books = BookRequest.of(rules, bank, day)
        if kind_of(bank) != "postgresql":
            yield from self._sheets(bank, BankSource(books.options()))
            return
        with postgres.export_snapshot(books) as (snapshot, _):
            source = BankSource(books.options() | {"snapshot": snapshot})
            yield from self._sheets(bank, source)

    def _sheets(self, bank, source):
        self.parts[bank.name] = source.partitions()
        for part in self.parts[bank.name]:
            for batch in source.read(part):
                yield from batch.to_pylist()

    def rows(self, bank="icbc", table="entries"):
        """The rows of a table, in a fixed order."""
        names = BOOKS[table].names
        found = [row for row in self.sheets[bank] if row["table"] == table]
        return in_order([{name: row[name] for name in names} for row in found])

    def set_aside(self, table="entries"):
        """The rows of the first bank's table that cannot be read: their places, and why."""
        notes = self.rows(next(iter(self.sheets)), "notes")
        return sorted((note["place"], note["note"]) for note in notes if note["about"] == table)


def in_order(rows):
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row.values()])


def extracted(spark, rules, day=DAY):
    """The manifest of an extract that Spark makes, and its folder; its log is empty."""
    folder = open_folder(rules.directory)
    broker = folder.local.parent / "broker"
    (broker / "log").mkdir(parents=True, exist_ok=True)
    rules = replace(rules, log=LogRules(str(broker)))
    manifest = extract_day(spark, rules, day, folder)
    return manifest, folder.at("extracts", day.isoformat(), manifest.extract_id).local


def rows_of(folder, bank="icbc", table="entries"):
    """What was written of a table, in a fixed order."""
    kind, names = ("log", LOG_TABLES) if bank == "log" else ("books", BOOKS)
    files = sorted((folder / kind / f"source={bank}" / f"table={table}").glob("*.parquet"))
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return in_order([{name: row[name] for name in names[table].names} for row in found])
