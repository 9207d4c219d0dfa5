"""All readers of a bank see one state: each booking has all of its rows, or none."""

import contextlib
import threading

import pytest
from sqlalchemy.exc import OperationalError

from tests.reconcile.extracts import NOON_MS, Books, bank_of, book, rules_of
from txmq.errors import ReconcileRefused
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


def sums_of(books):
    amounts = [row["amount"] for row in books.rows()]
    return len(amounts), sum(amounts)


def test_every_extract_balances_while_others_book(bank, tmp_path):
    rules = rules_of(tmp_path, bank_of(bank))
    counts = []

    with Bookings(bank) as bookings:
        for _ in range(3):
            books = Books(rules)
            rows, total = sums_of(books)
            assert total == 0
            assert rows % 2 == 0
            counts.append(rows)

    assert bookings.count > 0
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]  # There were bookings during the extracts.


def test_only_a_shared_snapshot_excludes_bookings_between_two_readers(bank, tmp_path, monkeypatch):
    transaction = reading._transaction

    def count(*, is_shared):
        @contextlib.contextmanager
        def booked_before(books, snapshot=""):
            bank.run(BOOK)
            with transaction(books, snapshot if is_shared else "") as connection:
                yield connection

        monkeypatch.setattr(reading, "_transaction", booked_before)
        rows, _ = sums_of(Books(rules_of(tmp_path, bank_of(bank))))
        bank.run(f"DELETE FROM journal WHERE id > {ROWS + 1}")
        return rows

    # One booking precedes the snapshot; without it, later readers see later bookings.
    assert count(is_shared=True) == ROWS + 2
    assert count(is_shared=False) > ROWS + 2


def test_bookings_after_the_snapshot_are_in_no_table(bank, tmp_path, monkeypatch):
    exported = reading.export_snapshot

    @contextlib.contextmanager
    def then_book(books):
        with exported(books) as found:
            bank.add([{"account": "late", "booked": booked} for booked in (NOON_MS, 0, 1 << 50)])
            yield found

    monkeypatch.setattr(reading, "export_snapshot", then_book)

    books = Books(rules_of(tmp_path, bank_of(bank)))

    for table in ("entries", "opening", "later"):
        assert "late" not in {row["account"] for row in books.rows(table=table)}


def test_a_lock_that_is_never_released_is_reported(bank, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_LOCK_S", 1)

    with bank.engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE journal IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(ReconcileRefused, match="icbc: .*lock"):
            Books(rules_of(tmp_path, bank_of(bank)))


def test_the_journal_cannot_be_rewritten_while_it_is_read(bank, tmp_path, monkeypatch):
    exported = reading.export_snapshot

    @contextlib.contextmanager
    def then_rewrite(books):
        with exported(books) as found:
            # VACUUM FULL takes this lock.
            with pytest.raises(OperationalError, match="lock"):
                bank.run("LOCK TABLE journal IN ACCESS EXCLUSIVE MODE NOWAIT")
            yield found

    monkeypatch.setattr(reading, "export_snapshot", then_rewrite)

    assert sums_of(Books(rules_of(tmp_path, bank_of(bank)))) == (ROWS, 0)


def test_rows_of_inheriting_tables_are_read_too(bank, tmp_path):
    bank.run("CREATE TABLE older () INHERITS (journal)")
    bank.run(
        "INSERT INTO older (id, transfer, account, amount, currency, kind, booked) SELECT n, 'T', "
        f"repeat('a', 200), 0, 'CNY', 'debit', {NOON_MS} FROM generate_series(1, 20000) AS n"
    )

    rows, _ = sums_of(Books(rules_of(tmp_path, bank_of(bank))))

    assert rows == ROWS + 20_000


def test_a_sqlite_bank_is_read_in_one_state_too(tmp_path):
    with book("sqlite", None, tmp_path) as bank:
        bank.run("PRAGMA journal_mode = WAL")
        bank.journal([{"amount": amount} for amount in (-7, 7)])
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
                books = Books(rules)
                rows, total = sums_of(books)
                assert (total, rows % 2) == (0, 0)
                counts.append(rows)
        finally:
            stopped.set()
            thread.join()
        assert counts[-1] > counts[0]
