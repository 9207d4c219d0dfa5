"""A real Prometheus for tests, with promtool: the machine's, or Debian's package in the test cache.

apt-get fetches the package, and dpkg-deb unpacks it: nothing is installed, and root is not needed.
Where neither is there, the tests are skipped with a line that says why.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

from tests.servers.database_server import launched
from tools.packages import Unprepared, cache, locked, run

PACKAGE = "prometheus"
NAMES = ("prometheus", "promtool")
HINT = "these tests need Prometheus and promtool (Debian: apt install prometheus)"
RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "txmq-broker.rules.yml"


def programs():
    """The paths of prometheus and promtool.

    Raises:
        Unprepared: They are neither on PATH nor in the test cache.
    """
    for path in (os.environ.get("PATH", os.defpath), str(cache(PACKAGE) / "usr" / "bin")):
        paths = [shutil.which(name, path=path) for name in NAMES]
        if all(paths):
            return paths
    raise Unprepared(HINT)


def fetch():
    """Have the programs in the test cache.

    Raises:
        Unprepared: This machine cannot fetch them.
    """
    with contextlib.suppress(Unprepared):
        return programs()
    home = cache(PACKAGE)
    with locked(home):
        try:
            unpack(home)
        except (Unprepared, subprocess.TimeoutExpired, OSError) as error:
            raise Unprepared(f"{HINT} ({error})") from error
    return programs()


def unpack(home):
    """Fetch Debian's package, and unpack it into a folder."""
    lists = home / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (home / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={home}", "-o"]
    own += ["APT::Sandbox::User=", "-o", "Debug::NoLocking=true"]
    refused = "apt-get could not fetch Debian's package"
    try:
        run(["apt-get", "download", "-q", PACKAGE], refused, cwd=home)
    except Unprepared:
        # A machine that is new has no lists of packages.
        run(["apt-get", "update", "-q", *own], refused, cwd=home)
        run(["apt-get", "download", "-q", *own, PACKAGE], refused, cwd=home)
    archive = max(home.glob(f"{PACKAGE}_*.deb"))
    run(["dpkg-deb", "-x", archive, home], refused)
    archive.unlink()
    shutil.rmtree(lists)


@contextlib.contextmanager
def prometheus_server(configuration):
    """A Prometheus that runs on a configuration; its ``url``.

    Raises:
        Unprepared: There is no program for this machine.
    """
    server = launched(Programs(configuration))
    try:
        yield server
    finally:
        server.stop()


def data_of(server, path, **fields):
    """What Prometheus answers to a request of its API."""
    url = f"{server.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        document = json.load(answer)
    assert document["status"] == "success"
    return document["data"]


def samples(server, query, *labels):
    """The values of a query, by those of its labels that it has."""
    return {
        tuple(row["metric"][name] for name in labels if name in row["metric"]): float(
            row["value"][1]
        )
        for row in data_of(server, "query", query=query)["result"]
    }


def promtool(*words, text=""):
    """What promtool finds; its exit code is 0 if it finds no fault."""
    done = subprocess.run(
        [programs()[1], *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


class Programs:
    """How Prometheus is called, and the line by which it says that it is ready."""

    name, ready, ending = PACKAGE, b"Server is ready to receive web requests", signal.SIGKILL
    takes_root = True
    url = "http://127.0.0.1:{}".format

    def __init__(self, configuration):
        self.program = programs()[0]
        self.configuration = configuration

    def initialise(self, home):
        """Write its configuration; no command is needed."""
        (home / "prometheus.yml").write_text(self.configuration)

    def serve(self, home, port):
        """The command that runs it."""
        return [
            self.program,
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
