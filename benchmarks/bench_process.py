"""Servers as processes of their own: started, asked what they used, ended.

Linux only: the CPU of another process comes from its process clock (user and system of all threads,
in nanoseconds, the same for the floor and the broker), its memory from ``/proc``.
"""

import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
START_S = 300
CPUCLOCK_SCHED = 2


class CannotStart(Exception):
    """A server ended or fell silent before it was ready; its last words are in the text."""


def cores():
    """One core for the servers, one for the driver, where there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


def pin_driver():
    """Keep this process off the servers' core."""
    server_core, driver_core = cores()
    if driver_core is None:
        return None
    os.sched_setaffinity(0, {driver_core})
    return server_core


def allow_files():
    """Let this process and its servers open as many connections as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def cpu_s(pid):
    """CPU a whole process has used, user and system."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def tree_cpu_s(root):
    """CPU of a process and of all below it, with those that have ended."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks[pid] for pid in tree) / os.sysconf("SC_CLK_TCK")


class Bench:
    """What all measurements share: where data may lie, and on which core servers run."""

    def __init__(self, folder, core):
        self.folder = Path(folder)
        self.core = core

    def new_folder(self):
        return Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))

    def floor(self, flush="async"):
        return Floor(self, self.new_folder(), flush)

    def broker(self, flush="async", folder=None, settings=(), checkout=CHECKOUT):
        broker = Broker(self, folder or self.new_folder(), flush, settings)
        broker.checkout = checkout
        return broker


class Server:
    """A server process. Leaving the context kills it and deletes what it stored."""

    def __init__(self, bench, folder):
        self.bench = bench
        self.folder = folder
        self.checkout = CHECKOUT
        self.process = None
        self.port = 0
        self.start_s = 0.0

    def command(self):
        raise NotImplementedError

    def port_in(self, line):
        """The port in a line of its output, where the line tells that it is ready."""
        raise NotImplementedError

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *problem):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        """Run it; notes how long it took from the start of the process until it was ready."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TXMQ_")}
        core = self.bench.core
        path = os.pathsep.join([str(self.checkout), str(self.checkout / "broker")])
        with (self.folder / "stderr").open("ab") as log:
            begun = time.perf_counter()
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env=clean | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )
            if core is not None:
                os.sched_setaffinity(self.process.pid, {core})
        self.port = self._wait()
        self.start_s = time.perf_counter() - begun

    def _wait(self):
        while select.select([self.process.stdout], [], [], START_S)[0]:
            line = self.process.stdout.readline().decode()
            port = self.port_in(line)
            if port is not None:
                return port
            if not line:
                break
        self.kill()
        said = (self.folder / "stderr").read_text(errors="replace")[-3000:]
        raise CannotStart(f"{type(self).__name__} did not become ready:\n{said}")

    def kill(self):
        """kill -9: nothing is drained or saved."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def stop(self):
        """Tell it to end in good order, and wait until it has."""
        self.process.terminate()
        if self.process.wait(START_S) != 0:
            raise CannotStart(f"{type(self).__name__} ended with {self.process.returncode}")
        self.process.stdout.close()
        self.process = None

    def written_bytes(self):
        """What it has had written to the disk so far."""
        said = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(re.search(r"^write_bytes: (\d+)", said, re.MULTILINE)[1])

    def cpu_s(self):
        """CPU the whole process has used, user and system."""
        return cpu_s(self.process.pid)

    def rss_mb(self):
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024, 1)


class Floor(Server):
    """The bare server."""

    def __init__(self, bench, folder, flush):
        super().__init__(bench, folder)
        self.flush = flush

    def command(self):
        return [sys.executable, str(HERE / "bench_floor.py"), str(self.folder / "log"), self.flush]

    def port_in(self, line):
        return int(line) if line.strip().isdigit() else None


class Broker(Server):
    """The broker as a user starts it, with its default settings and perhaps a few others."""

    def __init__(self, bench, folder, flush, settings):
        super().__init__(bench, folder)
        self.flush = flush
        self.settings = settings
        self.data = folder / "data"
        self.names = ""

    def stored_bytes(self):
        """The length of its log and of the indexes."""
        folders = [self.data / "log", self.data / "index"]
        return sum(file.stat().st_size for folder in folders for file in folder.iterdir())

    def drop_cached_pages(self):
        """Free the memory that caches its log; :func:`os.sync` comes first.

        Then a turn gets the memory of the turn before it. Memory that a virtual machine has not
        used yet costs several times as much as the write into it, and depends on the machine's
        past.
        """
        for path in (self.data / "log").glob("*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def command(self):
        serve = [sys.executable, "-m", "txmq", "serve", "--data", str(self.data)]
        anywhere = ["--listen", "127.0.0.1:0", "--names-listen", "127.0.0.1:0"]
        chosen = [part for setting in self.settings for part in ("--set", setting)]
        return [*serve, *anywhere, "--flush", self.flush, "--log-level", "warning", *chosen]

    def port_in(self, line):
        found = re.match(r"ready \S+ \S+:(\d+) names (\S+)", line)
        if found is None:
            return None
        self.names = found[2]
        return int(found[1])
