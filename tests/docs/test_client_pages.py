"""The programs on the pages of stock clients run against a broker, with the clients of the interop
tests, and the pages name the versions of those clients.

Java's and Go's programs are not run: their clients are neither on PyPI nor on npm.
"""

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.interop import interop_clients
from tests.interop.interop_clients import CPP_VERSION, INTERRUPTED, ONS_VERSION
from tools.packages import cpp_compiler
from txmq.cli.root import app
from txmq_broker.config import BrokerSettings, StoreSettings
from txmq_broker.testing import BrokerThread

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/howto/clients"
HEADERS = Path(__file__).with_name("rocketmq.h")
SHOWN_NAMES = "127.0.0.1:9876"
PROGRAM_S = 120  # The C++ library now and then takes most of a minute to begin to consume.
COMPILE_S = 1_200  # The compiler that pip brings first compiles its library.

pytestmark = pytest.mark.timeout(1_800)


def programs(page, language):
    """The programs of a page: their file names, and their code."""
    text = (PAGES / page).read_text()
    blocks = rf"^`(\w+\.\w+)` [^\n]+\n\n```{language}\n(.*?)```"
    return dict(re.findall(blocks, text, re.MULTILINE | re.DOTALL))


class Reader:
    """Saves a page's programs, and runs them one by one against a broker of their own."""

    def __init__(self, folder, page, language, variables):
        self.folder = folder
        self.env = {**os.environ, "HOME": str(folder), **variables}
        self.programs = programs(page, language)

    def save(self, names):
        for name, code in self.programs.items():
            assert SHOWN_NAMES in code, name
            (self.folder / name).write_text(code.replace(SHOWN_NAMES, names))

    def output(self, *command, seconds=PROGRAM_S):
        """What a program prints that ends by itself."""
        options = {"cwd": self.folder, "env": self.env, "text": True}
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, **options)
        assert done.returncode == 0 or INTERRUPTED in done.stderr, (
            f"{command}: {done.stdout}{done.stderr}"
        )
        return done.stdout.split("\n")

    def received(self, bodies, *command):
        """The lines among these that a program prints which runs until it is stopped."""
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with subprocess.Popen(
            command, cwd=self.folder, env=self.env, text=True, **pipes
        ) as process:
            overdue = threading.Timer(PROGRAM_S, process.kill)
            overdue.start()
            found = []
            for line in process.stdout:
                found += [body for body in bodies if body == line.strip()]
                if len(found) == len(bodies):
                    break
            overdue.cancel()
            process.kill()
        return sorted(found)


@pytest.fixture
def names():
    with BrokerThread(BrokerSettings(store=StoreSettings(flush="async"))) as broker:
        yield broker.names


def test_the_cpp_programs_of_the_page_run(names, tmp_path):
    python = interop_clients.cpp_python()
    where = [python, "-c", "import rocketmq; print(rocketmq.__path__[0])"]
    library = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    reader = Reader(tmp_path, "cpp.md", "cpp", {"LD_LIBRARY_PATH": library})
    reader.save(names)
    for header in set(re.findall(r"#include <(rocketmq/\w+\.h)>", str(reader.programs))):
        path = tmp_path / header
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#include "{HEADERS}"\n')
    for name in reader.programs:
        program = name.removesuffix(".cpp")
        reader.output(
            *cpp_compiler(),
            "-I.",
            name,
            f"-L{library}",
            "-lrocketmq",
            "-o",
            program,
            seconds=COMPILE_S,
        )

    assert reader.output("./send") == ["stored", ""]
    assert reader.output("./transact") == ["coffee 0", "cake 0", ""]
    assert reader.received(["coffee", "tea"], "./receive") == ["coffee", "tea"]


def test_the_python_programs_of_the_page_run(names, tmp_path):
    python = str(interop_clients.cpp_python())
    reader = Reader(tmp_path, "python.md", "py", {})
    reader.save(names)

    assert reader.output(python, "send.py") == ["OK", ""]
    assert reader.output(python, "transact.py") == ["coffee OK", "cake OK", ""]
    assert reader.received(["coffee", "tea"], python, "receive.py") == ["coffee", "tea"]


def test_the_node_programs_of_the_page_run(names, tmp_path):
    client = interop_clients.prepare_ons()
    reader = Reader(tmp_path, "node.md", "js", client.environment)
    reader.save(names)
    created = CliRunner().invoke(app, ["topic", "create", "Orders", "--names", names])
    assert created.exit_code == 0, created.output

    assert reader.output(client.command[0], "send.js")[-2:] == ["SEND_OK", ""]
    assert reader.received(["tea"], client.command[0], "receive.js") == ["tea"]


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        (
            "index.md",
            f"`rocketmq-client-python`](python.md#rocketmq-client-python) | {CPP_VERSION}",
        ),
        ("index.md", f"`ali-ons`](node.md) | {ONS_VERSION}"),
        ("python.md", f"rocketmq-client-python=={CPP_VERSION}"),
        ("cpp.md", f"`rocketmq-client-python` {CPP_VERSION}"),
        ("node.md", f"ali-ons@{ONS_VERSION}"),
    ],
)
def test_a_client_page_names_the_tested_version(page, shown):
    assert shown in (PAGES / page).read_text()
