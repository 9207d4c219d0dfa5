"""All readers of a bank see one state: each booking has all of its rows, or none."""

import contextlib
import threading

import pyarrow.parquet as pq
import pytest

from tests.extracts import NOON_MS, bank_of, book, rows_of, rules_of, taken
from txmq.reconcile.extract import postgres as reading

ROWS = 20_000
BOOK = (
    "WITH one AS (SELECT nextval('numbers') AS n) INSERT INTO journal "
    f"SELECT n * 2, 't-' || n, 'alice', -7, 'CNY', 'debit', {NOON_MS} FROM one UNION ALL "
    f"SELECT n * 2 + 1, 't-' || n, 'clearing', 7, 'CNY', 'other', {NOON_MS} FROM one"
)
"""A booking: its two rows add up to nothing."""


@pytest.fixture
def bank(postgres, tmp_path):
    with book("postgresql", postgres, tmp_path) as found:
        found.run("CREATE SEQUENCE numbers")
        found.journal([])
        found.run(
            "INSERT INTO journal SELECT n, 't-' || n / 2, 'alice', CASE n % 2 WHEN 0 THEN -7 "
            f"ELSE 7 END, 'CNY', 'debit', {NOON_MS} FROM generate_series(2, {ROWS + 1}) AS n"
        )
        found.run(f"SELECT setval('numbers', {ROWS})")
        yield found


class Bookings:
    """Books as fast as it can, in threads."""

    def __init__(self, bank):
        self.bank = bank
        self.count = 0
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.work) for _ in range(2)]

    def work(self):
        with self.bank.engine.connect() as connection:
            while not self.stopped.is_set():
                connection.exec_driver_sql(BOOK)
                connection.commit()
                self.count += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *problem):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def sums_of(folder):
    rows = [row for path in (folder / "icbc" / "entries").iterdir() for row in _amounts(path)]
    return len(rows), sum(rows)


def _amounts(path):
    return pq.read_table(path, columns=["amount"])["amount"].to_pylist()


def test_books_balance_in_every_extract_while_others_book(bank, tmp_path):
    rules = rules_of(tmp_path, bank_of(bank))
    counts = []

    with Bookings(bank) as bookings:
        for _ in range(3):
            manifest, folder = taken(rules)
            rows, total = sums_of(folder)
            assert total == 0
            assert rows % 2 == 0
            assert manifest.sources[0].tables[0].written.amounts == {"CNY": 0}
            counts.append(rows)

    assert bookings.count > 0
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]  # They did book meanwhile.


def test_readers_with_snapshots_of_their_own_tear_the_books(bank, tmp_path, monkeypatch):
    """It is the shared snapshot that holds them together, and nothing else."""
    one_by_one, transaction = threading.Lock(), reading._transaction

    @contextlib.contextmanager
    def alone(url, snapshot=""):
        with transaction(url) as connection:
            with one_by_one:
                bank.run(BOOK)
                reading._table(connection, "SELECT 1")
            yield connection

    monkeypatch.setattr(reading, "_transaction", alone)

    with pytest.raises(reading.ReconcileRefused, match="icbc/entries: .* rows were extracted and"):
        taken(rules_of(tmp_path, bank_of(bank)))


def test_what_is_booked_after_the_snapshot_is_in_no_table(bank, tmp_path, monkeypatch):
    exported = reading._export_snapshot

    def then_book(connection):
        found = exported(connection)
        bank.add([{"account": "late", "booked": booked} for booked in (NOON_MS, 0, 1 << 50)])
        return found

    monkeypatch.setattr(reading, "_export_snapshot", then_book)

    _, folder = taken(rules_of(tmp_path, bank_of(bank)))

    for table in ("entries", "opening", "later"):
        assert "late" not in {row["account"] for row in rows_of(folder, table=table)}


def test_a_lock_that_nobody_releases_is_told(bank, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LOCK_S", 1)

    with bank.engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE journal IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(reading.ReconcileRefused, match="icbc: .*lock"):
            taken(rules_of(tmp_path, bank_of(bank)))


def test_a_sqlite_bank_is_read_in_one_state_too(tmp_path):
    with book("sqlite", None, tmp_path) as bank:
        bank.run("PRAGMA journal_mode = WAL")
        bank.journal([{"amount": item} for item in (-7, 7)])
        rules = rules_of(tmp_path, bank_of(bank))
        stopped = threading.Event()

        def work():
            number = 2
            while not stopped.is_set():
                bank.add([{"id": number + 1, "amount": -7}, {"id": number + 2, "amount": 7}])
                number += 2

        thread = threading.Thread(target=work)
        thread.start()
        try:
            counts = []
            for _ in range(5):
                _, folder = taken(rules)
                rows, total = sums_of(folder)
                assert (total, rows % 2) == (0, 0)
                counts.append(rows)
        finally:
            stopped.set()
            thread.join()
        assert counts[-1] > counts[0]
