"""Owns a real MariaDB server for tests, where one can be had, and gives each run its database.

It is the one that TXMQ_TEST_MYSQL_URL names (MySQL will do, too), else one that is started here
from the server programs of the machine, else one in a container if TXMQ_TEST_CONTAINERS is set.
Unlike PostgreSQL nobody has to have it: without it, or without its driver, the tests of its kinds
are left out, and the run says so.
"""

import importlib.util
import os
import shutil
import signal

from sqlalchemy.engine import make_url

from tests.servers.database_server import Server, contained, started

IMAGE = "mariadb:10.11"
DRIVER, ASYNC_DRIVER = "pymysql", "aiomysql"
MEMORY = ("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M")


class MariaDB(Server):
    """A server that is reached through the driver its URL names, else through ours."""

    def __init__(self, url, *how):
        url = make_url(url)
        chosen = url if "+" in url.drivername else url.set(drivername=f"mysql+{DRIVER}")
        super().__init__(chosen, *how)


def kinds():
    """Which kinds of sources can be tested; none where there is no server or no driver."""
    drivers = {"mysql": DRIVER, "mysql-async": ASYNC_DRIVER}
    with_driver = [kind for kind, name in drivers.items() if importlib.util.find_spec(name)]
    return with_driver if "mysql" in with_driver and _is_there() else []


def why_not():
    """One line that says why these tests are left out."""
    lacking = "no MariaDB here" if importlib.util.find_spec(DRIVER) else f"no {DRIVER} here"
    return f"{lacking}: its kinds are left out"


def _is_there():
    places = ("TXMQ_TEST_MYSQL_URL", "TXMQ_TEST_CONTAINERS")
    return any(os.environ.get(place) for place in places) or programs() is not None


def mariadb():
    """A running server, from the first place that has one."""
    if given := os.environ.get("TXMQ_TEST_MYSQL_URL"):
        return MariaDB(given)
    if (paths := programs()) is None:
        return MariaDB(*contained(container, "no MariaDB in a container"))
    return MariaDB(*started(Programs(*paths)))


def programs():
    """Where mariadbd and mariadb-install-db are."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    paths = [shutil.which(name, path=path) for name in ("mariadbd", "mariadb-install-db")]
    return paths if all(paths) else None


class Programs:
    """What MariaDB's programs are called with and say."""

    name, ready, ending = "mariadb", b"ready for connections", signal.SIGKILL
    takes_root = False
    url = "mysql://root@127.0.0.1:{}".format

    def __init__(self, server, initialiser):
        self.server = server
        self.initialiser = initialiser

    def initialise(self, home):
        command = [self.initialiser, "--no-defaults", f"--datadir={home}/data", *MEMORY]
        command += ["--auth-root-authentication-method=normal", "--skip-name-resolve"]
        return [*command, "--skip-test-db"]

    def serve(self, home, port):
        chosen = [f"--datadir={home}/data", f"--port={port}", f"--socket={home}/socket", *MEMORY]
        chosen += ["--bind-address=127.0.0.1", f"--pid-file={home}/pid", "--skip-name-resolve"]
        # Tests kill processes, not machines; a setting that a later version drops is no error.
        chosen += ["--loose-innodb-flush-method=nosync"]
        return [self.server, "--no-defaults", *chosen]


def container():
    from testcontainers.mysql import MySqlContainer

    return MySqlContainer(IMAGE, username="root", password="txmq", dbname="txmq")
