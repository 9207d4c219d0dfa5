"""The outbox: a table of messages that wait to be published.

A row is inserted in a transaction of the application and deleted once its message is published.
A row is updated only if every broker refuses its message. The rows are spread over a fixed number
of slots, which the relays share. In one lane the order of the ids is the order of the commits.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, overload
from zlib import crc32

import msgspec
from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Executable,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    SmallInteger,
    Table,
    Text,
    func,
    insert,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import mysql as _mysql
from sqlalchemy.event import listen
from sqlalchemy.exc import SQLAlchemyError

from txmq.client.identity import UniqueIds
from txmq.client.send.producer import check_kind
from txmq.client.send_request import sealed
from txmq.databases.dialects import NOW_MS, kind_of
from txmq.databases.failures import Failure, failure, words
from txmq.databases.guarded_transaction import drive
from txmq.databases.sources import (
    AwaitedSession,
    BlockingSession,
    CallerSession,
    CallerSessions,
)
from txmq.databases.tables import any_text, create_command, plain_names, statements
from txmq.errors import DatabaseFailed, LimitExceeded, LocalProtocolError, TableMissing
from txmq.limits import LANE_CHARS_MAX, MESSAGE_ID_CHARS_MAX, SLOTS, TOPIC_CHARS_MAX
from txmq.message import Message
from txmq.outbox.publishing import Lane, PublishingDecorator, publishing
from txmq.protocol import properties
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.settings.units import seconds
from txmq.text import quantity

__all__ = ["LANES", "SLOTS", "Outbox", "OutboxWriter", "create_outbox"]

LANES: Final = SLOTS * SLOTS * 16
"""The number of rows that writers lock on MySQL to wait for each other; PostgreSQL has advisory
locks.
"""

_VACUUM: Final = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000"
"""Every inserted row is soon deleted. So vacuum runs by the number of dead rows, not by their share
of the table: usually the table is empty, but after an outage of the relays it is large."""


class Outbox:
    """The tables of an outbox; adds messages to it.

    Args:
        name: The outbox table; the other tables append ``_slot``, ``_relay`` and ``_lane``.
        schema: The tables' schema; by default, the session's default schema.
        metadata: Your own metadata, if a tool such as Alembic should see the tables.
        notifies: Whether a commit notifies relays on PostgreSQL. A transaction that notifies
            cannot be prepared for a two-phase commit.
        clock: For the messages' ids.
        entropy: For the messages' ids.

    Raises:
        ConfigError: A name needs quotes in some database.
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
        self.metadata: MetaData = MetaData() if metadata is None else metadata
        self.notifies = notifies
        self.rows: Table = _rows(name, schema, self.metadata)
        self.slots: Table = _slots(name, schema, self.metadata)
        self.relays: Table = _relays(name, schema, self.metadata)
        self.lanes: Table = _lanes(name, schema, self.metadata)
        self._prepare_create_all()
        self._sessions = CallerSessions(self.rows)
        self._writer = OutboxWriter(
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
        """Send a message if the session's transaction commits, and only then.

        The messages of a lane are published in the order of their commits. A transaction that adds
        to a lane waits until other transactions that added to it have ended.

        Args:
            session: SQLAlchemy's ``Session`` or ``Connection``, ``psycopg.Connection``, or
                ``django.db.connection``; with ``await`` the asyncio twin of one of them.
            message: The message to send.
            lane: Messages of one lane stay in order; usually an account or an order's number.

        Returns:
            The message's id, by which consumers recognize repeats.

        Raises:
            LocalProtocolError: The message could never be sent, or the lane's name is invalid.
            LimitExceeded: The message or the lane's name is too large.
            UsageError: The session commits each statement by itself, or is not a session.
            TableMissing: There is no outbox in this database.
            Exception: Whatever the session's library raises; a deadlock if two transactions add
                to the same two lanes in different order.
        """
        given = self._sessions.find(session)
        work = _first(self._writer.insert(given, [message], lane))
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
        """Add several messages in one statement; in a lane they keep their order.

        Args:
            session: As for :meth:`add`.
            messages: The messages to send, of any topics.
            lane: The lane of all of them.

        Returns:
            The messages' ids.

        Raises:
            Exception: As for :meth:`add`; then none of them was added.
        """
        given = self._sessions.find(session)
        work = self._writer.insert(given, messages, lane)
        return drive(work) if given.is_blocking else work

    def publishes(self, *, lane: Lane = None) -> PublishingDecorator:
        """Add the messages that a function returns, in the transaction of its session; a decorator.

        Below a guard, everything is one commit: the key of the message that is handled, the work,
        and the messages to send::

            @consumer.on("order")
            @idempotent(UniqueKeyTable(engine), key=lambda message: message.key)
            @outbox.publishes()
            def reserve(session: Session, message: ReceivedMessage) -> Message: ...

        The session is the function's first argument, in a method the one after ``self``. It returns
        a message, several, ``None``, or :class:`txmq.Later`, which publishes nothing; its caller
        receives ``None`` or the ``Later``.

        Args:
            lane: The lane of its messages, or a function of the other arguments that returns it.

        Raises:
            UsageError: From a call: the function returned something else, or its first argument is
                not a session.
            Exception: From a call: as for :meth:`add`.
        """
        return publishing(self, lane)

    @property
    def name(self) -> str:
        """The name of the outbox table, with its schema."""
        return self.rows.fullname

    @property
    def channel(self) -> str:
        """The channel that relays on PostgreSQL listen to."""
        return self.rows.name

    def tables(self, kind: str) -> list[Table]:
        """The tables that a database of this family needs: postgresql, mysql or sqlite."""
        others = [self.lanes] if kind == "mysql" else []
        return [self.rows, self.slots, self.relays, *others]

    def first_rows(self, kind: str) -> list[str]:
        """The statements that fill new tables: the slots, and on MySQL the rows that lanes lock."""
        numbers = ", ".join(f"({number})" for number in range(SLOTS))
        slot = self.slots.fullname
        lines = [f"INSERT INTO {slot} (slot) VALUES {numbers}"]  # noqa: S608 - a plain name
        if kind == "mysql":
            chosen = f"SELECT (a.slot * {SLOTS} + b.slot) * 16 + c.slot"
            crossed = f"FROM {slot} a CROSS JOIN {slot} b CROSS JOIN {slot} c WHERE c.slot < 16"
            lines.append(f"INSERT INTO {self.lanes.fullname} (lane) {chosen} {crossed}")
        return lines

    def ddl(self, dialect: str) -> list[str]:
        """The statements that create the tables, for ``postgresql``, ``mysql`` or ``sqlite``.

        Raises:
            ConfigError: The dialect is not supported.
        """
        kind = kind_of(dialect)
        tables = statements(self.tables(kind), kind)
        return [*tables, *self.settings(kind), *self.first_rows(kind)]

    def settings(self, kind: str) -> list[str]:
        """The statements that set the storage options of new tables."""
        return [f"ALTER TABLE {self.name} SET ({_VACUUM})"] if kind == "postgresql" else []

    def _prepare_create_all(self) -> None:
        """Make ``metadata.create_all`` run the statements that follow a CREATE TABLE."""
        self.lanes.add_is_dependent_on(self.slots)
        slots, lanes = self.first_rows("mysql")
        _follow(self.slots, [slots], "postgresql", "sqlite", "mysql", "mariadb")
        _follow(self.lanes, [lanes], "mysql", "mariadb")
        _follow(self.rows, self.settings("postgresql"), "postgresql")


def _follow(table: Table, texts: list[str], *dialects: str) -> None:
    """Run statements after ``table`` was created."""
    for statement in texts:
        for dialect in dialects:
            ddl = DDL(statement)  # type: ignore[no-untyped-call]
            listen(table, "after_create", ddl.execute_if(dialect=dialect))


async def _first(work: Coroutine[Any, Any, list[str]]) -> str:
    return (await work)[0]


def _long_text() -> Any:
    medium = _mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    text = Text().with_variant(Text(collation="C"), "postgresql")
    return text.with_variant(medium, "mysql", "mariadb")


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
        # If ids were reused, a relay that still refers to a deleted row could delete a new one.
        sqlite_autoincrement=True,
    )  # fmt: skip
    # Relays read forward by the primary key, and find a lane's earlier rows by this index.
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


_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "slot": "SMALLINT",
        "lane": "VARCHAR(255)",
        "message_id": "VARCHAR(255)",
        "topic": "VARCHAR(127)",
        "tags": "TEXT",
        "keys_": "TEXT",
        "properties": "TEXT",
        "flag": "INT",
        "delay": "VARCHAR(255)",
    }
)
MOMENT_MS: Final = 5
"""Within one moment a single transaction notifies for all. With 8 concurrent writers this allowed
two to three times as many commits a second as a notification from each.
"""

_PLACE: Final[Mapping[str, str]] = MappingProxyType({"nth": "INT", "begins": "INT", "size": "INT"})
"""The row's number in the statement, and the place of its body among the bodies."""

_BODIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "substr(CAST(:bodies AS BYTEA), given.begins, given.size)",
        # Not every MySQL driver accepts bytes.
        "mysql": "FROM_BASE64(given.body)",
        "sqlite": "substr(:bodies, given.begins, given.size)",
    }
)


def _rows_as_table(kind: str) -> str:
    if kind == "mysql":
        wide = {"TEXT": "MEDIUMTEXT"}
        fields = {**_FIELDS, "nth": "INT", "body": "TEXT"}
        columns = ", ".join(
            f"{name} {wide.get(column, column)}{_charset(column)} PATH '$.{name}'"
            for name, column in fields.items()
        )
        return f"JSON_TABLE(:messages, '$[*]' COLUMNS ({columns})) AS given"
    fields = {**_FIELDS, **_PLACE}
    if kind == "postgresql":
        columns = ", ".join(f"{name} {column}" for name, column in fields.items())
        return f"json_to_recordset(CAST(:messages AS JSON)) AS given({columns})"
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in fields)
    return f"(SELECT {columns} FROM json_each(:messages)) AS given"  # noqa: S608 - our own names


def _notification(channel: str) -> str:
    """Notify the relays, from only one of the transactions that add rows at the same moment.

    PostgreSQL serializes commits that carry a notification, until each is on the disk. So only the
    first transaction of a moment notifies: the relay that it wakes looks again soon after.
    """
    channel_id = int.from_bytes(blake2b(channel.encode(), digest_size=4).digest(), signed=True)
    moment = f"floor(extract(epoch from clock_timestamp()) * 1000 / {MOMENT_MS})"
    is_first = f"pg_try_advisory_xact_lock({channel_id}, CAST({moment} % 2147483647 AS INT))"
    return f"(SELECT CASE WHEN {is_first} THEN pg_notify('{channel}', '') END) AS notified, "


def _charset(column: str) -> str:
    return "" if column.endswith("INT") else " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


class OutboxWriter:
    """Inserts messages into one outbox.

    Args:
        rows: Its table.
        lanes: The table whose rows MySQL's writers lock, and its number of rows.
        channel: The channel of notifications; ``None`` for none.
        clock: For the messages' ids.
        entropy: For the messages' ids.
    """

    def __init__(
        self,
        rows: Table,
        lanes: tuple[Table, int],
        channel: str | None,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._entropy = entropy
        notification = "" if channel is None else _notification(channel)
        waited, count = lanes[0].alias("waited"), lanes[1]
        is_lane = text(f"waited.lane = MOD(:lane_key, {count})")
        self._without_lane = {
            "postgresql": self._insert(self._select("postgresql", notification)),
            "mysql": self._insert(self._select("mysql")),
            "sqlite": self._insert(self._select("sqlite")),
        }
        locked = f"pg_advisory_xact_lock(:lane_key) AS waited, {notification}"
        self._with_lane = {
            "postgresql": self._insert(self._select("postgresql", locked)),
            "mysql": self._insert(
                self._select("mysql").select_from(waited).where(is_lane).with_for_update(),
            ),
        }
        """SQLite needs no lock: it has one writer at a time."""

    @staticmethod
    def _select(kind: str, before: str = "") -> Select[*tuple[Any, ...]]:
        columns: list[Any] = [literal_column(f"given.{name}") for name in _FIELDS]
        rows: Select[*tuple[Any, ...]] = select(*columns, text(_BODIES[kind]), text(NOW_MS[kind]))
        return rows.select_from(text(before + _rows_as_table(kind))).order_by(text("given.nth"))

    def _insert(self, rows: Select[*tuple[Any, ...]]) -> Executable:
        # SQLAlchemy does not count the inserted rows unless asked to.
        statement = insert(self._rows).from_select([*_FIELDS, "body", "created_ms"], rows)
        return statement.execution_options(preserve_rowcount=True)

    async def insert(
        self, given: CallerSession, messages: Sequence[Message], lane: str | None
    ) -> list[str]:
        """Insert messages in order; returns their ids.

        Raises:
            LocalProtocolError: A message could never be sent.
            UsageError: A message is a reply, or the session commits each statement.
            LimitExceeded: A message is too large.
            TableMissing: A table of the outbox is missing or incomplete.
            Exception: Whatever the session's library raises.
        """
        if isinstance(messages, Message) or not isinstance(messages, Sequence):
            raise LocalProtocolError(f"messages must be a list, not a {type(messages).__name__}")
        if lane is not None:
            check_lane(lane)
        if not messages:
            return []
        # A new generator for each id: forked server processes would share a generator's numbers.
        rows = [
            pack(message, lane, UniqueIds(self._clock, self._entropy).next())
            for message in messages
        ]
        values = _values(given.kind, rows, [message.body for message in messages])
        statement = self._without_lane[given.kind]
        if lane is not None and given.kind in self._with_lane:
            statement = self._with_lane[given.kind]
            values["lane_key"] = self._lane_key(lane)
        try:
            answer = await given.execute(statement, **values)
        except Exception as error:
            if failure(error) is Failure.MISSING:
                raise self._table_missing(words(error)) from error
            raise
        if answer.changed == 0:
            raise self._table_missing("its lane table lacks the row to lock")
        return [row["message_id"] for row in rows]

    def _table_missing(self, why: str) -> TableMissing:
        return TableMissing(
            f"this database has no outbox {self._rows.fullname}: run "
            f"`{create_command('outbox', self._rows)}`, or have a migration run what "
            f"`txmq schema sql outbox` prints ({why})"
        )

    def _lane_key(self, lane: str) -> int:
        """The lock key of a lane. It leaves out the schema, which only some callers name."""
        named = f"{self._rows.name}\0{lane}".encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest()) >> 1


def _values(kind: str, packed: list[dict[str, Any]], bodies: Sequence[bytes]) -> dict[str, object]:
    rows = [{name: value for name, value in row.items() if value is not None} for row in packed]
    if kind == "mysql":
        for nth, (row, body) in enumerate(zip(rows, bodies, strict=True)):
            row.update(nth=nth, body=b64encode(body).decode())
        return {"messages": json.dumps(rows)}
    begins = 1
    for nth, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        row.update(nth=nth, begins=begins, size=len(body))
        begins += len(body)
    # json.dumps writes plain ASCII, so the session's character set does not matter.
    return {"messages": json.dumps(rows), "bodies": b"".join(bodies)}


def create_outbox(engine: Engine, name: str = "txmq_outbox", schema: str | None = None) -> bool:
    """Create the missing tables of the outbox and check it; returns whether any was missing.

    Raises:
        ConfigError: A name needs quotes in some database.
        DatabaseFailed: The database refused, or does not answer.
        TableMissing: A table exists, but not all of its rows.
    """
    outbox = Outbox(name, schema)
    kind = kind_of(engine.dialect.name)
    try:
        with engine.begin() as connection:
            tables = outbox.tables(kind)
            there = inspect(connection)
            is_new = not all(there.has_table(table.name, schema) for table in tables)
            outbox.metadata.create_all(connection, tables=tables, checkfirst=True)
        with engine.connect() as connection:
            _check(outbox, kind, connection)
    except SQLAlchemyError as error:
        raise DatabaseFailed(f"could not create {outbox.name}: {words(error)}") from error
    return is_new


def _check(outbox: Outbox, kind: str, connection: Connection) -> None:
    for table in outbox.tables(kind):
        connection.execute(select(table).limit(0))
    wanted = {outbox.slots: SLOTS, **({outbox.lanes: LANES} if kind == "mysql" else {})}
    for table, rows in wanted.items():
        found = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if found != rows:
            raise TableMissing(
                f"{table.fullname} has {quantity(found, 'row')}, not {rows}: drop the table, and "
                "create it again"
            )


_MARK_CHARS: Final = 256
"""Room for the properties that a relay adds."""
_NOT_WAITING: Final = {properties.WAIT: "false"}
_AFTER: Final = "deliver_after_s"
_MARK: Final = {"TXMQ_OUTBOX": "-" * _MARK_CHARS}


def slot_of(text: str) -> int:
    """The slot of a lane, or of the id of a message without a lane."""
    return crc32(text.encode()) % SLOTS


def check_lane(lane: str) -> None:
    """Refuse an invalid lane name.

    Raises:
        LocalProtocolError: It is not a text, is empty, or contains a NUL character.
        LimitExceeded: It is too long.
    """
    if not isinstance(lane, str) or not lane or "\0" in lane:
        raise LocalProtocolError(f"a lane is a text of one or more characters, not {lane!r}")
    if len(lane) > LANE_CHARS_MAX:
        raise LimitExceeded("the length of a lane's name", LANE_CHARS_MAX, len(lane))


def pack(message: Message, lane: str | None, fresh_id: str) -> dict[str, Any]:
    """The columns of a message's row, except its body and its time.

    A message that carries a unique key in its properties keeps it.

    Raises:
        LocalProtocolError: The message could never be sent.
        UsageError: It is a reply.
        LimitExceeded: It is too large.
    """
    check_kind(message)
    if lane is not None:
        check_lane(lane)
    added = _MARK if lane is None else {**_MARK, properties.SHARDING_KEY: lane}
    all_properties = {**(message.properties or {}), **added}
    envelope = sealed(replace(message, properties=all_properties), fresh_id, compress=False)
    try:
        envelope.properties.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"no table can hold this message: {error}") from error
    if "\0" in message.tags or "\0" in envelope.id:
        raise LocalProtocolError("a tag or a message's id holds a character 0")
    if len(envelope.id) > MESSAGE_ID_CHARS_MAX:
        raise LimitExceeded("the length of a message's id", MESSAGE_ID_CHARS_MAX, len(envelope.id))
    after = message.deliver_after
    wanted = {
        "delay_level": message.delay_level or None,
        "deliver_at_ms": message.deliver_at_ms,
        _AFTER: None if after is None else seconds("deliver_after", after),
    }
    delay = {name: value for name, value in wanted.items() if value is not None}
    return {
        "slot": slot_of(lane or envelope.id),
        "lane": lane,
        "message_id": envelope.id,
        "topic": message.topic,
        "tags": message.tags,
        "keys_": _text(list(message.keys)),
        "properties": _text(
            {**(message.properties or {}), **({} if message.wait_stored else _NOT_WAITING)}
        ),
        "flag": message.flag,
        "delay": _text(delay) if delay else None,
    }


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def unpack(row: Any) -> Message:
    """The message of a row; its properties carry its id."""
    stored: Mapping[str, str] = msgspec.json.decode(row.properties, type=dict[str, str])
    delay: dict[str, Any] = msgspec.json.decode(row.delay) if row.delay else {}
    return Message(
        topic=row.topic,
        body=bytes(row.body),
        tags=row.tags,
        keys=msgspec.json.decode(row.keys_, type=tuple[str, ...]),
        properties={**stored, properties.UNIQUE_KEY: row.message_id},
        flag=row.flag,
        delay_level=delay.get("delay_level", 0),
        deliver_at_ms=delay.get("deliver_at_ms"),
        deliver_after=delay.get(_AFTER),
    )
