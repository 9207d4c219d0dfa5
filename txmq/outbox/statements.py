"""What a relay says to a database, in the words of each kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy import Executable, text

from txmq.databases.dialects import NOW_MS
from txmq.outbox.lanes import Stretch
from txmq.outbox.table import Outbox

__all__ = ["COLUMNS", "Statements", "listed", "stretched"]

COLUMNS: Final = (
    "id, slot, lane, message_id, topic, tags, keys_, properties, flag, delay, body"  # in this order
)

_NUMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "= ANY(CAST(:{0} AS BIGINT[]))",
        "mysql": ("IN (SELECT n FROM JSON_TABLE(:{0}, '$[*]' COLUMNS (n BIGINT PATH '$')) AS {0})"),
        "sqlite": "IN (SELECT value FROM json_each(:{0}))",
    }
)
"""Many numbers as one value, so that a statement is the same however many they are."""

_NAMED: Final = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": "SELECT value FROM json_array_elements_text(CAST(:behind AS JSON))",
        "mysql": (
            "SELECT name FROM JSON_TABLE(:behind, '$[*]' "
            f"COLUMNS (name {_NAMED} PATH '$')) AS behind"
        ),
        "sqlite": "SELECT value FROM json_each(:behind)",
    }
)

_STRETCHES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": (
            "json_to_recordset(CAST(:asked AS JSON)) "
            "AS asked(slot SMALLINT, lane TEXT, seen BIGINT)"
        ),
        "mysql": (
            f"JSON_TABLE(:asked, '$[*]' COLUMNS (slot SMALLINT PATH '$.slot', "
            f"lane {_NAMED} PATH '$.lane', seen BIGINT PATH '$.seen')) AS asked"
        ),
        "sqlite": (
            "(SELECT json_extract(value, '$.slot') AS slot, json_extract(value, '$.lane') AS lane, "
            "json_extract(value, '$.seen') AS seen FROM json_each(:asked)) AS asked"
        ),
    }
)


def listed(kind: str, numbers: Iterable[int]) -> str:
    """Numbers as one value."""
    joined = ",".join(map(str, numbers))
    return f"{{{joined}}}" if kind == "postgresql" else f"[{joined}]"


def stretched(stretches: Iterable[Stretch]) -> str:
    """Lanes and up to where they are known, likewise."""
    return json.dumps([each._asdict() for each in stretches])


class Statements:
    """All of them, for one outbox.

    Args:
        outbox: The tables.
        kind: The family of databases.
    """

    def __init__(self, outbox: Outbox, kind: str) -> None:
        self._kind = kind
        self._rows = rows = outbox.rows.fullname
        self._slots = slots = outbox.slots.fullname
        relays = outbox.relays.fullname
        now = NOW_MS[kind]
        ids, mine = _NUMBERS[kind].format("ids"), _NUMBERS[kind].format("slots")
        ours = f"slot IN (SELECT slot FROM {slots} WHERE token = :token)"
        # For SQLite, which has one writer at a time, there is nothing to skip.
        skipping = "" if kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
        said = {
            "forward": self._page("id > :low"),
            "sweep": self._page(
                f"id > :low AND id <= :high AND NOT (id {_NUMBERS[kind].format('known')}) "
                f"AND (lane IS NULL OR lane NOT IN ({_NAMES[kind]}))"
            ),
            "lanes": self._of_lanes(),
            "remove": f"DELETE FROM {rows} WHERE id {ids} AND {ours}",
            "put_aside": f"UPDATE {rows} SET failed_ms = {now}, problem = :problem "
            f"WHERE id = :id AND {ours}",
            "note": f"UPDATE {rows} SET problem = :problem WHERE id = :id "
            f"AND (problem IS NULL OR problem <> :problem) AND {ours}",
            "waiting": "SELECT COUNT(CASE WHEN failed_ms IS NULL THEN 1 END), "
            f"{now} - MIN(CASE WHEN failed_ms IS NULL THEN created_ms END), COUNT(failed_ms) "
            f"FROM {rows}",
            "seen": f"UPDATE {relays} SET seen_ms = {now} WHERE token = :token",
            "join": f"INSERT INTO {relays} (token, seen_ms) VALUES (:token, {now})",
            "leave": f"DELETE FROM {relays} WHERE token = :token",
            "bury": f"DELETE FROM {relays} WHERE seen_ms < {now} - 10 * :lease_ms",
            "living": f"SELECT COUNT(*) FROM {relays} WHERE seen_ms >= {now} - :lease_ms",
            "renew": f"UPDATE {slots} SET until_ms = {now} + :lease_ms WHERE token = :token",
            "held": f"SELECT slot FROM {slots} WHERE token = :token",
            "free": f"SELECT slot FROM {slots} WHERE until_ms < {now} AND token <> :token "
            f"ORDER BY slot LIMIT :count{skipping}",
            "lease": f"UPDATE {slots} SET token = :token, until_ms = {now} + :lease_ms "
            f"WHERE slot {mine} AND until_ms < {now}",
            "release": f"UPDATE {slots} SET token = '', until_ms = 0 "
            f"WHERE slot {mine} AND token = :token",
            "slots": f"SELECT COUNT(*) FROM {slots}",
        }
        self._said: Mapping[str, Executable] = {
            name: text(each).execution_options(preserve_rowcount=True)
            for name, each in said.items()
        }

    def __getitem__(self, name: str) -> Executable:
        return self._said[name]

    def _page(self, where: str) -> str:
        return self._measured(
            f"SELECT {COLUMNS} FROM {self._rows} "
            f"WHERE slot {_NUMBERS[self._kind].format('slots')} AND failed_ms IS NULL AND {where} "
            "ORDER BY id LIMIT :count"
        )

    def _of_lanes(self) -> str:
        columns = ", ".join(f"waiting.{each}" for each in COLUMNS.split(", "))
        return self._measured(
            f"SELECT {columns} FROM {_STRETCHES[self._kind]} JOIN {self._rows} AS waiting "
            "ON waiting.slot = asked.slot AND waiting.lane = asked.lane "
            "AND waiting.id > asked.seen AND waiting.id <= :high "
            "WHERE waiting.failed_ms IS NULL ORDER BY waiting.id LIMIT :count"
        )

    def _measured(self, chosen: str) -> str:
        """The first of these, up to so many bytes of bodies and one body more; with each, how many
        there were to choose from.
        """
        size = "OCTET_LENGTH(body)" if self._kind == "postgresql" else "LENGTH(body)"
        return (
            f"SELECT {COLUMNS}, there FROM (SELECT {COLUMNS}, COUNT(*) OVER () AS there, "
            f"SUM({size}) OVER (ORDER BY id) - {size} AS before_it FROM ({chosen}) AS chosen) "
            "AS measured WHERE before_it <= :bytes ORDER BY id"
        )
