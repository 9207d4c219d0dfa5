"""Owns the jar of PostgreSQL's driver for JDBC, with which Spark reads a bank.

It is the one that TXMQ_TEST_JDBC_JAR names, else Debian's, else one that npm puts into the test
cache: PyPI has no package with this jar, and npm's package of Liquibase ships it.
"""

import os
from pathlib import Path

from tools.packages import Unprepared, npm_folder

PACKAGE, VERSION = "liquibase", "4.4.0"
DEBIAN = Path("/usr/share/java/postgresql.jar")
HINT = (
    "these tests need PostgreSQL's driver for JDBC: install it (Debian: apt install "
    "libpostgresql-jdbc-java), or set TXMQ_TEST_JDBC_JAR to its jar"
)


def jar():
    """The path of the jar.

    Raises:
        Unprepared: It is not here and cannot be fetched.
    """
    if given := os.environ.get("TXMQ_TEST_JDBC_JAR"):
        if not Path(given).exists():
            raise Unprepared(f"{HINT} (TXMQ_TEST_JDBC_JAR is {given}, which does not exist)")
        return Path(given)
    return DEBIAN if DEBIAN.exists() else fetched()


def fetched():
    try:
        drivers = npm_folder("jdbc", PACKAGE, VERSION) / PACKAGE / "dist" / "drivers"
        return next(drivers.glob("postgresql-*.jar"))
    except (Unprepared, StopIteration) as error:
        raise Unprepared(f"{HINT} ({error})") from error
