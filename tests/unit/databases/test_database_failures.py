"""How exceptions of databases are classified, and whether a failed commit is settled."""

import sqlite3

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from txmq.databases.failures import Failure, failure, is_settled, words


def of_postgres(sqlstate):
    return psycopg.errors.lookup(sqlstate)("said the server")


def of_mysql(number, sqlstate=None):
    """Newer drivers also have the SQLSTATE, which is less precise than the number."""
    raised = type("DriverError", (Exception,), {"sqlstate": sqlstate})(number, "said the server")
    return OperationalError("SELECT 1", {}, raised)


def of_mariadb(number, sqlstate):
    """One driver has the number in an attribute."""
    raised = type("DriverError", (Exception,), {})("said the server")
    raised.errno, raised.sqlstate = number, sqlstate
    return OperationalError("SELECT 1", {}, raised)


def of_sqlite(name, text=""):
    problem = sqlite3.OperationalError(text)
    problem.sqlite_errorname = name
    return problem


@pytest.mark.parametrize(
    ("problem", "expected", "settled"),
    [
        (of_postgres("40001"), Failure.RETRY, True),
        (of_postgres("40P01"), Failure.RETRY, True),
        (of_postgres("40003"), Failure.LOST, False),
        (of_postgres("23505"), Failure.DUPLICATE, True),
        (of_postgres("23514"), Failure.REFUSED, True),
        (of_postgres("P0001"), Failure.REFUSED, True),
        (of_postgres("25P02"), Failure.REFUSED, True),
        (of_postgres("55P03"), Failure.LOCKED, True),
        (of_postgres("42P01"), Failure.MISSING, False),
        (of_postgres("42703"), Failure.CHANGED, False),
        (of_postgres("57P01"), Failure.LOST, False),
        (of_postgres("57P02"), Failure.LOST, False),
        (of_postgres("08006"), Failure.LOST, False),
        (of_postgres("57014"), Failure.OTHER, False),
        (of_postgres("53100"), Failure.OTHER, False),
        (of_postgres("58030"), Failure.OTHER, False),
        (of_postgres("XX000"), Failure.OTHER, False),
        (psycopg.OperationalError("server closed the connection"), Failure.LOST, False),
        (psycopg.InterfaceError("the connection is closed"), Failure.LOST, False),
        (psycopg.ProgrammingError("of our own side"), Failure.OTHER, False),
        (PoolTimeout("all are taken"), Failure.LOST, False),
        (of_mysql(1213), Failure.RETRY, True),
        (of_mysql(1205), Failure.LOCKED, True),
        (of_mysql(1062), Failure.DUPLICATE, True),
        (of_mysql(1146), Failure.MISSING, False),
        (of_mysql(2013), Failure.LOST, False),
        (of_mysql(4711), Failure.OTHER, False),
        (of_mysql(1062, "23000"), Failure.DUPLICATE, True),
        (of_mysql(1205, "HY000"), Failure.LOCKED, True),
        (of_mysql(1213, "40001"), Failure.RETRY, True),
        (of_mysql(3101, "40000"), Failure.RETRY, True),
        (of_mysql(1146, "42S02"), Failure.MISSING, False),
        (of_mysql(1053, "08S01"), Failure.LOST, False),
        (of_mysql(1180, "HY000"), Failure.OTHER, False),
        (of_mysql(4711, "23000"), Failure.OTHER, False),
        (of_mysql(1062, "23000").orig, Failure.DUPLICATE, True),
        (of_mariadb(1062, "23000"), Failure.DUPLICATE, True),
        (of_mariadb(2013, "HY000"), Failure.LOST, False),
        (of_sqlite("SQLITE_BUSY"), Failure.LOCKED, True),
        (of_sqlite("SQLITE_BUSY_SNAPSHOT"), Failure.RETRY, True),
        (of_sqlite("SQLITE_CONSTRAINT_PRIMARYKEY"), Failure.DUPLICATE, True),
        (of_sqlite("SQLITE_CONSTRAINT_CHECK"), Failure.REFUSED, True),
        (of_sqlite("SQLITE_IOERR_FSYNC"), Failure.LOST, False),
        (of_sqlite("SQLITE_FULL"), Failure.OTHER, False),
        (of_sqlite("SQLITE_ERROR", "no such table: txmq_fence"), Failure.MISSING, False),
        (of_sqlite("SQLITE_ERROR", "no such column: owner"), Failure.CHANGED, False),
        (of_sqlite("SQLITE_ERROR", "table d has no column named print"), Failure.CHANGED, False),
        (ConnectionResetError(104, "reset"), Failure.LOST, False),
        (TimeoutError(), Failure.LOST, False),
        (OSError(2, "no such file"), Failure.OTHER, False),
        (ValueError(1213), Failure.OTHER, False),
        (type("BankError", (Exception,), {})(1213), Failure.OTHER, False),
        (KeyError("x"), Failure.OTHER, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_exception_is_classified_by_its_code(problem, expected, settled):
    assert failure(problem) is expected
    assert is_settled(problem) is settled


@pytest.mark.parametrize("sqlstate", ["40001", "23505", "57P01"])
def test_an_exception_wrapped_by_sqlalchemy_is_classified_like_the_original(sqlstate):
    plain = of_postgres(sqlstate)

    assert failure(OperationalError("SELECT 1", {}, plain)) is failure(plain)


def test_an_asyncio_driver_exception_is_classified_by_its_cause():
    face = Exception("face")
    face.__cause__ = of_postgres("40001")

    assert failure(DBAPIError("COMMIT", {}, face)) is Failure.RETRY


def test_an_error_that_invalidated_the_connection_is_never_settled():
    broke = OperationalError("COMMIT", {}, of_postgres("40001"), connection_invalidated=True)

    assert failure(broke) is Failure.LOST
    assert not is_settled(broke)


def test_the_text_of_an_exception_is_one_line_without_the_statement():
    raised = psycopg.OperationalError("connection failed: refused\n\tIs the server running?")
    assert words(raised) == "connection failed: refused"
    assert words(OperationalError("SELECT 1", {}, raised)) == "connection failed: refused"
    assert words(PoolTimeout("all are taken")) == "all are taken"
    assert words(ConnectionResetError()) == "ConnectionResetError"
