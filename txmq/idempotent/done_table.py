"""The table of done keys: each key's row is committed together with its work."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Delete,
    Executable,
    Index,
    MetaData,
    Table,
    Text,
    Update,
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

__all__ = ["DoneTable"]

_LOCK: Final = "pg_try_advisory_xact_lock(CAST(:of_lock AS BIGINT))"


class DoneTable:
    """The table, and the statements that use it.

    Args:
        name: The table's name.
        schema: Its schema; by default where the session looks first.
        metadata: Your own, so that a tool such as Alembic sees the table.

    Raises:
        ConfigError: Not every database takes a name unquoted.
    """

    def __init__(
        self,
        name: str = "txmq_done",
        schema: str | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        plain_names(name, schema)
        self.metadata: MetaData = MetaData() if metadata is None else metadata
        self.table: Table = _done(name, schema, self.metadata)
        done = self.table.c
        self._is_this = (
            done.scope == bindparam("of_scope"),
            done.done_key == bindparam("of_key"),
        )
        self.claims: dict[str, Executable] = {
            # SQLAlchemy does not count the inserted rows unless asked to.
            kind: self._claim(kind).execution_options(preserve_rowcount=True)
            for kind in NOW_MS
        }
        look = select(done.fingerprint, done.result).where(*self._is_this)
        self.look: Executable = look
        self.look_now: Executable = look.with_for_update(read=True)
        """The current row: a plain SELECT of MySQL may read an old snapshot."""
        self.keep: Update = (
            update(self.table).where(*self._is_this).values(result=bindparam("as_result"))
        )
        self.remove: Delete = delete(self.table).where(*self._is_this)
        old = (
            select(done.scope, done.done_key)
            .where(done.done_ms < bindparam("before_ms"))
            .order_by(done.done_ms)
            .limit(bindparam("batch"))
        )
        self.old: Executable = old.with_for_update(skip_locked=True)
        self.remove_old: dict[str, Delete] = {
            # A removal does not wait for locks, so it cannot be part of a deadlock.
            "postgresql": delete(self.table).where(tuple_(done.scope, done.done_key).in_(self.old)),
            "sqlite": delete(self.table).where(tuple_(done.scope, done.done_key).in_(old)),
        }

    @property
    def name(self) -> str:
        """The table's name, with its schema."""
        return self.table.fullname

    def lock(self, scope: str, key: str) -> int:
        """The number of PostgreSQL's advisory lock for a key."""
        named = f"{self.table.name}\0{scope}\0{key}".encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest(), signed=True)

    def _claim(self, kind: str) -> Executable:
        """Insert a row, unless one exists or its key is locked."""
        rows: Any = select(
            cast(bindparam("of_scope"), Text),
            cast(bindparam("of_key"), Text),
            cast(bindparam("as_fingerprint"), Text),
            text(NOW_MS[kind]),
        )
        columns = ["scope", "done_key", "fingerprint", "done_ms"]
        if kind == "postgresql":
            # Without the lock this statement would wait for the running attempt, and occupy a
            # connection.
            rows = rows.where(text(_LOCK), text(TURN))
            statement = _postgresql.insert(self.table).from_select(columns, rows)
            return statement.on_conflict_do_nothing().returning(literal_column(TRANSACTION))
        if kind == "sqlite":
            rows = rows.where(text("true"))  # Without it the parser takes ON as part of a join.
            return _sqlite.insert(self.table).from_select(columns, rows).on_conflict_do_nothing()
        # MySQL's INSERT IGNORE would hide other mistakes: there a double key is an error.
        return insert(self.table).from_select(columns, rows)

    def ddl(self, dialect: str) -> list[str]:
        """The statements that create the table, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: The dialect is a different one.
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
