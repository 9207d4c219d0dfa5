"""The SQL statements of a relay, for each kind of database."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy import Executable, text

from txmq.databases.dialects import NOW_MS
from txmq.outbox.table import Outbox

__all__ = ["COLUMNS", "relay_statements"]

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
"""Passes many numbers as one parameter, so the statement's text does not depend on their count."""

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

_POSITIONS: Final[Mapping[str, str]] = MappingProxyType(
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


def relay_statements(outbox: Outbox, kind: str) -> Mapping[str, Executable]:
    """The statements for one outbox, by name.

    Args:
        outbox: The tables.
        kind: The family of databases.
    """
    rows, slots, relays = outbox.rows.fullname, outbox.slots.fullname, outbox.relays.fullname
    now = NOW_MS[kind]
    ids, mine = _NUMBERS[kind].format("ids"), _NUMBERS[kind].format("slots")
    ours = f"slot IN (SELECT slot FROM {slots} WHERE token = :token)"
    # SQLite has one writer at a time, so there are no locked rows to skip.
    skipping = "" if kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
    texts = {
        "forward": _page(kind, rows, "id > :low"),
        "sweep": _page(
            kind,
            rows,
            f"id > :low AND id <= :high AND NOT (id {_NUMBERS[kind].format('known')}) "
            f"AND (lane IS NULL OR lane NOT IN ({_NAMES[kind]}))",
        ),
        "lanes": _lanes_page(kind, rows),
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
        "remove_dead": f"DELETE FROM {relays} WHERE seen_ms < {now} - 10 * :lease_ms",
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
    return {
        name: text(statement).execution_options(preserve_rowcount=True)
        for name, statement in texts.items()
    }


def _page(kind: str, rows: str, where: str) -> str:
    return _with_row_count(
        kind,
        f"SELECT {COLUMNS} FROM {rows} "
        f"WHERE slot {_NUMBERS[kind].format('slots')} AND failed_ms IS NULL AND {where} "
        "ORDER BY id LIMIT :count",
    )


def _lanes_page(kind: str, rows: str) -> str:
    columns = ", ".join(f"waiting.{column}" for column in COLUMNS.split(", "))
    return _with_row_count(
        kind,
        f"SELECT {columns} FROM {_POSITIONS[kind]} JOIN {rows} AS waiting "
        "ON waiting.slot = asked.slot AND waiting.lane = asked.lane "
        "AND waiting.id > asked.seen AND waiting.id <= :high "
        "WHERE waiting.failed_ms IS NULL ORDER BY waiting.id LIMIT :count",
    )


def _with_row_count(kind: str, chosen: str) -> str:
    """The first rows of a query, until one body exceeds ``:bytes``; each with the number of rows
    the query found.
    """
    size = "OCTET_LENGTH(body)" if kind == "postgresql" else "LENGTH(body)"
    return (
        f"SELECT {COLUMNS}, there FROM (SELECT {COLUMNS}, COUNT(*) OVER () AS there, "
        f"SUM({size}) OVER (ORDER BY id) - {size} AS before_it FROM ({chosen}) AS chosen) "
        "AS measured WHERE before_it <= :bytes ORDER BY id"
    )
