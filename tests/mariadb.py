"""Owns a real MariaDB server for tests, where one can be had, and gives each run its database.

It is the one that TXMQ_TEST_MYSQL_URL names (MySQL will do, too), else one that is started here
from the server programs of the machine, else one in a container if TXMQ_TEST_CONTAINERS is set.
Unlike PostgreSQL nobody has to have it: without it, or without its driver, the tests of its kinds
are left out, and the run says so.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.engine import make_url

from tests.databases import ATTEMPTS, INIT_SECONDS, Nowhere, Unprepared, die_with_us, somebody_else
from tests.serving import free_port

IMAGE = "mariadb:10.11"
DRIVER, ASYNC_DRIVER = "pymysql", "aiomysql"
MEMORY = ("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M")
READY = b"ready for connections"


class MariaDB:
    """A server by the URL of its superuser, and how it is stopped."""

    def __init__(self, url, stop=lambda: None):
        url = make_url(url)
        self.url = url if "+" in url.drivername else url.set(drivername=f"mysql+{DRIVER}")
        self.stop = stop

    def order(self, statement):
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(statement))

    @contextlib.contextmanager
    def database(self):
        """The URL of a new, empty database."""
        name = f"txmq_{secrets.token_hex(6)}"
        self.order(f"CREATE DATABASE {name}")
        try:
            yield self.url.set(database=name)
        finally:
            self.order(f"DROP DATABASE {name}")


def kinds():
    """Which kinds of sources can be tested; none where there is no server or no driver."""
    drivers = {"mysql": DRIVER, "mysql-async": ASYNC_DRIVER}
    with_driver = [kind for kind, name in drivers.items() if importlib.util.find_spec(name)]
    return with_driver if "mysql" in with_driver and _is_there() else []


def why_not():
    """One line for whoever wonders where these tests are."""
    lacking = "no MariaDB here" if importlib.util.find_spec(DRIVER) else f"no {DRIVER} here"
    return f"{lacking}: its kinds are left out"


def _is_there():
    places = ("TXMQ_TEST_MYSQL_URL", "TXMQ_TEST_CONTAINERS")
    return any(os.environ.get(each) for each in places) or programs() is not None


def mariadb():
    """A running server, from the first place that has one."""
    if given := os.environ.get("TXMQ_TEST_MYSQL_URL"):
        return MariaDB(given)
    found = programs()
    return contained() if found is None else started(found)


def programs():
    """Where mariadbd and mariadb-install-db are."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = [shutil.which(each, path=path) for each in ("mariadbd", "mariadb-install-db")]
    return found if all(found) else None


def started(found):
    who = somebody_else()
    home = Path(tempfile.mkdtemp(prefix="txmq-mariadb-"))
    if who:
        os.chown(home, who["user"], who["group"])
    try:
        initialised(found[1], home, who)
        for _ in range(ATTEMPTS):
            # Somebody else may take the port in between.
            if (server := attempt(found[0], home, who)) is not None:
                return server
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    last = (home / "log").read_text().splitlines()[-1:]
    shutil.rmtree(home, ignore_errors=True)
    raise Unprepared(f"{found[0]} does not start: {last}")


def initialised(program, home, who):
    command = [program, "--no-defaults", f"--datadir={home}/data", *MEMORY, "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INIT_SECONDS, cwd=home, check=False, **who
    )
    if done.returncode:
        raise Unprepared(f"{program} failed: {done.stderr.strip().splitlines()[-1:]}")


def attempt(program, home, who):
    port = free_port()
    chosen = [f"--datadir={home}/data", f"--port={port}", f"--socket={home}/socket", *MEMORY]
    chosen += ["--bind-address=127.0.0.1", f"--pid-file={home}/pid", "--skip-name-resolve"]
    # Tests kill processes, not machines; a name that is gone one day is no error.
    chosen += ["--loose-innodb-flush-method=nosync"]
    process = subprocess.Popen(
        [program, "--no-defaults", *chosen],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=home,
        preexec_fn=die_with_us,
        **who,
    )
    said = b""
    for line in process.stderr:
        said += line
        if READY in line:
            break
    (home / "log").write_bytes(said)
    if READY not in said:
        process.wait()
        process.stderr.close()
        return None
    log = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, Nowhere()))
    log.start()

    def stop():
        process.kill()
        process.wait(INIT_SECONDS)
        log.join(INIT_SECONDS)
        process.stderr.close()
        shutil.rmtree(home, ignore_errors=True)

    return MariaDB(f"mysql://root@127.0.0.1:{port}", stop)


def contained():
    try:
        with warnings.catch_warnings(action="ignore"):
            from testcontainers.mysql import MySqlContainer

        container = MySqlContainer(IMAGE, username="root", password="txmq", dbname="txmq")
        container.start()
    except Exception as problem:
        raise Unprepared(f"no MariaDB in a container ({type(problem).__name__})") from problem
    return MariaDB(container.get_connection_url(), container.stop)
