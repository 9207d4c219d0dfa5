"""The outbox: a table in which messages wait that belong to a transaction of the application's.

A row is inserted in that transaction and deleted once its message is published; nothing but a
message that nobody takes is ever updated. The rows are spread over a fixed number of slots, which
relays share. In one lane the order of the ids is the order of the commits.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final, overload

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql as _mysql
from sqlalchemy.event import listen

from txmq.databases.dialects import kind_of
from txmq.databases.door import drive
from txmq.databases.session_adapters import AwaitedSession, BlockingSession, Lender
from txmq.databases.tables import any_text, plain_names, statements
from txmq.limits import LANE_CHARS_MAX, MESSAGE_ID_CHARS_MAX, SLOTS, TOPIC_CHARS_MAX
from txmq.message import Message
from txmq.outbox.adding import Adding
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy

__all__ = ["LANES", "SLOTS", "Outbox"]

LANES: Final = SLOTS * SLOTS * 16
"""Rows that MySQL's writers wait at for each other; PostgreSQL has locks without rows."""

_VACUUM: Final = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000"
"""All that is inserted is soon deleted: what is dead is to be swept by its number, not by its share
of a table that is empty most of the time and long when a relay was down."""


class Outbox:
    """The tables under the names that were chosen.

    Args:
        name: The outbox table; the others are called the same with ``_slot``, ``_relay`` and
            ``_lane`` behind it.
        schema: Where they are; otherwise where the session looks first.
        metadata: Yours, where a tool such as Alembic shall see the tables.
        notifies: Whether relays on PostgreSQL are told of a commit. A transaction that notifies
            cannot be prepared for a two-phase commit.
        clock: For the ids of messages.
        entropy: Likewise.

    Raises:
        ConfigError: A name is none that every database takes unquoted.
    """

    def __init__(
        self,
        name: str = "txmq_outbox",
        schema: str | None = None,
        metadata: MetaData | None = None,
        *,
        notifies: bool = True,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        plain_names(name, schema)
        self.metadata = MetaData() if metadata is None else metadata
        self.notifies = notifies
        self.rows = _rows(name, schema, self.metadata)
        self.slots = _slots(name, schema, self.metadata)
        self.relays = _relays(name, schema, self.metadata)
        self.lanes = _lanes(name, schema, self.metadata)
        self._see_to_new_ones()
        self._lender = Lender(self.rows)
        self._adding = Adding(
            self.rows,
            (self.lanes, LANES),
            self.channel if notifies else None,
            clock or SystemClock(),
            entropy or SystemEntropy(),
        )

    @overload
    def add(
        self, session: AwaitedSession, message: Message, lane: str | None = None
    ) -> Coroutine[Any, Any, str]: ...
    @overload
    def add(self, session: BlockingSession, message: Message, lane: str | None = None) -> str: ...
    def add(self, session: Any, message: Message, lane: str | None = None) -> Any:
        """Have a message sent if the session's transaction commits, and only then.

        What is added to a lane is published in the order in which it was committed. Whoever adds
        to it waits for others who did, until their transactions end.

        Args:
            session: SQLAlchemy's ``Session`` or ``Connection``, ``psycopg.Connection``, or
                ``django.db.connection``; with ``await`` the asyncio twin of one of them.
            message: What shall be sent.
            lane: Keeps it in order with others; for most that is an account, or an order's number.

        Returns:
            The message's id, by which consumers tell repeats.

        Raises:
            LocalProtocolError: The message could never be sent, or that is no lane's name.
            LimitExceeded: One of them is too large.
            UsageError: The session commits each statement by itself, or is none.
            TableMissing: There is no outbox in this database.
            Exception: Whatever the session's library raises; a deadlock, where the transactions of
                two add to two lanes in different order.
        """
        given = self._lender.of(session)
        work = _first(self._adding.put(given, [message], lane))
        return drive(work) if given.is_blocking else work

    @overload
    def add_many(
        self, session: AwaitedSession, messages: Sequence[Message], lane: str | None = None
    ) -> Coroutine[Any, Any, list[str]]: ...
    @overload
    def add_many(
        self, session: BlockingSession, messages: Sequence[Message], lane: str | None = None
    ) -> list[str]: ...
    def add_many(self, session: Any, messages: Sequence[Message], lane: str | None = None) -> Any:
        """The same for several messages, in one statement; those of a lane keep their order.

        Args:
            session: As for :meth:`add`.
            messages: What shall be sent; of any topics.
            lane: Of all of them.

        Returns:
            The messages' ids.

        Raises:
            Exception: As for :meth:`add`; then none of them is in.
        """
        given = self._lender.of(session)
        work = self._adding.put(given, messages, lane)
        return drive(work) if given.is_blocking else work

    @property
    def name(self) -> str:
        """The outbox table's, with its schema."""
        return self.rows.fullname

    @property
    def channel(self) -> str:
        """What relays on PostgreSQL listen to."""
        return self.rows.name

    def tables(self, kind: str) -> list[Table]:
        """Those that a database of this family needs: postgresql, mysql or sqlite."""
        others = [self.lanes] if kind == "mysql" else []
        return [self.rows, self.slots, self.relays, *others]

    def first_rows(self, kind: str) -> list[str]:
        """The statements that fill new tables: each slot, and on MySQL each row to wait at."""
        numbers = ", ".join(f"({each})" for each in range(SLOTS))
        slot = self.slots.fullname
        lines = [f"INSERT INTO {slot} (slot) VALUES {numbers}"]  # noqa: S608 - a plain name
        if kind == "mysql":
            chosen = f"SELECT (a.slot * {SLOTS} + b.slot) * 16 + c.slot"
            crossed = f"FROM {slot} a CROSS JOIN {slot} b CROSS JOIN {slot} c WHERE c.slot < 16"
            lines.append(f"INSERT INTO {self.lanes.fullname} (lane) {chosen} {crossed}")
        return lines

    def ddl(self, dialect: str) -> list[str]:
        """The statements that make the tables, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: It is another dialect.
        """
        kind = kind_of(dialect)
        tables = statements(self.tables(kind), kind)
        return [*tables, *self.settings(kind), *self.first_rows(kind)]

    def settings(self, kind: str) -> list[str]:
        """The statements that say how new tables are kept."""
        return [f"ALTER TABLE {self.name} SET ({_VACUUM})"] if kind == "postgresql" else []

    def _see_to_new_ones(self) -> None:
        """Have ``metadata.create_all`` do what follows a CREATE TABLE."""
        self.lanes.add_is_dependent_on(self.slots)
        slots, lanes = self.first_rows("mysql")
        _follow(self.slots, slots, "postgresql", "sqlite", "mysql", "mariadb")
        _follow(self.lanes, lanes, "mysql", "mariadb")
        for each in self.settings("postgresql"):
            _follow(self.rows, each, "postgresql")


def _follow(table: Table, statement: str, *dialects: str) -> None:
    for each in dialects:
        said = DDL(statement)  # type: ignore[no-untyped-call]
        listen(table, "after_create", said.execute_if(dialect=each))


async def _first(work: Coroutine[Any, Any, list[str]]) -> str:
    return (await work)[0]


def _long_text() -> Any:
    of_mysql = _mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    found = Text().with_variant(Text(collation="C"), "postgresql")
    return found.with_variant(of_mysql, "mysql", "mariadb")


def _rows(name: str, schema: str | None, metadata: MetaData) -> Table:
    table = Table(
        name,
        metadata,
        Column(
            "id", BigInteger().with_variant(Integer(), "sqlite"),
            Identity(always=True), primary_key=True,
        ),
        Column("slot", SmallInteger, nullable=False),
        Column("lane", any_text(LANE_CHARS_MAX)),
        Column("message_id", any_text(MESSAGE_ID_CHARS_MAX), nullable=False),
        Column("topic", any_text(TOPIC_CHARS_MAX), nullable=False),
        Column("tags", _long_text(), nullable=False),
        Column("keys_", _long_text(), nullable=False),
        Column("properties", _long_text(), nullable=False),
        Column("flag", Integer, nullable=False),
        Column("delay", any_text(255)),
        Column(
            "body", LargeBinary().with_variant(_mysql.MEDIUMBLOB(), "mysql", "mariadb"),
            nullable=False,
        ),
        Column("created_ms", BigInteger, nullable=False),
        Column("failed_ms", BigInteger),
        Column("problem", _long_text()),
        schema=schema,
        mysql_engine="InnoDB",
        # An id that was given out again could be deleted by whoever still means the first one.
        sqlite_autoincrement=True,
    )  # fmt: skip
    # Relays read on by the primary key, and look for what is before a row in its lane by this one.
    has_lane = table.c.lane.is_not(None)
    Index(
        f"{name}_read", table.c.slot, table.c.lane, table.c.id,
        postgresql_where=has_lane, sqlite_where=has_lane,
    )  # fmt: skip
    return table


def _slots(name: str, schema: str | None, metadata: MetaData) -> Table:
    return Table(
        f"{name}_slot",
        metadata,
        Column("slot", SmallInteger, primary_key=True, autoincrement=False),
        Column("token", any_text(64), nullable=False, server_default=""),
        Column("until_ms", BigInteger, nullable=False, server_default="0"),
        schema=schema,
        mysql_engine="InnoDB",
    )


def _relays(name: str, schema: str | None, metadata: MetaData) -> Table:
    return Table(
        f"{name}_relay",
        metadata,
        Column("token", any_text(64), primary_key=True),
        Column("seen_ms", BigInteger, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
    )


def _lanes(name: str, schema: str | None, metadata: MetaData) -> Table:
    return Table(
        f"{name}_lane",
        metadata,
        Column("lane", Integer, primary_key=True, autoincrement=False),
        schema=schema,
        mysql_engine="InnoDB",
    )
