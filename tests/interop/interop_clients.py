"""Owns the clients, two third-party ones and ours: how they are prepared, run as processes and
listened to.

Everything lands in the folder `interop` of the test cache. Where a client cannot be prepared its
tests are skipped.
"""

import collections
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.serving import environment
from tools.packages import Unprepared, node_program, npm_folder, pip_environment

HERE = Path(__file__).resolve().parent
CPP_PACKAGE, CPP_VERSION = "rocketmq-client-python", "0.5.0rc2"
ONS_PACKAGE, ONS_VERSION = "ali-ons", "3.12.0"
LEAVE_SECONDS = 20

# One condition for all processes: a test waits for facts that several of them bring about.
news = threading.Condition()


@dataclass(frozen=True)
class Client:
    """One client: the command that runs its driver, and what that needs."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]


def prepare_txmq():
    """Ours, from this checkout and in this interpreter."""
    path = {"PYTHONPATH": environment()["PYTHONPATH"]}
    return Client("txmq", (sys.executable, str(HERE / "txmq_client.py")), path)


def see_platform():
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unprepared(f"{CPP_PACKAGE} bundles a library for Linux x86-64: run the suite there")


def prepare_cpp():
    see_platform()
    return Client("cpp", (str(cpp_python()), str(HERE / "cpp_client.py")), {})


def cpp_python():
    """The interpreter that has the package: this one, or that of a virtual environment."""
    try:
        if importlib.metadata.version(CPP_PACKAGE) == CPP_VERSION:
            return Path(sys.executable)
    except importlib.metadata.PackageNotFoundError:
        pass
    hint = f"{CPP_PACKAGE} cannot be installed by `python -m venv` and pip"
    return pip_environment("interop", CPP_PACKAGE, CPP_VERSION, hint)


def prepare_ons():
    modules = npm_folder("interop", ONS_PACKAGE, ONS_VERSION)
    command = (str(node_program()), str(HERE / "ons_client.js"))
    return Client("ons", command, {"NODE_PATH": str(modules)})


INTERRUPTED = "terminate called after throwing an instance of 'boost::thread_interrupted'"
"""What the C++ client says if its own shutdown kills it: on a busy machine it interrupts a thread
that is just about to wait, when everything is sent and handled."""


class ClientProcess:
    """One running driver: lines in, events out."""

    def __init__(self, client, folder, label, arguments):
        self.label = label
        self.leaving = False
        self.events = collections.defaultdict(list)
        self.home = Path(folder) / label
        self.home.mkdir(parents=True)
        self.errors = self.home / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*client.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment(client),
                cwd=self.home,
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def environment(self, client):
        """A home of its own: the C++ client logs there and keeps broadcast offsets there."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("NAMESRV_ADDR", "PYTHONPATH")}
        return {**inherited, **client.environment, "HOME": str(self.home)}

    def _read(self):
        with self.process.stdout:
            for line in self.process.stdout:
                event = json.loads(line)
                with news:
                    self.events[event.pop("event")].append(event)
                    news.notify_all()
        with news:
            news.notify_all()

    def write(self, lines):
        """Hand messages to a sender."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    @property
    def ready(self):
        return bool(self.events["ready"])

    @property
    def sent(self):
        return list(self.events["sent"])

    @property
    def acknowledged(self):
        return [event["keys"] for event in self.sent]

    @property
    def handled(self):
        return list(self.events["message"])

    @property
    def handled_keys(self):
        return [event["keys"] for event in self.handled]

    @property
    def executed(self):
        """Local transactions that were run."""
        return list(self.events["executed"])

    @property
    def checked(self):
        """Checks that came from the broker."""
        return list(self.events["checked"])

    def leave(self):
        """Close stdin and wait: the client must shut down in good order."""
        self.leaving = True
        self.process.stdin.close()
        self._wait_for_exit()

    def terminate(self):
        """The same by SIGTERM."""
        self.leaving = True
        self.process.send_signal(signal.SIGTERM)
        self._wait_for_exit()

    def kill(self):
        """kill -9, without a good-bye."""
        self.leaving = True
        self.process.kill()
        self.process.wait(LEAVE_SECONDS)

    @property
    def was_killed(self):
        return self.process.returncode == -signal.SIGKILL

    def _wait_for_exit(self):
        code = self.process.wait(LEAVE_SECONDS)
        self.reader.join(LEAVE_SECONDS)
        said = self.complaints()
        assert code == 0 or INTERRUPTED in said, f"{self.label} left with {code}: {said}"
        if code == 0:
            assert self.events["stopped"], f"{self.label} did not say that it stopped"

    def complaints(self, size=2000):
        return self.errors.read_bytes()[-size:].decode(errors="replace")

    def close(self):
        """For teardown: end the process in any case."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LEAVE_SECONDS)
        self.reader.join(LEAVE_SECONDS)
        if not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


class TopicSender:
    """One topic's view of a sender that several tests share."""

    def __init__(self, process, topic):
        self._process = process
        self._topic = topic
        self._first = len(process.sent)

    def write(self, lines):
        self._process.write([{**line, "topic": self._topic} for line in lines])

    @property
    def sent(self):
        told = self._process.sent[self._first :]
        return [event for event in told if event["topic"] == self._topic]

    @property
    def acknowledged(self):
        return [event["keys"] for event in self.sent]


class SharedSenders:
    """Senders of other people's clients, one of each kind for all topics of a broker."""

    def __init__(self, names, folder):
        self._names = names
        self._folder = folder
        self._processes = {}
        self._starting = threading.Lock()

    def started(self, client, verb):
        with self._starting:
            if (client.name, verb) not in self._processes:
                label = f"{client.name}-{verb}"
                common = ["--names", self._names, "--topic", "none", "--group", f"shared-{label}"]
                process = ClientProcess(client, self._folder, label, [verb, *common])
                self._processes[client.name, verb] = process
            return self._processes[client.name, verb]

    def close(self):
        for process in self._processes.values():
            process.close()
