"""The web programs of the documentation, driven over HTTP: database, topic and answers agree."""

import concurrent.futures
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from examples.web.bank import TABLES
from tests.servers.serving import environment
from txmq import blocking
from txmq.errors import TopicNotFound
from txmq.runtime.background import Background
from txmq.settings.units import Duration
from txmq.transaction.resources.schema import create_fence
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import BrokerThread

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/howto/web-frameworks.md"
FRAMEWORKS = ["fastapi", "flask", "django"]
PATIENCE_S = 50
SOON = BrokerSettings(
    store=StoreSettings(flush="async"),
    transaction=CheckBackSettings(timeout=Duration(1.0), check_interval=Duration(0.2)),
)
DJANGO = """
import socketserver, wsgiref.simple_server as simple
from examples.web.django_bank import main

class Server(socketserver.ThreadingMixIn, simple.WSGIServer):
    daemon_threads = True

class Quiet(simple.WSGIRequestHandler):
    def log_message(self, *words):
        pass

server = simple.make_server("127.0.0.1", 0, main(), Server, Quiet)
print(server.server_port, flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    server.server_close()
"""
KILL_AT_COMMIT = """
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON transfer DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION die()
"""


class Bank:
    """The database, as an outside observer sees it."""

    def __init__(self, url):
        self.url = make_url(url)
        self._engine = create_engine(self.url)
        for statement in (*TABLES, "INSERT INTO account VALUES ('A', 100)"):
            self.order(statement)
        create_fence(self._engine, "txmq_fence", None)

    def order(self, statement):
        with self._engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    @property
    def balance(self):
        ((balance,),) = self.order("SELECT balance FROM account")
        return balance

    @property
    def booked(self):
        return sorted(transfer_id for (transfer_id,) in self.order("SELECT id FROM transfer"))

    def of(self, driver):
        return self.url.set(drivername=driver).render_as_string(hide_password=False)

    def close(self):
        self._engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request, tmp_path):
    """A bank with an account that holds 100."""
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/bank.db"
        else:
            url = stack.enter_context(request.getfixturevalue("postgres").database())
        opened = Bank(url)
        yield opened
        opened.close()


@pytest.fixture
def broker():
    """A broker that checks soon."""
    with BrokerThread(SOON) as running:
        yield running


class Awaited:
    """An asyncio client whose requests run in a loop of their own."""

    def __init__(self, app, background):
        self._background = background
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://bank")

    def get(self, path):
        return self._background.wait(self._client.get(path))

    def post(self, path, json):
        return self._background.wait(self._client.post(path, json=json))

    def close(self):
        self._background.wait(self._client.aclose())


@contextlib.contextmanager
def fastapi_site(bank, names):
    from examples.web.fastapi_bank import create_app

    is_file = bank.url.get_backend_name() == "sqlite"
    app = create_app(bank.of("sqlite+aiosqlite" if is_file else "postgresql+psycopg"), names)
    background, life = Background(), app.router.lifespan_context(app)
    with contextlib.ExitStack() as stack:
        background.start()
        stack.callback(background.stop)
        background.wait(life.__aenter__())
        stack.callback(lambda: background.wait(life.__aexit__(None, None, None)))
        yield stack.enter_context(contextlib.closing(Awaited(app, background)))


@contextlib.contextmanager
def disposed(engine):
    yield
    engine.dispose()


@contextlib.contextmanager
def flask_site(bank, names):
    from examples.web.flask_bank import create_app

    engine = create_engine(bank.url)
    app = create_app(engine, names)
    with (
        disposed(engine),
        app.extensions["txmq"],
        httpx.Client(transport=httpx.WSGITransport(app), base_url="http://bank") as client,
    ):
        yield client


@contextlib.contextmanager
def django_site(bank, names):
    kind = {"sqlite": "sqlite3", "postgresql": "postgresql"}[bank.url.get_backend_name()]
    settings = {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": bank.url.database,
        "USER": bank.url.username or "",
        "PASSWORD": bank.url.password or "",
        "HOST": bank.url.host or "",
        "PORT": bank.url.port or "",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", DJANGO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "BANK_DATABASE": json.dumps(settings), "TXMQ_NAMES": names},
        cwd=ROOT,
    )
    guard = threading.Timer(PATIENCE_S, process.kill)
    guard.start()
    try:
        port = process.stdout.readline().strip()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
        process.send_signal(signal.SIGINT)
        output, complaint = process.communicate()
        assert (process.returncode, output, complaint) == (0, "", "")
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


SITES = {"fastapi": fastapi_site, "flask": flask_site, "django": django_site}


@pytest.fixture(params=FRAMEWORKS)
def site(request, bank, broker):
    """The program of one framework, ready for requests."""
    with SITES[request.param](bank, broker.names) as client:
        yield client


def ask(site, name, amount, payer="A"):
    answer = site.post("/transfers", json={"id": name, "payer": payer, "amount": amount})
    return answer.status_code, answer.json()


def visible(broker):
    """The keys of the messages that consumers see, once no transaction is open."""
    with blocking.Client(broker.names) as client:
        while client.admin.transactions():
            threading.Event().wait(0.02)
        with contextlib.suppress(TopicNotFound):
            return sorted(
                key
                for queue in client.admin.route("transfer").readable
                for message in client.admin.pull(queue, 0).messages
                for key in message.keys
            )
    return []


def test_a_transfer_is_booked_or_refused_on_both_sides(site, bank, broker):
    assert site.get("/health").json() == {"state": "well"}

    status, first = ask(site, "t-1", 60)
    assert (status, first["state"]) == (200, "booked")
    assert ask(site, "t-2", 60) == (409, {"state": "refused", "reason": "too little money"})
    assert ask(site, "t-3", 1, payer="B")[1]["reason"] == "account B does not exist"
    assert ask(site, "t-4", -5)[0] == 409

    assert ask(site, "t-1", 60) == (200, first)
    assert ask(site, "t-1", 61)[0] == 422
    assert (bank.balance, bank.booked) == (40, ["t-1"])
    assert visible(broker) == ["t-1"]


def test_simultaneous_requests_for_one_transfer_book_it_once(site, bank, broker):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ask(site, "t-1", 10), range(8)))

    assert {(status, body["state"]) for status, body in answers} == {(200, "booked")}
    assert len({body["xid"] for _, body in answers}) == 1
    assert (bank.balance, bank.booked) == (90, ["t-1"])
    assert visible(broker) == ["t-1"]


@pytest.mark.fault("P5")
@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
def test_a_commit_without_an_answer_is_settled_by_asking_again(site, bank, broker):
    """The server dies in the middle of a COMMIT; the caller asks again and learns the outcome."""
    bank.order(KILL_AT_COMMIT)

    status, body = ask(site, "t-1", 10)
    assert (status, body["state"]) == (202, "not known yet")

    bank.order("DROP FUNCTION die CASCADE")
    assert ask(site, "t-1", 10)[0] == 200
    assert (bank.balance, bank.booked) == (90, ["t-1"])
    assert visible(broker) == ["t-1"]


@pytest.mark.parametrize("bank", ["postgres"], indirect=True)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_booked_without_a_broker(framework, bank):
    with contextlib.ExitStack() as stack:
        with BrokerThread(SOON) as broker:
            site = stack.enter_context(SITES[framework](bank, broker.names))
            assert ask(site, "t-1", 10)[0] == 200
        status, body = ask(site, "t-2", 10)

        assert (status, body["state"]) == (503, "not booked")
        assert (bank.balance, bank.booked) == (90, ["t-1"])


def test_the_page_shows_code_of_the_example_programs():
    programs = "".join(path.read_text() for path in (ROOT / "examples/web").glob("*.py"))
    shown = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert len(shown) >= 6
    for code in shown:
        for part in re.split(r"\n+    # \.\.\.\n+|\n+# \.\.\.\n+", code):
            assert part.strip("\n") in programs, part
