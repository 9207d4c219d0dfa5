"""What the documentation shows runs.

Each page's Python snippets are executed one after the other, against a broker of their own. They
have ``names``, its name server, and may await. One that would go on for ever is ended, as by
Ctrl-C, once it has printed something.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from typer.testing import CliRunner

from tests.serving import environment
from txmq.cli.root import app
from txmq.idempotent.schema import create_done
from txmq.transaction.resources.schema import create_fence
from txmq_broker.config import BrokerSettings, FilterSettings, StoreSettings
from txmq_broker.testing import BrokerThread

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICKSTART = ROOT / "docs/quickstart.md"
SAID_NAMES = "127.0.0.1:9876"
PATIENCE_S = 20
SAID = {
    "README": r"^t-1 COMMITTED 4000 None\nt-2 ROLLED_BACK None too little money\n$",
    "two-banks": r"^TransactionState\.COMMITTED [0-9A-F]{32}\ncredited 100\n$",
    "send": r"(SendStatus\.OK.*?){200}not stored: ",
    "ordered": r"(SendStatus\.OK.*?){100}\nplaced\n",
    "batch": r"(SendStatus\.OK.*?){100}\na batch of \d+\n",
    "filter": r"^myTag[AB] Hi Filter Tag Msg \d.*?\n[0-6] Hi Filter SQL Msg [0-6]\n",
    "consume": r"b'hello'\n.*(attempt 0 failed: |consumed \w+ tag: TAG_TEST ).*reported b'hello'\n",
    "pull": r"^hello\nhello\nhello\n$",
    "broadcast": r"^new price: 42\n$",
    "request-reply": r"^the price is 42\n$",
    "delay": r"^(SendResult\(status=<SendStatus\.OK.*?\n){3}tea in time\nrecalled True\n$",
    "transaction-listener": r"^COMMITTED True None\nROLLED_BACK True too little money\n"
    r"in the thread that sends: order-7\nCOMMITTED\n$",
    "transaction": r"^COMMITTED 4000 None\nROLLED_BACK None too little money\n"
    r"COMMITTED \{'id': 1, 'amount': 700\}\nTrue\nCOMMITTED\n$",
    "idempotent": r"^120\nVerdict\.FIRST\n$",
    "idempotent-versions": r"^version 2 is 900\nVerdict\.FIRST\n$",
    "idempotent-tokens": r"^(200 \{'paid': 30\}\n){2}422 .*\n$",
    "fence": r"^INSERT INTO txmq_fence_mark\n\S+\.COMMIT\n\S+\.COMMIT\n\S+\.ROLLBACK\n0\n$",
    "test-handlers": r"^seed 5, 1 key, 3 attempts:\n.* had 3 effects:\n.*: killed: after",
    "trace": r"^SendRecord\(at_ms=\d+, region='DefaultRegion', group='shop', topic='Orders', ",
    "relay": r"^1 published\n0 left\n$",
    "blocking": r"^OK 0\n10\n(billing (tea|milk)\n){11}read \d+\n$",
}
"""What the snippets of a page print, one after the other."""


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


class Said(io.StringIO):
    """What was printed, from whatever thread; the first line of it can be waited for."""

    def __init__(self, loop):
        super().__init__()
        self._loop = loop
        self.first = asyncio.Event()

    def write(self, text):
        self._loop.call_soon_threadsafe(self.first.set)
        return super().write(text)


async def awaited(code, found, *, is_endless):
    said = Said(asyncio.get_running_loop())
    async with asyncio.timeout(PATIENCE_S):
        with redirect_stdout(said):
            running = asyncio.ensure_future(eval(code, found))
            if is_endless:
                first = asyncio.ensure_future(said.first.wait())
                await asyncio.wait([running, first], return_when=asyncio.FIRST_COMPLETED)
                first.cancel()
                assert not running.done(), running
                running.cancel()
                (outcome,) = await asyncio.gather(running, return_exceptions=True)
                assert isinstance(outcome, asyncio.CancelledError), outcome
            else:
                await running
    return said.getvalue()


def run(snippet, found, page):
    """Execute one snippet; returns what it printed."""
    code = compile(snippet, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        return asyncio.run(awaited(code, found, is_endless=".wait()" in snippet))
    with redirect_stdout(io.StringIO()) as said:
        exec(code, found)
    return said.getvalue()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Somewhere to write files to that is nobody's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def broker():
    """A broker that takes every filter that is shown."""
    settings = BrokerSettings(store=StoreSettings(flush="async"), filter=FilterSettings(sql=True))
    with BrokerThread(settings) as running:
        yield running


@pytest.fixture
def banks(request):
    """Makes the databases that a snippet names, with an account of A's and our tables."""
    made = {}
    with contextlib.ExitStack() as stack:

        def for_snippet(snippet):
            for shown in re.findall(r"postgresql\+psycopg:///\w+", snippet):
                if shown not in made:
                    postgres = request.getfixturevalue("postgres")
                    made[shown] = stack.enter_context(postgres.database())
                    open_account(made[shown])
            return {each: url.render_as_string(False) for each, url in made.items()}

        yield for_snippet


def open_account(url):
    engine = create_engine(url)
    create_fence(engine, "txmq_fence", None)
    create_done(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (name TEXT PRIMARY KEY, balance INT)"))
        connection.execute(text("INSERT INTO account VALUES ('A', 1000)"))
    engine.dispose()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if snippets(page) and page != QUICKSTART],
    ids=lambda page: page.stem,
)
def test_the_snippets_of_a_page_run(page, broker, elsewhere, banks):
    found = {"names": broker.names}
    said, engines = "", {}
    for snippet in snippets(page):
        for shown, real in {SAID_NAMES: broker.names, **banks(snippet)}.items():
            snippet = snippet.replace(shown, real)
        said += run(snippet, found, page)
        # Each program of a page has an engine of the same name.
        engines |= {id(value): value for value in found.values() if isinstance(value, Engine)}
    assert re.search(SAID.get(page.stem, ""), said, re.DOTALL), said
    for name, value in found.items():
        if name.startswith("test_"):
            with BrokerThread() as fresh:  # As the fixture gives it: each test has its own.
                value(*[fresh for _ in inspect.signature(value).parameters])
    for engine in engines.values():
        engine.dispose()


class Reader:
    """A program of the quick start, saved and run as its reader would."""

    def __init__(self, file, snippet, names):
        file.write_text(snippet.replace(SAID_NAMES, names))
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._guard = threading.Timer(PATIENCE_S, self.process.kill)

    def __enter__(self):
        self._guard.start()
        return self.process

    def __exit__(self, *problem):
        self._guard.cancel()
        self.process.kill()
        self.process.communicate()


def test_the_quick_start_does_what_it_says(txmq_broker, tmp_path):
    send, consume = snippets(QUICKSTART)

    with Reader(tmp_path / "send.py", send, txmq_broker.names) as sending:
        said, complaint = sending.communicate()
        assert (sending.returncode, complaint) == (0, "")
    assert [line.split()[0] for line in said.splitlines()] == ["OK"] * 3

    with Reader(tmp_path / "consume.py", consume, txmq_broker.names) as consuming:
        lines = [consuming.stdout.readline() for _ in range(3)]
        consuming.send_signal(signal.SIGINT)
        said, complaint = consuming.communicate()
        assert (consuming.returncode, complaint, said) == (0, "", "")
    assert sorted(lines) == [f"billing order {number}\n" for number in range(3)]


def test_the_programs_of_two_banks_contain_the_lines_of_the_landing_page():
    programs = snippets(ROOT / "docs/howto/two-banks.md")
    shown = re.findall(r"```py\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)

    assert len(shown) == 2
    for lines in shown:
        assert [program for program in programs if lines in program], lines


def test_the_fixture_offers_what_the_pages_show(txmq_broker):
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.names)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", txmq_broker.address)


def test_the_commands_of_the_quick_start_do_what_they_say(txmq_broker):
    section = QUICKSTART.read_text().partition("## 4. Ask by commands\n")[2].partition("\n## ")[0]
    commands = [shlex.split(each) for each in re.findall(r"^\$ txmq (.+)$", section, re.MULTILINE)]
    assert len(commands) >= 4

    said = ""
    for command in commands:
        result = CliRunner().invoke(app, command, env={"TXMQ_NAMES": txmq_broker.names})
        assert (result.exit_code, result.stderr) == (0, ""), command
        said += result.stdout

    assert "topic Refunds has 4 queues" in said
    assert re.search(r"Paid +order-1 +hello", said)
    assert txmq_broker.address in said
