"""A relay's database: every operation is one short transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from sqlalchemy import Executable, text

from txmq.databases import dialects
from txmq.databases.adapter import DatabaseAdapter, DatabaseSession
from txmq.databases.dialects import NOW_MS
from txmq.databases.failures import Failure, failure, words
from txmq.databases.guarded_transaction import drive
from txmq.databases.tables import create_command
from txmq.errors import DatabaseFailed, TableMissing, TxmqError
from txmq.limits import RELAY_THREADS, SLOTS
from txmq.outbox.lanes import LanePosition, fair_share
from txmq.outbox.metrics import Backlog
from txmq.outbox.table import Outbox
from txmq.runtime.tasks import Threads
from txmq.text import quantity

__all__ = ["COLUMNS", "BeatResult", "OutboxStore", "Page", "relay_statements"]

T = TypeVar("T")

_BY_INDEX: Final = (
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), "
    "set_config('enable_seqscan', 'off', true)"
)
"""Forces index scans: a plan made for an empty table would also be used when the table is full of
dead rows."""


class Page(NamedTuple):
    """The rows of one read."""

    rows: list[tuple[Any, ...]]
    """In the order of their ids."""
    is_cut: bool
    """True if there may be more rows."""


class BeatResult(NamedTuple):
    """The answer to a heartbeat: this relay's slots, and the number of living relays."""

    held: set[int]
    living: int


class OutboxStore:
    """One relay's access to the outbox; methods raise the errors of the adapter's library.

    Args:
        outbox: The tables.
        adapter: The database.
        token: Identifies the relay.
        lease_s: How long a lease lasts.
        answer_s: The time limit for the database's answer.
    """

    def __init__(
        self,
        outbox: Outbox,
        adapter: DatabaseAdapter[Any],
        token: str,
        lease_s: float,
        answer_s: float,
    ) -> None:
        self._outbox = outbox
        self._adapter = adapter
        self._statements = relay_statements(outbox, adapter.kind)
        # Read committed rows, whatever level the application chose for its own transactions.
        level = dialects.ISOLATION.get(adapter.kind)
        self._isolation = () if level is None else (level,)
        self._by_index = (_BY_INDEX,) if adapter.kind == "postgresql" else ()
        self._token = token
        self._lease_ms = int(lease_s * 1000)
        self._answer_s = answer_s
        self._threads = Threads("txmq-relay", RELAY_THREADS)
        self._running: dict[asyncio.Future[object], None] = {}
        self._counting: asyncio.Future[object] | None = None
        self.problems: tuple[type[Exception], ...] = (
            *adapter.problems,
            DatabaseFailed,
            TimeoutError,
        )

    async def close(self) -> None:
        """Wait for work in threads, and end the threads."""
        await self._wait_for_threads()
        self._threads.close()

    async def verify(self) -> None:
        """Check that the tables exist.

        Raises:
            TableMissing: A table, or a row of a table, is missing.
            DatabaseFailed: The database does not answer.
        """
        name = self._outbox.name
        hint = f"`{create_command('outbox', self._outbox.rows)}` creates it"
        try:
            found = await self.run(self._count_slots)
        except self.problems as error:
            if failure(error) in {Failure.MISSING, Failure.CHANGED}:
                raise TableMissing(f"{name} does not exist: {words(error)}; {hint}") from error
            raise DatabaseFailed(f"{name} cannot be read: {words(error)}") from error
        if found != SLOTS:
            raise TableMissing(f"{name} has {quantity(found, 'slot')}, not {SLOTS}; {hint}")

    async def _count_slots(self, db: DatabaseSession[Any]) -> int:
        await db.execute(self._statements["forward"], slots=self._list([]), low=0, count=1, bytes=1)
        await db.execute(self._statements["living"], lease_ms=self._lease_ms)
        return int((await db.execute(self._statements["slots"])).rows[0][0])

    # Reading

    async def forward(self, slots: Sequence[int], low: int, count: int, size: int) -> Page:
        """Rows of some slots after an id: up to ``count`` rows and about ``size`` bytes."""
        values = {"slots": self._list(slots), "low": low}
        return await self._read("forward", count, size, **values)

    async def sweep(
        self,
        slots: Sequence[int],
        low: int,
        high: int,
        known: Collection[int],
        behind: list[str],
        count: int,
        size: int,
    ) -> Page:
        """Rows between two ids, except known rows and the rows of lanes that are behind."""
        return await self._read(
            "sweep", count, size, slots=self._list(slots), low=low, high=high,
            known=self._list(known), behind=json.dumps(behind),
        )  # fmt: skip

    async def lanes(
        self, positions: Sequence[LanePosition], high: int, count: int, size: int
    ) -> Page:
        """Rows of some lanes, from each lane's position up to an id."""
        asked = json.dumps([position._asdict() for position in positions])
        return await self._read("lanes", count, size, asked=asked, high=high)

    async def _read(self, name: str, count: int, size: int, **values: object) -> Page:
        async def read(db: DatabaseSession[Any]) -> Page:
            found = await db.execute(self._statements[name], count=count, bytes=size, **values)
            there = found.rows[0][-1] if found.rows else 0
            return Page(found.rows, there >= count or len(found.rows) < there)

        return await self.run(read, *self._by_index)

    # Completion

    async def remove(self, ids: Sequence[int]) -> int:
        """Delete rows of this relay's slots; return the number that existed."""
        return await self._change("remove", *self._by_index, ids=self._list(ids))

    async def put_aside(self, row_id: int, problem: str) -> bool:
        """Put a row aside because every broker refuses its message; return whether this relay still
        owned it.
        """
        return await self._change("put_aside", id=row_id, problem=problem) > 0

    async def note(self, row_id: int, problem: str) -> None:
        """Record why a row waits."""
        await self._change("note", id=row_id, problem=problem)

    async def _change(self, name: str, *first: str, **values: object) -> int:
        async def change(db: DatabaseSession[Any]) -> int:
            statement = self._statements[name]
            return (await db.execute(statement, token=self._token, **values)).changed

        return await self.run(change, *self._isolation, *first)

    # Slots

    async def beat(self) -> BeatResult:
        """Report this relay as alive, renew its leases, and take free slots up to a fair share."""
        ours = {"token": self._token, "lease_ms": self._lease_ms}

        async def beat(db: DatabaseSession[Any]) -> BeatResult:
            seen = await db.execute(self._statements["seen"], token=self._token)
            if not seen.changed:
                await db.execute(self._statements["join"], token=self._token)
            await db.execute(self._statements["remove_dead"], lease_ms=self._lease_ms)
            await db.execute(self._statements["renew"], **ours)
            answer = await db.execute(self._statements["living"], lease_ms=self._lease_ms)
            living = int(answer.rows[0][0])
            held = await self._held(db)
            missing = fair_share(living) - len(held)
            if missing > 0:
                free = await db.execute(self._statements["free"], token=self._token, count=missing)
                if free.rows:
                    slots = self._list([slot for (slot,) in free.rows])
                    await db.execute(self._statements["lease"], slots=slots, **ours)
                    held = await self._held(db)
            return BeatResult(held, living)

        return await self.run(beat, *self._isolation)

    async def _held(self, db: DatabaseSession[Any]) -> set[int]:
        found = await db.execute(self._statements["held"], token=self._token)
        return {int(slot) for (slot,) in found.rows}

    async def release(self, slots: Collection[int]) -> None:
        """Release some slots of this relay."""
        await self._change("release", slots=self._list(slots))

    async def leave(self) -> None:
        """Release all slots of this relay, and no longer count it as alive."""
        # A heartbeat whose caller was cancelled continues in its thread, and may still take slots.
        await self._wait_for_threads()

        async def leave(db: DatabaseSession[Any]) -> None:
            slots = self._list(await self._held(db))
            await db.execute(self._statements["release"], slots=slots, token=self._token)
            await db.execute(self._statements["leave"], token=self._token)

        await self.run(leave, *self._isolation)

    # Figures

    async def waiting(self) -> Backlog:
        """The number of rows in the outbox now."""

        async def count(db: DatabaseSession[Any]) -> Backlog:
            rows, oldest_ms, failed = (await db.execute(self._statements["waiting"])).rows[0]
            age_s = max(0.0, float(oldest_ms or 0) / 1000)
            return Backlog(rows=int(rows), oldest_s=age_s, failed=int(failed))

        if not self._adapter.is_blocking:
            return await self.run(count)
        # A slow count of many rows must not occupy all threads: callers share one count.
        if self._counting is None or self._counting.done():
            self._counting = self._start_thread(self._in_session(count))
        return cast(Backlog, await self._wait_for(self._counting))

    # Sessions and threads

    async def run(
        self, work: Callable[[DatabaseSession[Any]], Coroutine[Any, Any, T]], *first: str
    ) -> T:
        """Run ``first``, then the work, in one new transaction, and commit it."""
        result = self._in_session(work, *first)
        if self._adapter.is_blocking:
            return cast(T, await self._wait_for(self._start_thread(result)))
        async with asyncio.timeout(self._answer_s):
            return await result

    def _start_thread(self, work: Coroutine[Any, Any, object]) -> asyncio.Future[object]:
        running = self._threads.run(partial(drive, work))
        self._running[running] = None
        running.add_done_callback(self._forget_thread)
        return running

    async def _wait_for_threads(self) -> None:
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._answer_s)

    async def _wait_for(self, running: asyncio.Future[object]) -> object:
        async with asyncio.timeout(self._answer_s):
            # A thread cannot be interrupted, and it still uses its connection.
            return await asyncio.shield(running)

    def _forget_thread(self, running: asyncio.Future[object]) -> None:
        del self._running[running]
        if not running.cancelled():
            running.exception()  # Marks it as retrieved: its caller may have given up waiting.

    async def _in_session(
        self, work: Callable[[DatabaseSession[Any]], Coroutine[Any, Any, T]], *first: str
    ) -> T:
        try:
            db = await self._adapter.open()
            try:
                for statement in first:
                    await db.execute(statement)
                result = await work(db)
                # Reads commit too: after a rollback psycopg drops the service's prepared statements
                # on the connection.
                await db.commit(is_last=True)
                return result
            finally:
                await db.close()
        except Exception as error:
            if isinstance(error, (*self.problems, TxmqError)):
                raise
            # A source may run any code to connect, for example to fetch a password.
            why = f"{type(error).__name__}: {words(error)}"
            raise DatabaseFailed(f"no connection to the database: {why}") from error

    def _list(self, numbers: Collection[int]) -> str:
        """Numbers as one parameter."""
        joined = ",".join(map(str, numbers))
        return f"{{{joined}}}" if self._adapter.kind == "postgresql" else f"[{joined}]"


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
    """The first rows of a query, until their bodies exceed ``:bytes``; each with the number of rows
    that the query found.
    """
    size = "OCTET_LENGTH(body)" if kind == "postgresql" else "LENGTH(body)"
    return (
        f"SELECT {COLUMNS}, there FROM (SELECT {COLUMNS}, COUNT(*) OVER () AS there, "
        f"SUM({size}) OVER (ORDER BY id) - {size} AS before_it FROM ({chosen}) AS chosen) "
        "AS measured WHERE before_it <= :bytes ORDER BY id"
    )
