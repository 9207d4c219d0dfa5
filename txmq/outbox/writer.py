"""Inserts messages into the outbox, by one statement in the application's own transaction.

The rows are passed as one JSON text and their bodies as one byte string, so one row and a thousand
rows use the same statement. The statement first takes the lane's lock, which lasts until the
transaction ends; only then do the rows get their ids. So in a lane the order of the ids is the
order of the commits.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Executable, Select, Table, insert, literal_column, select, text

from txmq.client.identity import UniqueIds
from txmq.databases.dialects import NOW_MS
from txmq.databases.failures import Failure, failure, words
from txmq.databases.session_adapters import CallerSession
from txmq.databases.tables import create_command
from txmq.errors import LocalProtocolError, TableMissing
from txmq.message import Message
from txmq.outbox.row import check_lane, pack
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy

__all__ = ["OutboxWriter"]

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
    """Notify the relays, from one of all transactions that add rows at the same moment.

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
        entropy: Likewise.
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
        # A new generator for each: forked server processes would continue with the same numbers.
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
            raise self._table_missing("its lane table lacks the row to wait at")
        return [row["message_id"] for row in rows]

    def _table_missing(self, why: str) -> TableMissing:
        return TableMissing(
            f"there is no outbox {self._rows.fullname} here: run "
            f"`{create_command('outbox', self._rows)}`, or have a migration run what "
            f"`txmq schema sql outbox` prints ({why})"
        )

    def _lane_key(self, lane: str) -> int:
        """The lock of a lane, without the schema: some callers name it and others do not."""
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
