"""Follows a page of the tutorial as its reader would: saves the files, types the commands."""

import contextlib
import difflib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tests.servers.serving import environment, free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/tutorial"
EXAMPLES = ROOT / "examples/tutorial"
COMMAND_S = 120
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ADDRESSES = ("127.0.0.1:9876", "127.0.0.1:10911", "127.0.0.1:8001", "127.0.0.1:8002")
IS_INSTALLED = ("python3 -m venv", "pip install")
END = "the command has ended"
VARIABLE = (
    (r"\b(data|report:) /\S+", r"\1"),
    (r"(?m)^([\w-]+), [A-Z]\w+day, \d+ [A-Z]\w+ \d{4}$", r"\1, a day"),
    (r"it took (\d+ min )?\S+ s\b", "it took a while"),
    (r"\b[0-9A-F]{32}\b", "xid"),
    (r"\b[0-9a-f]{16}\b", "run"),
    (r"\b\d{4}-\d\d-\d\d\b", "date"),
    (r"\bdelivered \d+", "delivered"),
    (r"about order-\d+", "about an order"),
    (r"\bmissing [1-9]\d*", "missing some"),
    (r"prepared +\d+ s +\d+", "prepared"),
    (r"(?m)^bash: line \d+: +\d+ Killed .*\n", ""),
)
"""What differs from one reader to the next, and what a page leaves out."""


class Saved(NamedTuple):
    """A file that the page shows, to be saved."""

    name: str
    text: str


class Typed(NamedTuple):
    """A command that the page shows, to be typed."""

    line: str
    output: str
    """What the page shows below it."""


def steps(page):
    """What a reader of the page saves and types, in its order."""
    found = []
    for language, name, text in BLOCK.findall(page.read_text()):
        if name:
            found.append(Saved(name, text))
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                found.append(Typed(*part.split("\n", 1)))
    return found


class Reader:
    """A reader with a shell in a folder, and with ports that nobody else has.

    Args:
        folder: Where the reader begins.
        variables: Further variables of the shell.
        stand_ins: Functions by the beginnings of the commands that they run in place of the shell.
            They receive the words of the command, and return its exit code and its output.
    """

    def __init__(self, folder, variables=(), stand_ins=()):
        self.folder = folder
        self.stand_ins = dict(stand_ins)
        self.ports = {shown: f"127.0.0.1:{free_port()}" for shown in ADDRESSES}
        names, listen, *_ = self.ports.values()
        ports = f"--listen {listen} --names-listen {names}"
        self.replaced = {**self.ports, "txmq serve": f"txmq serve {ports}"}
        self.replaced |= {
            f"--port {shown[-4:]}": f"--port {port[10:]}" for shown, port in self.ports.items()
        }
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.variables = {**environment(), "PATH": programs, "TXMQ_NAMES": names, "COLUMNS": "140"}
        self.variables.update(variables)
        # A reader's Python keeps what it prints into a file for later, unless a program flushes.
        del self.variables["PYTHONUNBUFFERED"]
        self.lines = queue.SimpleQueue()

    def __enter__(self):
        self.shell = subprocess.Popen(
            ["bash"],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        return self

    def __exit__(self, *error):
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()
        self._reading.join()
        self.shell.stdin.close()
        self.shell.stdout.close()

    def _read(self):
        for line in self.shell.stdout:
            self.lines.put(line)

    def follow(self, page):
        """Do what the page says; the lines of commands that print something else than it shows."""
        wrong = []
        for step in steps(page):
            if isinstance(step, Saved):
                (Path(self.type("pwd").strip()) / step.name).write_text(self.real(step.text))
            elif not step.line.startswith(IS_INSTALLED):
                output = self.run(self.real(step.line))
                shown, printed = constant(step.output), constant(self.shown(output))
                if shown != printed:
                    lines = difflib.ndiff(shown, printed)
                    wrong += [f"$ {step.line}", *(line for line in lines if line[0] in "-+")]
        return wrong

    def real(self, text):
        """The text with this reader's ports."""
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        return text

    def shown(self, text):
        """The text with the ports of the pages."""
        for shown, real in self.ports.items():
            text = text.replace(real, shown)
        return text

    def run(self, line):
        """Run a command, or its stand-in; what it prints."""
        for beginning, stand_in in self.stand_ins.items():
            if line.startswith(beginning):
                # The shell knows what its variables hold.
                folder, *words = self.type(f'printf "%s\\n" "$PWD" {line}').splitlines()
                with contextlib.chdir(folder):
                    code, output = stand_in(words)
                self.type(f"(exit {code})")
                return output
        return self.type(line)

    def type(self, line):
        """Run a command of the shell; what it prints."""
        self.shell.stdin.write(f"{{ {line}\n}} 2>&1; last=$?; echo '{END}'; (exit $last)\n")
        self.shell.stdin.flush()
        output = ""
        while True:
            try:
                printed = self.lines.get(timeout=COMMAND_S)
            except queue.Empty:
                raise AssertionError(f"$ {line}\n{output}\ndid not end; {self.logs()}") from None
            if printed.strip() == END:
                return output
            output += printed

    def logs(self):
        """What programs in the background have printed."""
        return "\n".join(f"{log}:\n{log.read_text()}" for log in self.folder.glob("*/*.log"))


def constant(text):
    """The lines of a text without what differs from one reader to the next, and without layout."""
    for pattern, word in VARIABLE:
        text = re.sub(pattern, word, text)
    return [re.sub(r"[ ─]+", " ", line).strip() for line in text.splitlines() if line.strip()]
