"""The table of what is done: a row for each key, committed with what it stands for."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Executable,
    Index,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    insert,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import mysql as _mysql
from sqlalchemy.dialects import postgresql as _postgresql
from sqlalchemy.dialects import sqlite as _sqlite

from txmq.databases.canary import TRANSACTION, TURN
from txmq.databases.dialects import NOW_MS
from txmq.databases.tables import any_text, plain_names, plain_text, statements
from txmq.limits import KEY_CHARS_MAX

__all__ = ["Done"]

_LOCK: Final = "pg_try_advisory_xact_lock(CAST(:of_lock AS BIGINT))"


class Done:
    """The table under the name that was chosen, and what is said to it.

    Args:
        name: The table.
        schema: Where it is; otherwise where the session looks first.
        metadata: Yours, where a tool such as Alembic shall see the table.

    Raises:
        ConfigError: A name is none that every database takes unquoted.
    """

    def __init__(
        self,
        name: str = "txmq_done",
        schema: str | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        plain_names(name, schema)
        self.metadata = MetaData() if metadata is None else metadata
        self.table = _done(name, schema, self.metadata)
        done = self.table.c
        self._is_this = (
            done.scope == bindparam("of_scope"),
            done.done_key == bindparam("of_key"),
        )
        self.claims = {
            # SQLAlchemy does not look how many rows went in unless it is asked to.
            kind: self._claim(kind).execution_options(preserve_rowcount=True)
            for kind in NOW_MS
        }
        self.look = select(done.fingerprint, done.result).where(*self._is_this)
        self.look_now = self.look.with_for_update(read=True)
        """As it is now: MySQL shows an old snapshot unless it is asked so."""
        self.keep = update(self.table).where(*self._is_this).values(result=bindparam("as_result"))
        self.remove = delete(self.table).where(*self._is_this)
        old = (
            select(done.scope, done.done_key)
            .where(done.done_ms < bindparam("before_ms"))
            .order_by(done.done_ms)
            .limit(bindparam("batch"))
        )
        self.old = old.with_for_update(skip_locked=True)
        self.remove_old = {
            # Whoever removes waits for nobody, so nobody can wait for it in turn.
            "postgresql": delete(self.table).where(tuple_(done.scope, done.done_key).in_(self.old)),
            "sqlite": delete(self.table).where(tuple_(done.scope, done.done_key).in_(old)),
        }

    @property
    def name(self) -> str:
        """The table's, with its schema."""
        return self.table.fullname

    def lock(self, scope: str, key: str) -> int:
        """The number of the lock that PostgreSQL's transactions have for a key."""
        named = f"{self.table.name}\0{scope}\0{key}".encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), signed=True)

    def _claim(self, kind: str) -> Executable:
        """Insert a row, unless there is one, or its key is locked."""
        rows: Any = select(
            cast(bindparam("of_scope"), Text),
            cast(bindparam("of_key"), Text),
            cast(bindparam("as_fingerprint"), Text),
            text(NOW_MS[kind]),
        )
        columns = ["scope", "done_key", "fingerprint", "done_ms"]
        if kind == "postgresql":
            # Without the lock it would wait for whoever is at work on the key, with a connection.
            rows = rows.where(text(_LOCK), text(TURN))
            put = _postgresql.insert(self.table).from_select(columns, rows)
            return put.on_conflict_do_nothing().returning(literal_column(TRANSACTION))
        if kind == "sqlite":
            rows = rows.where(text("true"))  # Else ON belongs to a join, for its parser.
            return _sqlite.insert(self.table).from_select(columns, rows).on_conflict_do_nothing()
        # MySQL's INSERT IGNORE would hide other mistakes: there a double key is an error.
        return insert(self.table).from_select(columns, rows)

    def ddl(self, dialect: str) -> list[str]:
        """The statements that make the table, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: It is another dialect.
        """
        return statements([self.table], dialect)


def _done(name: str, schema: str | None, metadata: MetaData) -> Table:
    table = Table(
        name,
        metadata,
        Column("scope", any_text(KEY_CHARS_MAX), primary_key=True),
        Column("done_key", any_text(KEY_CHARS_MAX), primary_key=True),
        Column("fingerprint", plain_text(32), nullable=False),
        Column(
            "result", Text().with_variant(_mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")
        ),
        Column("done_ms", BigInteger, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
    Index(f"{name}_time", table.c.done_ms)
    return table
