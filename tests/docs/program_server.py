"""Runs the programs and commands of pages, each in a process of its own.

This process loads the libraries once, and forks a child for each program: a program starts in
milliseconds, and its connections, threads and working directory end with it.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from functools import cache
from typing import NamedTuple

from tests.servers.serving import environment

PATIENCE_S = 20
LOADED = (
    "httpx",
    "psycopg",
    "pytest",
    "redis",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.ext.asyncio",
    "sqlite3",
    "starlette.applications",
    "txmq.blocking",
    "txmq.cli.message",
    "txmq.cli.schema",
    "txmq.cli.xa",
    "txmq.idempotent.unique_key",
    "txmq.outbox.table",
    "txmq.testing.deliveries",
    "txmq.transaction.resources.schema",
    "txmq_broker.testing",
    "unittest",
    "uvloop",
)


class Result(NamedTuple):
    """What a program printed, and how it ended."""

    output: str
    errors: str
    code: int
    is_interrupted: bool
    """It received Ctrl-C, because it had printed what it should."""
    is_overdue: bool
    """It was killed, because it neither ended nor printed that in time."""


class ProgramServer:
    """The process that forks programs, for those who want one run."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.program_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, words, folder, variables, lines=None):
        """Run ``python FILE``, ``pytest FILE`` or ``txmq ...`` in a folder, and return its result.

        Args:
            lines: The program runs until Ctrl-C, which it receives once it has printed as many.
        """
        request = {"words": words, "folder": str(folder), "variables": variables, "lines": lines}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Result(**json.loads(self._process.stdout.readline()))


def main():
    """Answer a request a line, each with a line."""
    for name in LOADED:
        importlib.import_module(name)
    command()
    gc.freeze()
    while line := sys.stdin.readline():
        print(json.dumps(answer(**json.loads(line))._asdict()), flush=True)


@cache
def command():
    """The command line of txmq, which takes a while to build."""
    from typer.main import get_command

    from txmq.cli.root import app

    return get_command(app)


def answer(words, folder, variables, lines):
    """Fork a child that runs this, and watch it."""
    output_reader, output = os.pipe()
    errors_reader, errors = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(output_reader)
        os.close(errors_reader)
        become(words, folder, variables, output, errors)
    os.close(output)
    os.close(errors)
    return watch(child, output_reader, errors_reader, lines)


def become(words, folder, variables, output, errors):
    """Turn this process into the program; it ends as the program does."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(folder)
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        run(words, folder)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # The end of an interpreter, but for taking all of its objects apart, which takes longer.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(words, folder):
    """Run what these words name."""
    program, *arguments = words
    sys.argv = list(words) if program == "txmq" else arguments
    match program:
        case "python":
            if arguments[0] == "-m":
                sys.argv = arguments[1:]
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(folder)
                runpy.run_path(arguments[0], run_name="__main__")
        case "pytest":
            import pytest

            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Each takes time to load.
            options = [
                "-q",
                "-c",
                os.devnull,
                "-p",
                "no:cacheprovider",
                "-p",
                "txmq.testing.plugin",
            ]
            sys.exit(pytest.main([*options, *arguments]))
        case "txmq":
            command()(prog_name="txmq")


def watch(child, output_reader, errors_reader, lines):
    """Read what the child prints until it ends, and send it Ctrl-C when it is time."""
    read = {output_reader: bytearray(), errors_reader: bytearray()}
    is_interrupted = is_overdue = False
    deadline = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        for descriptor in read:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(0, deadline - time.monotonic()))
            for key, _ in events:
                if piece := os.read(key.fd, 65536):
                    read[key.fd] += piece
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            if not events and not is_overdue:
                is_overdue = True
                os.kill(child, signal.SIGKILL)
            if lines and not is_interrupted and read[output_reader].count(b"\n") >= lines:
                is_interrupted = True
                os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    texts = [text.decode(errors="replace") for text in read.values()]
    return Result(*texts, os.waitstatus_to_exitcode(status), is_interrupted, is_overdue)


if __name__ == "__main__":
    main()
