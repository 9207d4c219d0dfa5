"""How messages get into the outbox: by one statement in the application's own transaction.

The rows come as one JSON text and their bodies as one text of bytes, so that one and a thousand are
the same statement. Whoever adds to a lane first takes the lane's lock, in the same statement, and
keeps it until the transaction ends; only then the rows get their ids. So in a lane the order of the
ids is the order of the commits.
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
from txmq.databases.session_adapters import Given
from txmq.databases.tables import create_command
from txmq.errors import LocalProtocolError, TableMissing
from txmq.message import Message
from txmq.outbox.row import check_lane, packed
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy

__all__ = ["Adding"]

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
"""So many commits a second are not slowed down: with 8 who write at once, two to three times as
many were seen as with a word from each."""

_PLACE: Final[Mapping[str, str]] = MappingProxyType({"nth": "INT", "begins": "INT", "size": "INT"})
"""Which row of the statement it is, and where its body is among the bodies."""

_BODIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "substr(CAST(:bodies AS BYTEA), given.begins, given.size)",
        # Not every driver for it can be given bytes.
        "mysql": "FROM_BASE64(given.body)",
        "sqlite": "substr(:bodies, given.begins, given.size)",
    }
)


def _given(kind: str) -> str:
    """The rows as a table."""
    if kind == "mysql":
        wide = {"TEXT": "MEDIUMTEXT"}
        fields = {**_FIELDS, "nth": "INT", "body": "TEXT"}
        columns = ", ".join(
            f"{name} {wide.get(each, each)}{_charset(each)} PATH '$.{name}'"
            for name, each in fields.items()
        )
        return f"JSON_TABLE(:messages, '$[*]' COLUMNS ({columns})) AS given"
    fields = {**_FIELDS, **_PLACE}
    if kind == "postgresql":
        columns = ", ".join(f"{name} {each}" for name, each in fields.items())
        return f"json_to_recordset(CAST(:messages AS JSON)) AS given({columns})"
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in fields)
    return f"(SELECT {columns} FROM json_each(:messages)) AS given"  # noqa: S608 - our own names


def _told(channel: str) -> str:
    """Word to relays, by one of all transactions that add at the same moment.

    PostgreSQL lets one commit at a time through that has something to tell, until it is on the
    disk. Whoever is second in a moment leaves it to the first: the relay that the first one wakes
    looks again soon after.
    """
    who = int.from_bytes(blake2b(channel.encode(), digest_size=4).digest(), signed=True)
    moment = f"floor(extract(epoch from clock_timestamp()) * 1000 / {MOMENT_MS})"
    is_first = f"pg_try_advisory_xact_lock({who}, CAST({moment} % 2147483647 AS INT))"
    return f"(SELECT CASE WHEN {is_first} THEN pg_notify('{channel}', '') END) AS told, "


def _charset(column: str) -> str:
    return "" if column.endswith("INT") else " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


class Adding:
    """Puts messages into one outbox.

    Args:
        rows: Its table.
        lanes: What MySQL's writers wait at, and how many rows that has.
        channel: Where relays are told of it, if they are.
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
        told = "" if channel is None else _told(channel)
        waited, count = lanes[0].alias("waited"), lanes[1]
        asked = text(f"waited.lane = MOD(:lane_key, {count})")
        self._loose = {
            "postgresql": self._insert(self._given("postgresql", told)),
            "mysql": self._insert(self._given("mysql")),
            "sqlite": self._insert(self._given("sqlite")),
        }
        locked = f"pg_advisory_xact_lock(:lane_key) AS waited, {told}"
        self._laned = {
            "postgresql": self._insert(self._given("postgresql", locked)),
            "mysql": self._insert(
                self._given("mysql").select_from(waited).where(asked).with_for_update(),
            ),
        }
        """None of SQLite's, which has one writer at a time."""

    @staticmethod
    def _given(kind: str, before: str = "") -> Select[*tuple[Any, ...]]:
        chosen: list[Any] = [literal_column(f"given.{name}") for name in _FIELDS]
        rows: Select[*tuple[Any, ...]] = select(*chosen, text(_BODIES[kind]), text(NOW_MS[kind]))
        return rows.select_from(text(before + _given(kind))).order_by(text("given.nth"))

    def _insert(self, rows: Select[*tuple[Any, ...]]) -> Executable:
        # SQLAlchemy does not look how many rows went in unless it is asked to.
        put = insert(self._rows).from_select([*_FIELDS, "body", "created_ms"], rows)
        return put.execution_options(preserve_rowcount=True)

    async def put(self, given: Given, messages: Sequence[Message], lane: str | None) -> list[str]:
        """Insert them, in order; returns their ids.

        Raises:
            LocalProtocolError: One could never be sent.
            UsageError: One is a reply, or the session commits each statement.
            LimitExceeded: One is too large.
            TableMissing: The table is not there, or not all of it.
            Exception: Whatever the session's library raises.
        """
        if isinstance(messages, Message) or not isinstance(messages, Sequence):
            raise LocalProtocolError(f"messages are a list, not a {type(messages).__name__}")
        if lane is not None:
            check_lane(lane)
        if not messages:
            return []
        found = [packed(each, lane, self._fresh_id()) for each in messages]
        values = _values(given.kind, found, [each.body for each in messages])
        statement = self._loose[given.kind]
        if lane is not None and given.kind in self._laned:
            statement = self._laned[given.kind]
            values["lane_key"] = self._lane_key(lane)
        try:
            put = await given.ask(statement, **values)
        except Exception as problem:
            if failure(problem) is Failure.MISSING:
                raise self._missing(words(problem)) from problem
            raise
        if put.changed == 0:
            raise self._missing("there is nothing to wait at for a lane")
        return [each["message_id"] for each in found]

    def _missing(self, why: str) -> TableMissing:
        return TableMissing(
            f"there is no outbox {self._rows.fullname} here: run "
            f"`{create_command('outbox', self._rows)}`, or have a migration run what "
            f"`txmq schema sql outbox` prints ({why})"
        )

    def _fresh_id(self) -> str:
        # Each drawn anew: the processes that a server forks would go on counting alike.
        return UniqueIds(self._clock, self._entropy).next()

    def _lane_key(self, lane: str) -> int:
        """The lock of a lane; without the schema, which not everybody says."""
        named = f"{self._rows.name}\0{lane}".encode()
        return int.from_bytes(blake2b(named, digest_size=8).digest()) >> 1


def _values(kind: str, found: list[dict[str, Any]], bodies: Sequence[bytes]) -> dict[str, object]:
    rows = [{name: each for name, each in row.items() if each is not None} for row in found]
    if kind == "mysql":
        for nth, (row, body) in enumerate(zip(rows, bodies, strict=True)):
            row.update(nth=nth, body=b64encode(body).decode())
        return {"messages": json.dumps(rows)}
    begins = 1
    for nth, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        row.update(nth=nth, begins=begins, size=len(body))
        begins += len(body)
    # Plain ASCII, whatever a session's character set is.
    return {"messages": json.dumps(rows), "bodies": b"".join(bodies)}
