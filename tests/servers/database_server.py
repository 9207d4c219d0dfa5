"""Owns a database server as a real process for tests, or one in a container, of whatever kind.

The loop is here: a folder, a port, the server's word that it is ready, its log, its end. What its
programs are called with and say is told by whoever starts it.
"""

import contextlib
import ctypes
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

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.engine import make_url

from tests.servers.serving import free_port
from tools.packages import Unprepared

INIT_SECONDS = 60
PING_SECONDS = 5
ATTEMPTS = 3
UNPRIVILEGED = ("postgres", "nobody")
PR_SET_PDEATHSIG = 1


class Server:
    """A server by the URL of its superuser, how it is stopped, and its process, if it is ours."""

    creating = "CREATE DATABASE {}"
    dropping = "DROP DATABASE {}"

    def __init__(self, url, stop=lambda: None, pid=None):
        self.url = make_url(url)
        self.stop = stop
        self.pid = pid

    def order(self, statement):
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            connection.execute(text(statement))

    @contextlib.contextmanager
    def database(self):
        """The URL of a new, empty database."""
        name = f"txmq_{secrets.token_hex(6)}"
        self.order(self.creating.format(name))
        try:
            yield self.url.set(database=name)
        finally:
            self.order(self.dropping.format(name))


@contextlib.contextmanager
def wanted(start):
    """A server while tests want it; where none can be had, they are skipped."""
    server = start()
    try:
        yield server
    finally:
        server.stop()


def started(programs):
    """Where a server of our own listens, how it is stopped, and its process; see
    :func:`launched`.
    """
    program = launched(programs)
    return program.url, program.stop, program.pid


def launched(programs):
    """A running server of our own.

    Args:
        programs: The facts of its kind: its ``name``; the commands of ``initialise(home)``, if it
            needs that, and ``serve(home, port)``; the ``url(port)`` of its superuser; what it says
            when it is ``ready``; the signal for ``ending`` it at once; whether it ``takes_root``.
    """
    who = {} if programs.takes_root else somebody_else()
    home = Path(tempfile.mkdtemp(prefix=f"txmq-{programs.name}-"))
    try:
        if who:
            os.chown(home, who["user"], who["group"])
        if (command := programs.initialise(home)) is not None:
            initialised(command, home, who)
        for _ in range(ATTEMPTS):
            # Another process may take the port in between.
            program = Program(programs, home, free_port(), who)
            if program.start():
                return program
        last = (home / "log").read_text().splitlines()[-1:]
        raise Unprepared(f"{programs.serve(home, 0)[0]} does not start: {last}")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def somebody_else():
    """Options of subprocess with which root runs a program as somebody without rights."""
    if os.geteuid() != 0:
        return {}
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise Unprepared(f"databases refuse root, and there is no user {' or '.join(UNPRIVILEGED)}")


def die_with_us():
    """A server must not outlive tests that are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def initialised(command, home, who):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INIT_SECONDS, cwd=home, check=False, **who
    )
    if done.returncode:
        raise Unprepared(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


class Program:
    """A server's program at a port; its folder stays when it is killed and started again."""

    def __init__(self, programs, home, port, who):
        self.programs = programs
        self.home = home
        self.port = port
        self.who = who
        self.url = programs.url(port)
        self.process = None

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        """Start it, and wait for its word; whether it is there."""
        self.process = subprocess.Popen(
            self.programs.serve(self.home, self.port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.home,
            preexec_fn=die_with_us,
            **self.who,
        )
        output = b""
        for line in self.process.stdout:
            output += line
            if self.programs.ready in line:
                break
        (self.home / "log").write_bytes(output)
        if self.programs.ready not in output:
            self.process.wait()
            self.process.stdout.close()
            return False
        # A server whose output nobody reads would block in the middle of a line.
        self.log = threading.Thread(
            target=shutil.copyfileobj, args=(self.process.stdout, Nowhere())
        )
        self.log.start()
        return True

    def kill(self):
        """End it at once."""
        self.process.send_signal(self.programs.ending)
        self.process.wait(INIT_SECONDS)
        self.log.join(INIT_SECONDS)
        self.process.stdout.close()

    def stop(self):
        """End it for good."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


class Nowhere(io.RawIOBase):
    """Discard what a server logs."""

    def write(self, text):
        return len(text)


def has_docker():
    """Whether Docker answers, for servers in containers."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import docker

            docker.from_env(timeout=PING_SECONDS).ping()
    except Exception:
        return False
    return True


def contained(make, lacking):
    """The same of a container, which is made here: its library may be missing, or Docker."""
    try:
        with warnings.catch_warnings(action="ignore"):
            container = make()
        container.start()
    except Exception as problem:
        raise Unprepared(f"{lacking} ({type(problem).__name__})") from problem
    return container.get_connection_url(), container.stop
