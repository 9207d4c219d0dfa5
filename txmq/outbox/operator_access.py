"""An operator's access to the rows of an outbox: list, show, retry and put aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
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
from txmq.outbox.row import unpack
from txmq.outbox.table import Outbox

__all__ = ["OutboxOperator", "WaitingMessage"]


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
    """Why no broker takes it."""


class OutboxOperator:
    """Reads and changes single rows, beside the relays that work on them.

    Args:
        outbox: The tables.
        engine: The database.
    """

    def __init__(self, outbox: Outbox, engine: Engine) -> None:
        self._rows = outbox.rows
        self._engine = engine
        self._now: ColumnElement[int] = literal_column(NOW_MS[kind_of(engine.dialect.name)])

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
            limit: The most rows.
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
            NotFound: There is no such row: it is published, or never was.
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
        """Have relays try rows again that were put aside; returns how many were.

        A relay tries a blocked row again by itself, once a minute.

        Raises:
            NotFound: None of the rows exists and was put aside.
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
            NotFound: There is no such row, or it was put aside before.
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
