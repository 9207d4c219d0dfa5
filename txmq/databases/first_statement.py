"""The first statement of a PostgreSQL transaction, sent together with its BEGIN.

psycopg sends BEGIN alone and waits for its answer. Here BEGIN and the statement travel together, in
libpq's pipeline mode, so a guarded transaction makes as many round trips as one without a guard
row. The statement is prepared on its first use in a connection.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

__all__ = ["FirstStatement", "begins_alone", "run_first"]

AnyConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"

_PLACE: Final = re.compile(r"%\((\w+)\)s(::)?|%%")
_CAST: Final = "CAST("

_NO_SUCH: Final = "26000"
"""The SQLSTATE for a prepared statement that does not exist."""
_EXISTS: Final = "42P05"
"""The SQLSTATE for a prepared statement that exists already."""

_ENCODING: Final = b"client_encoding"

_PREPARED: Final[WeakKeyDictionary[AnyConnection, set[bytes]]] = WeakKeyDictionary()
"""The names of our prepared statements, by connection. psycopg or the application may have
deallocated them."""


class FirstStatement(NamedTuple):
    """A statement as libpq takes it."""

    name: bytes
    words: bytes
    places: tuple[str, ...]
    """The names of its values, in the order of their numbers."""

    @staticmethod
    def of(words: str) -> FirstStatement | None:
        """The statement for an INSERT with psycopg's named placeholders.

        Returns ``None`` if it returns rows, or if a placeholder has no cast: its type would depend
        on the value.
        """
        if not words.startswith("INSERT") or "RETURNING" in words:
            return None
        places: list[str] = []
        for found in _PLACE.finditer(words):
            name, cast = found.groups()
            if name is None:
                continue
            if cast is None and not words.endswith(_CAST, 0, found.start()):
                return None
            if name not in places:
                places.append(name)

        def numbered(found: re.Match[str]) -> str:
            name, cast = found.groups()
            return "%" if name is None else f"${places.index(name) + 1}{cast or ''}"

        text = _PLACE.sub(numbered, words).encode()
        return FirstStatement(
            b"txmq_" + hashlib.sha256(text).hexdigest()[:16].encode(), text, tuple(places)
        )

    def values(self, given: Mapping[str, object]) -> list[bytes] | None:
        """The values as libpq takes them; ``None`` if only psycopg can convert one of them."""
        values = []
        for place in self.places:
            value = given[place]
            if type(value) is str and "\0" not in value:
                values.append(value.encode())
            elif type(value) is int:
                values.append(b"%d" % value)
            else:
                return None
        return values


def begins_alone(connection: AnyConnection) -> bool:
    """Whether BEGIN must travel alone: a transaction is open, the connection commits each
    statement, or libpq has no pipeline mode.
    """
    pgconn = connection.pgconn
    return (
        pgconn.transaction_status != TransactionStatus.IDLE
        or connection.autocommit
        or pgconn.pipeline_status != 0
        or pgconn.parameter_status(_ENCODING) != b"UTF8"
        or not psycopg.Pipeline.is_supported()
    )


def run_first(
    connection: AnyConnection, statement: FirstStatement, values: list[bytes]
) -> PQGen[int]:
    """Begin a transaction with a statement, and return the number of changed rows; run this with
    ``connection.wait``, under the connection's lock.

    Raises:
        psycopg.Error: The statement failed; its transaction is broken, or did not begin.
    """
    pgconn, begin = connection.pgconn, _begin(connection)
    prepared = _PREPARED.get(connection)
    if prepared is None:
        prepared = _PREPARED[connection] = set()
    is_kept = connection.prepare_threshold is not None
    may_repeat = True
    while True:
        is_prepared = statement.name in prepared
        pgconn.enter_pipeline_mode()
        pgconn.send_query_params(begin, None)
        if not is_kept:
            pgconn.send_query_params(statement.words, values)
        else:
            if not is_prepared:
                pgconn.send_prepare(statement.name, statement.words)
            pgconn.send_query_prepared(statement.name, values)
        pgconn.pipeline_sync()
        yield from _flush(pgconn)
        results = yield from _results(pgconn)
        pgconn.exit_pipeline_mode()
        failed = next((one for one in results if one.status == ExecStatus.FATAL_ERROR), None)
        if failed is None:
            if is_kept:
                prepared.add(statement.name)
            return results[-1].command_tuples or 0
        error = errors.error_from_result(failed, encoding="utf-8")
        if not may_repeat or error.sqlstate != (_NO_SUCH if is_prepared else _EXISTS):
            raise error
        # The connection's statements are not those that we know.
        may_repeat = False
        (prepared.discard if is_prepared else prepared.add)(statement.name)
        pgconn.send_query(b"ROLLBACK")
        yield from _flush(pgconn)
        while (yield from _next_result(pgconn)) is not None:
            pass


def _begin(connection: AnyConnection) -> bytes:
    """The BEGIN that psycopg would send."""
    parts = [b"BEGIN"]
    if (level := connection.isolation_level) is not None:
        parts += [b"ISOLATION LEVEL", level.name.replace("_", " ").encode()]
    if (is_read_only := connection.read_only) is not None:
        parts.append(b"READ ONLY" if is_read_only else b"READ WRITE")
    if (is_deferrable := connection.deferrable) is not None:
        parts.append(b"DEFERRABLE" if is_deferrable else b"NOT DEFERRABLE")
    return b" ".join(parts)


def _flush(pgconn: PGconn) -> PQGen[None]:
    while pgconn.flush():
        ready = yield Wait.RW
        # After an interruption psycopg resumes without saying what is ready.
        if ready and ready & Ready.R:
            pgconn.consume_input()


def _next_result(pgconn: PGconn) -> PQGen[PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """The results of all statements, up to the end of the pipeline."""
    results: list[PGresult] = []
    while True:
        result = yield from _next_result(pgconn)
        if result is None:
            if pgconn.status != ConnStatus.OK:
                raise errors.OperationalError("the connection was lost at the first statement")
            continue  # The results of one statement have ended.
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
