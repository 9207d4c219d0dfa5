"""A database in which effects are counted: rows that are only inserted, and an account."""

from collections import Counter

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, text

from txmq.idempotent.unique_key import DoneTable

__all__ = ["EFFECT", "PAYMENT", "SECRET", "STOCK", "Effects", "engine_options"]

SECRET = b"of these tests alone"
STOCK = Table(
    "stock",
    MetaData(),
    Column("id", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
)
"""Rows that have versions."""

EFFECT = text("INSERT INTO effects (done_key) VALUES (:key)")
PAYMENT = text("UPDATE account SET balance = balance + 1")


def engine_options(url):
    """Give SQLite's writers, which take turns, a long time to wait for each other."""
    return {"connect_args": {"timeout": 30}} if url.get_backend_name() == "sqlite" else {}


class Effects:
    """The effects in a database, as an outside observer sees them."""

    def __init__(self, url):
        self.url = url
        self._engine = create_engine(_blocking(url), **engine_options(url))

    def prepare(self):
        if self.url.get_backend_name() == "sqlite":
            event.listen(self._engine, "connect", _as_for_many)
        DoneTable().metadata.create_all(self._engine)
        STOCK.metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (done_key TEXT NOT NULL)"))
            connection.execute(text("CREATE TABLE account (balance BIGINT NOT NULL)"))
            connection.execute(text("INSERT INTO account VALUES (0)"))
        return self

    def by_key(self):
        with self._engine.connect() as connection:
            return Counter(connection.execute(text("SELECT done_key FROM effects")).scalars())

    def balance(self):
        with self._engine.connect() as connection:
            return connection.execute(text("SELECT balance FROM account")).scalar_one()

    def rows_done(self):
        """The number of rows in the table of done keys and the table with versions."""
        with self._engine.connect() as connection:
            return sum(
                connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                for table in ("txmq_done", "stock")
            )

    def close(self):
        self._engine.dispose()


def _blocking(url):
    return url.set(drivername="sqlite") if url.get_backend_name() == "sqlite" else url


def _as_for_many(connection, record):
    del record
    connection.execute("PRAGMA journal_mode = WAL")
