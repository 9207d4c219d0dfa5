"""An operator's access to the rows of an outbox: list, show, retry and put aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
    and_,
    case,
    distinct,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from txmq.databases.dialects import NOW_MS, kind_of
from txmq.databases.failures import Failure, failure, words
from txmq.databases.tables import create_command
from txmq.errors import DatabaseFailed, NotFound, TableMissing
from txmq.message import Message
from txmq.outbox.table import Outbox, unpack

__all__ = ["COUNTED_MAX", "OutboxOperator", "OutboxSummary", "WaitingMessage"]

COUNTED_MAX: Final = 100_000
"""The most rows that a summary counts: counting millions would take seconds."""
_RECENT_MS: Final = 60_000
"""A relay reports itself as alive several times a minute."""


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A row of the outbox, without its body."""

    id: int
    state: str
    """``waiting``, ``blocked`` if a relay could not publish it, or ``put aside``."""
    lane: str | None
    topic: str
    message_id: str
    age_ms: int
    problem: str | None
    """Why no broker accepts it."""


@dataclass(frozen=True, slots=True)
class OutboxSummary:
    """The backlog of an outbox."""

    waiting: int
    """Rows that are still to be published, including blocked ones."""
    oldest_ms: int
    """The age of the oldest of them; 0 if there are none."""
    blocked: int
    """Rows that no broker accepts; a relay retries each once a minute."""
    blocked_lanes: int
    """Lanes that wait behind a blocked row."""
    put_aside: int
    relays: int
    """The relays that were alive in the last minute."""
    is_cut: bool
    """Whether the table has more than :data:`COUNTED_MAX` rows; the numbers leave out the rest."""


class OutboxOperator:
    """Reads and changes single rows while relays work on the table.

    Args:
        outbox: The tables.
        engine: The database.
    """

    def __init__(self, outbox: Outbox, engine: Engine) -> None:
        self._rows = outbox.rows
        self._relays = outbox.relays
        self._engine = engine
        self._now: ColumnElement[int] = literal_column(NOW_MS[kind_of(engine.dialect.name)])

    def summary(self) -> OutboxSummary:
        """Count the rows and the living relays.

        Raises:
            TableMissing: The database has no such outbox.
            DatabaseFailed: The database refused, or does not answer.
        """
        rows = self._rows.c
        first = (
            select(rows.lane, rows.problem, rows.failed_ms, rows.created_ms)
            .order_by(rows.id)
            .limit(COUNTED_MAX + 1)
            .subquery()
        )
        is_waiting = first.c.failed_ms.is_(None)
        is_blocked = and_(is_waiting, first.c.problem.is_not(None))
        counts = select(
            func.count().label("all_rows"),
            func.count(case((is_waiting, 1))).label("waiting"),
            (self._now - func.min(case((is_waiting, first.c.created_ms)))).label("oldest_ms"),
            func.count(case((is_blocked, 1))).label("blocked"),
            func.count(distinct(case((is_blocked, first.c.lane)))).label("blocked_lanes"),
            func.count(first.c.failed_ms).label("put_aside"),
        ).select_from(first)
        seen = self._relays.c.seen_ms
        relays = select(func.count()).where(seen >= self._now - _RECENT_MS)
        with self._connection() as connection:
            found = connection.execute(counts).mappings().one()
            alive = int(connection.execute(relays).scalar_one())
        return OutboxSummary(
            waiting=int(found["waiting"]),
            oldest_ms=max(0, int(found["oldest_ms"] or 0)),
            blocked=int(found["blocked"]),
            blocked_lanes=int(found["blocked_lanes"]),
            put_aside=int(found["put_aside"]),
            relays=alive,
            is_cut=int(found["all_rows"]) > COUNTED_MAX,
        )

    def waiting(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        failed_only: bool = False,
        lane: str | None = None,
    ) -> list[WaitingMessage]:
        """Rows in the order of their ids.

        Args:
            after: Only rows with larger ids.
            limit: The maximum number of rows.
            failed_only: Only rows that are blocked or put aside.
            lane: Only rows of this lane.

        Raises:
            TableMissing: The database has no such outbox.
            DatabaseFailed: The database refused, or does not answer.
        """
        rows = self._rows.c
        query = self._query().where(rows.id > after).order_by(rows.id).limit(limit)
        if failed_only:
            query = query.where(rows.problem.is_not(None))
        if lane is not None:
            query = query.where(rows.lane == lane)
        with self._connection() as connection:
            return [_waiting(row) for row in connection.execute(query).mappings()]

    def show(self, row_id: int) -> tuple[WaitingMessage, Message]:
        """One row, and its message.

        Raises:
            NotFound: There is no such row: it was published, or never existed.
            TableMissing: The database has no such outbox.
            DatabaseFailed: The database refused, or does not answer.
        """
        with self._connection() as connection:
            listed = connection.execute(self._query().where(self._rows.c.id == row_id))
            found = listed.mappings().one_or_none()
            whole = connection.execute(select(self._rows).where(self._rows.c.id == row_id))
            row = whole.one_or_none()
        if found is None or row is None:
            raise self._missing([row_id])
        return _waiting(found), unpack(row)

    def retry(self, row_ids: Sequence[int]) -> int:
        """Let relays retry rows that were put aside; returns the number of rows.

        A relay retries a blocked row by itself, once a minute.

        Raises:
            NotFound: None of the rows is put aside.
            TableMissing: The database has no such outbox.
            DatabaseFailed: The database refused, or does not answer.
        """
        rows = self._rows.c
        statement = update(self._rows).where(rows.id.in_(row_ids), rows.failed_ms.is_not(None))
        with self._connection() as connection:
            changed = connection.execute(statement.values(failed_ms=None, problem=None)).rowcount
        if not changed:
            raise self._missing(row_ids, " that was put aside")
        return changed

    def skip(self, row_id: int, reason: str) -> None:
        """Put a row aside, so that its lane continues without it.

        A relay that has read the row already may still publish it.

        Raises:
            NotFound: There is no such row, or it is already put aside.
            TableMissing: The database has no such outbox.
            DatabaseFailed: The database refused, or does not answer.
        """
        rows = self._rows.c
        statement = update(self._rows).where(rows.id == row_id, rows.failed_ms.is_(None))
        with self._connection() as connection:
            values = {"failed_ms": self._now, "problem": reason}
            changed = connection.execute(statement.values(values)).rowcount
        if not changed:
            raise self._missing([row_id], " that waits")

    def _query(self) -> Select[Any]:
        rows = self._rows.c
        return select(
            rows.id,
            rows.lane,
            rows.topic,
            rows.message_id,
            rows.problem,
            rows.failed_ms,
            (self._now - rows.created_ms).label("age_ms"),
        )

    def _missing(self, row_ids: Sequence[int], more: str = "") -> NotFound:
        named = ", ".join(map(str, row_ids))
        return NotFound(
            f"{self._rows.fullname} has no row {named}{more}; list the rows with: txmq outbox list"
        )

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            name = self._rows.fullname
            if failure(error) in {Failure.MISSING, Failure.CHANGED}:
                hint = f"`{create_command('outbox', self._rows)}` creates it"
                raise TableMissing(f"{name} does not exist: {words(error)}; {hint}") from error
            raise DatabaseFailed(f"{name} cannot be used: {words(error)}") from error


def _waiting(row: RowMapping) -> WaitingMessage:
    state = "waiting" if row["problem"] is None else "blocked"
    return WaitingMessage(
        id=row["id"],
        state=state if row["failed_ms"] is None else "put aside",
        lane=row["lane"],
        topic=row["topic"],
        message_id=row["message_id"],
        age_ms=max(0, int(row["age_ms"])),
        problem=row["problem"],
    )
