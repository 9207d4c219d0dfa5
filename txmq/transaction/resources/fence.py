"""The fence: a table in which the first inserted row decides a transaction.

A local transaction first inserts "committed", in its own database transaction. A check inserts
"rolled back". The primary key admits only one of them. A second table with one row, the mark,
stores the fence's version, its identity, and the time up to which rows may have been removed. Each
insert reads the mark in the same statement, so it has no effect in a session of another database,
or for a transaction whose row may have been removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Delete,
    Executable,
    Index,
    MetaData,
    Select,
    SmallInteger,
    Table,
    Text,
    Update,
    bindparam,
    cast,
    delete,
    exists,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql as _postgresql
from sqlalchemy.dialects import sqlite as _sqlite

from txmq.databases.canary import TURN
from txmq.databases.dialects import NOW_MS, kind_of
from txmq.databases.tables import plain_names, plain_text, statements
from txmq.limits import GROUP_CHARS_MAX, XID_CHARS_MAX
from txmq.settings.units import DurationLike, seconds

__all__ = [
    "COMMITTED",
    "FENCE_VERSION",
    "ROLLED_BACK",
    "TRIAL",
    "Fence",
    "check_horizon",
]

FENCE_VERSION: Final = 1
"""The version of the two tables; verified at start."""

COMMITTED: Final = 1
ROLLED_BACK: Final = 2

TRIAL: Final = "txmq:trial:"
"""The prefix of rows that ``verify`` inserts to test a rollback."""

_NAMED: Final = "VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin"

_CLAIMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": (
            "json_to_recordset(CAST(:claims AS JSON)) "
            "AS claim(xid TEXT, owner TEXT, born_ms BIGINT)"
        ),
        "mysql": (
            f"JSON_TABLE(:claims, '$[*]' COLUMNS (xid {_NAMED} PATH '$.xid', "
            f"owner {_NAMED} PATH '$.owner', born_ms BIGINT PATH '$.born_ms')) AS claim"
        ),
        "sqlite": (
            "(SELECT json_extract(value, '$.xid') AS xid, json_extract(value, '$.owner') AS owner, "
            "json_extract(value, '$.born_ms') AS born_ms FROM json_each(:claims)) AS claim"
        ),
    }
)
"""Turns a JSON array of claims into a table."""

_OUR_XMIN: Final = "CAST(CAST(txid_current() % 4294967296 AS TEXT) AS xid)"


class Fence:
    """The two tables under their configured names, and their statements.

    Args:
        name: The fence table; the mark has the same name plus ``_mark``.
        schema: The schema of both tables; by default, the session's default schema.
        metadata: Your own metadata, if a tool such as Alembic should see the tables.

    Raises:
        ConfigError: The name needs quotes in some database.
    """

    def __init__(
        self,
        name: str = "txmq_fence",
        schema: str | None = None,
        metadata: MetaData | None = None,
    ) -> None:
        plain_names(name, schema)
        self.metadata: MetaData = MetaData() if metadata is None else metadata
        self.table: Table = _fence(name, schema, self.metadata)
        self.mark: Table = _mark(name, schema, self.metadata)
        fence, mark = self.table.c, self.mark.c
        self.claims: dict[str, Executable] = {
            # SQLAlchemy reports the number of inserted rows only with this option.
            kind: self._claim(kind).execution_options(preserve_rowcount=True)
            for kind in NOW_MS
        }
        self.claims_of_checks: dict[str, Executable] = {
            kind: self._claim_of_checks(kind) for kind in NOW_MS
        }
        self.outcomes: dict[str, Select[Any, Any, Any]] = {
            kind: select(fence.xid, fence.outcome, fence.owner).where(
                fence.xid.in_(select(literal_column("claim.xid")).select_from(text(claims)))
            )
            for kind, claims in _CLAIMS.items()
        }
        self.outcome: Select[Any, Any] = select(fence.outcome, fence.owner).where(
            fence.xid == bindparam("of_xid")
        )
        self.ours: Select[Any, Any] = self.outcome.where(text(f"xmin = {_OUR_XMIN}"))
        """For PostgreSQL: finds the row only if the current transaction has inserted it."""
        self.outcome_now: Select[Any, Any] = self.outcome.with_for_update(read=True)
        self.about: Select[Any, Any, Any] = select(mark.version, mark.identity, mark.cleaned_ms)
        self.shape: Select[*tuple[Any, ...]] = select(self.table).limit(0)
        self.remove: Delete = delete(self.table).where(fence.xid == bindparam("of_xid"))
        self.old: Select[Any] = (
            select(fence.xid)
            .where(fence.created_ms < bindparam("before_ms"))
            .order_by(fence.created_ms)
            .limit(bindparam("batch"))
        )
        self.remove_old: Delete = delete(self.table).where(fence.xid.in_(self.old))
        self.announce: Update = (
            update(self.mark)
            .where(mark.identity == bindparam("known"), mark.cleaned_ms < bindparam("before_ms"))
            .values(cleaned_ms=bindparam("before_ms"))
        )

    @property
    def name(self) -> str:
        """The fence table's name with its schema."""
        return self.table.fullname

    def _claim(self, kind: str) -> Executable:
        """Insert a row, unless one exists or the mark is not the expected one."""
        mark = self.mark.c
        rows = select(
            cast(bindparam("of_xid"), Text),
            cast(bindparam("as_outcome"), SmallInteger),
            cast(bindparam("by_owner"), Text),
            text(NOW_MS[kind]),
        ).where(mark.identity == bindparam("known"), mark.cleaned_ms <= bindparam("born_ms"))
        if kind == "postgresql":
            rows = rows.where(text(TURN))
        return self._insert(kind, rows)

    def _claim_of_checks(self, kind: str) -> Executable:
        """Insert the rows of many checked transactions; the claims are a JSON array."""
        mark = self.mark.c
        xid: ColumnElement[str] = literal_column("claim.xid")
        owner: ColumnElement[str] = literal_column("claim.owner")
        born_ms: ColumnElement[int] = literal_column("claim.born_ms")
        rows: Select[*tuple[Any, ...]] = (
            select(xid, literal_column(str(ROLLED_BACK)), owner, text(NOW_MS[kind]))
            .select_from(self.mark, text(_CLAIMS[kind]))
            .where(mark.identity == bindparam("known"), mark.cleaned_ms <= born_ms)
        )
        if kind == "mysql":
            # In MySQL, an existing row would fail the whole statement.
            rows = rows.where(~exists().where(self.table.c.xid == xid))
        return self._insert(kind, rows)

    def _insert(self, kind: str, rows: Select[*tuple[Any, ...]]) -> Executable:
        columns = ["xid", "outcome", "owner", "created_ms"]
        if kind == "postgresql":
            return (
                _postgresql.insert(self.table).from_select(columns, rows).on_conflict_do_nothing()
            )
        if kind == "sqlite":
            return _sqlite.insert(self.table).from_select(columns, rows).on_conflict_do_nothing()
        # MySQL's INSERT IGNORE would hide other errors, so a duplicate key raises there.
        return insert(self.table).from_select(columns, rows)

    def ddl(self, dialect: str) -> list[str]:
        """The statements that create the tables, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: The dialect is not supported.
        """
        made = statements([self.table, self.mark], dialect)
        return [*made, self.first_mark(kind_of(dialect))]

    def first_mark(self, kind: str) -> str:
        """The statement that stores the fence's identity, which the database generates."""
        where = f"INSERT INTO {self.mark.fullname} (version, identity, cleaned_ms)"
        return f"{where} VALUES ({FENCE_VERSION}, {_IDENTITY[kind]}, 0)"


def check_horizon(
    *,
    timeout: DurationLike = 60.0,
    check_interval: DurationLike = 60.0,
    check_max: int = 15,
    longest_local: DurationLike = 60.0,
    clocks_apart: DurationLike = 60.0,
) -> float:
    """How long checks of a transaction can still arrive while its group has a live producer.

    The broker sends the first check ``timeout`` after the half message, then one every
    ``check_interval``, ``check_max`` times; one more round may be in progress. A local
    transaction may last ``longest_local``, and clocks may differ. The result is
    ``(check_max + 1) * check_interval + timeout + longest_local + clocks_apart``: 19 minutes with
    the defaults.

    Later checks are possible: a group without a live producer receives them when it comes back, and
    a parked transaction is checked when an operator asks for it. If the transaction is older than
    the fence's oldest row, its row may have been removed, so the answer to such a check is UNKNOWN.
    """
    return (
        (check_max + 1) * seconds("check_interval", check_interval)
        + seconds("timeout", timeout)
        + seconds("longest_local", longest_local)
        + seconds("clocks_apart", clocks_apart)
    )


_IDENTITY: Final = MappingProxyType(
    {
        "postgresql": "CAST(gen_random_uuid() AS TEXT)",
        "mysql": "UUID()",
        "sqlite": "lower(hex(randomblob(16)))",
    }
)


def _fence(name: str, schema: str | None, metadata: MetaData) -> Table:
    outcomes = f"outcome IN ({COMMITTED}, {ROLLED_BACK})"
    table = Table(
        name,
        metadata,
        Column("xid", plain_text(XID_CHARS_MAX), primary_key=True),
        Column("outcome", SmallInteger, nullable=False),
        Column("owner", plain_text(GROUP_CHARS_MAX), nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        CheckConstraint(outcomes, name=f"{name}_outcome"),
        schema=schema,
        mysql_engine="InnoDB",
    )
    Index(f"{name}_created", table.c.created_ms)
    return table


def _mark(name: str, schema: str | None, metadata: MetaData) -> Table:
    return Table(
        f"{name}_mark",
        metadata,
        Column("version", SmallInteger, primary_key=True, autoincrement=False),
        Column("identity", plain_text(36), nullable=False),
        Column("cleaned_ms", BigInteger, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
