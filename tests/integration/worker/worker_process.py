"""A `txmq worker` with an application in its own folder."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress

from tests.servers.serving import environment

PATIENCE_S = 20


def wait_for(holds, what):
    """Wait until a condition of other processes holds; returns its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"timed out: {what() if callable(what) else what}"
        threading.Event().wait(0.01)
    return found


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class WorkerProcess:
    """The supervisor, started in the folder of its application; ``with`` ends it."""

    def __init__(self, folder, names, text, *options, target="app:client"):
        self.folder = folder
        self.app = folder / "app.py"
        self.app.write_text(text)
        self.done = folder / "done"
        self.done.touch()
        self.lines = []
        self._log = (folder / "log").open("ab")
        words = ["worker", target, "--http", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txmq", *words],
            cwd=folder,
            env=environment() | {"TXMQ_NAMES": names},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        children = self._children()
        self.process.kill()
        self.process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._reader.join()
        self.process.stdout.close()
        self._log.close()

    def _children(self):
        with suppress(OSError, IndexError):
            return self.pids()
        return []

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def log(self):
        return (self.folder / "log").read_text()

    def _all(self):
        return "\n".join([*self.lines, self.log()])

    def until_ready(self, times=1):
        """Wait until it has been ready this many times."""
        wait_for(lambda: self._ready_lines()[times - 1 :], self._all)
        return self

    def _ready_lines(self):
        return [line for line in self.lines if line.startswith("ready ")]

    def until(self, holds):
        return wait_for(holds, self._all)

    def page(self, path):
        url = self._ready_lines()[-1].rpartition(" ")[2]
        with urllib.request.urlopen(url + path, timeout=5) as answer:
            return answer.read().decode()

    def info(self):
        return json.loads(self.page("/info"))

    def pids(self):
        """The processes that work now."""
        return [process["pid"] for process in self.info()["processes"] if process["is_ready"]]

    def metric(self, name, **labels):
        """The value of a series; None if the page does not have it."""
        inside = ",".join(f'{label}="{labels[label]}"' for label in sorted(labels))
        series = f"txmq_worker_{name}" + (f"{{{inside}}}" if inside else "")
        for line in self.page("/metrics").splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return None

    def did(self):
        """The lines that handlers wrote: a body and a process id each."""
        return [line.split() for line in self.done.read_text().splitlines()]

    def bodies(self):
        return [body for body, _ in self.did()]

    def stop(self, number=signal.SIGTERM):
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)
