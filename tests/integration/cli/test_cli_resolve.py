"""``txmq resolve`` against a real broker and SQLite; killed services are in tests/integration."""

import asyncio
import itertools
import json
import os
import re
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.console.console_stage import Undecided
from tests.servers.serving import free_port
from txmq import Client, Message, SQLResource, TransactionProducer
from txmq.cli import resolve as module
from txmq.client import Admin
from txmq.errors import DatabaseFailed
from txmq.protocol import properties
from txmq_broker.config import BrokerSettings, CheckBackSettings, StoreSettings
from txmq_broker.testing import BrokerThread

NUMBERS = itertools.count()


@pytest.fixture
def database(txmq, tmp_path):
    url = f"sqlite:///{tmp_path}/bank.db"
    assert txmq("schema", "create", "--database", url).exit_code == 0
    return url


@pytest.fixture(scope="module")
def broker():
    soon = CheckBackSettings(timeout=0.5, check_interval=0.2, check_max=2)
    settings = BrokerSettings(store=StoreSettings(flush="async"), transaction=soon)
    with BrokerThread(settings) as running:
        yield running


@pytest.fixture
def group():
    """A producer group of this test alone: the broker is everybody's."""
    return f"icbc-{next(NUMBERS)}"


@pytest.fixture
def resolve(txmq, broker, database, group):
    def run(*arguments, group=group, **more):
        # Options --database add up: a second one does not replace the first.
        named = [] if "--database" in arguments else ["--database", database]
        where = ["--names", broker.names, *named]
        return txmq("resolve", group, *where, *arguments, **more)

    return run


@pytest.fixture
def prepare(broker, group, fence):
    """Send half messages of a service that is gone; returns their ids."""

    async def send(count, group, fence):
        async with Client(broker.names) as client:
            await client.admin.create_topic("Orders", queues=1)
            async with TransactionProducer(group, client, Undecided()) as producer:
                message = Message(topic="Orders", body=b"x", properties={properties.FENCE: fence})
                return [(await producer.prepare(message)).id for _ in range(count)]

    identity = fence()
    return lambda count, group=group, fence=identity: asyncio.run(send(count, group, fence))


@pytest.fixture
def fence(tmp_path, database, group):
    """Add these committed transactions to the fence; returns its identity."""

    def commit(*xids):
        with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
            for xid in xids:
                connection.execute("INSERT INTO txmq_fence VALUES (?, 1, ?, 5)", (xid, group))
            connection.commit()
            ((identity,),) = connection.execute("SELECT identity FROM txmq_fence_mark").fetchall()
        return identity

    return commit


@pytest.fixture
def at_each_look(monkeypatch):
    """Do something after each count of open transactions, with the resolver's tally."""
    plain = module.Resolver._count_open
    monkeypatch.setattr(module, "SAY_S", 0.0)

    def decorate(work):
        async def looked(self):
            await plain(self)
            await work(self._tally())

        monkeypatch.setattr(module.Resolver, "_count_open", looked)

    return decorate


def test_until_empty_ends_when_no_transaction_is_open(resolve, prepare, fence, group):
    ids = prepare(7)
    fence(*ids[:3])

    result = resolve("--until-empty")

    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        r"7 decided in [\d.]+ s: 3 committed, 4 rolled back; 0 answered with unknown\n",
        result.stdout,
    )
    assert f"answering for {group}" in result.stderr
    again = json.loads(resolve("--until-empty", "--json", "--quiet").stdout)
    assert (again["committed"], again["left"], again["is_good"]) == (0, 0, True)


def test_transactions_of_another_database_are_left_open_and_reported(resolve, prepare):
    prepare(1, fence="elsewhere")
    prepare(1)

    result = resolve("--until-empty", "--quiet")

    assert result.exit_code == 1
    assert "1 is left; list with: txmq tx list" in result.stdout
    assert "answering" not in result.stderr


def test_resolve_leaves_transactions_of_other_groups_alone(resolve, prepare):
    prepare(1, group="ccb")

    result = resolve("--until-empty")

    assert result.exit_code == 0
    assert result.stdout.endswith(
        "; this group had no open transactions; list those of all with: txmq tx list\n"
    )
    misspelt = resolve("--until-empty", group="ccbb")
    assert "no connected producers; the nearest name is 'ccb'" in misspelt.stderr


def test_resolve_reports_its_progress(resolve, prepare, monkeypatch):
    monkeypatch.setattr(module, "SAY_S", 0.0)
    prepare(3)

    progress = resolve("--until-empty").stderr

    assert re.search(r"0 committed, \d rolled back, 0 unknown, \d+ a second, \d open", progress)


@pytest.mark.parametrize("is_slave_left", [False, True])
def test_an_unreachable_broker_does_not_count_as_empty(
    resolve, prepare, monkeypatch, is_slave_left
):
    prepare(1)
    plain, calls = Admin.cluster, []

    async def without_master(self):
        calls.append(self)
        brokers = await plain(self)
        if len(calls) > 6:
            return brokers
        away = {1: "127.0.0.1:1"}
        return [replace(broker, addresses=away) for broker in brokers if is_slave_left]

    monkeypatch.setattr(Admin, "cluster", without_master)

    result = resolve("--until-empty")

    assert result.exit_code == 0, result.output
    assert "1 decided" in result.stdout
    assert "no master of" in result.stderr


def test_a_long_database_outage_leaves_nothing_behind_in_the_resolver(
    resolve, prepare, monkeypatch
):
    prepare(1)
    verify, calls, tallies = SQLResource.verify, [], []
    look_on = module.Resolver._report_until_done

    async def away(self):
        calls.append(self)
        if 1 < len(calls) < 9:
            raise DatabaseFailed("it is away")
        await verify(self)

    async def looked(self):
        tallies.append(len(self._before))
        return await look_on(self)

    monkeypatch.setattr(SQLResource, "verify", away)
    monkeypatch.setattr(module.Resolver, "_report_until_done", looked)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)

    result = resolve("--until-empty")

    assert result.exit_code == 0, result.output
    assert "brokers wait: it is away" in result.stderr
    assert tallies == [1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_resolve_answers_checks_until_a_signal_stops_it(resolve, prepare, how, at_each_look):
    ids, sent = prepare(2), []

    @at_each_look
    async def stop(tally):
        # Once: a second Ctrl-C would end this process at once.
        if tally["checks_rolled_back"] == len(ids) and not sent:
            sent.append(how)
            os.kill(os.getpid(), how)

    others = threading.active_count()

    result = resolve()

    assert result.exit_code == 0, result.output
    assert "2 decided" in result.stdout
    assert threading.active_count() < others + 20


def test_resolve_serves_metrics_and_health_over_http(resolve, prepare, fence, at_each_look):
    fence(prepare(3)[0])
    address, pages = f"127.0.0.1:{free_port()}", {}

    @at_each_look
    async def read_pages(tally):
        if tally["checks_rolled_back"] == 2 and not pages:
            async with httpx.AsyncClient(base_url=f"http://{address}") as client:
                for path in ("/metrics", "/health/live", "/health/ready"):
                    pages[path] = (await client.get(path)).text

    result = resolve("--until-empty", "--http", address)

    assert result.exit_code == 0, result.output
    assert f"metrics and health at http://{address}" in result.stderr
    assert (pages["/health/live"], pages["/health/ready"]) == ("alive\n", "ready\n")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(pages["/metrics"])
        for sample in family.samples
    }
    assert samples["txmq_resolve_answering",] == 1
    for outcome, count in (("committed", 1), ("rolled_back", 2), ("unknown", 0)):
        assert samples["txmq_resolve_answers_total", outcome] == count
    assert samples["txmq_resolve_conflicts_total",] == 0
    assert samples["txmq_resolve_open_transactions",] == 0


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (
            {"--fence": "nowhere"},
            1,
            "table nowhere does not exist: run `txmq schema create fence --fence nowhere ",
        ),
        ({"--fence": "a b"}, 2, "not a plain name"),
        ({"--database": "bank"}, 2, "such as postgresql://user@host/database"),
        ({"--database": "postgresql://nobody@127.0.0.1:1/none"}, 1, "database did not answer"),
        ({"--names": "127.0.0.1:1"}, 1, "127.0.0.1:1"),
        ({"--names": "nonsense"}, 2, "nonsense"),
        ({"--workers": "0"}, 2, "--workers"),
        ({"--http": "9877"}, 2, "'9877' is not an address; write host:port"),
        ({"--http": "192.0.2.1:1"}, 1, "cannot serve metrics"),
    ],
)
def test_invalid_resolve_options_are_refused_in_one_line(resolve, words, code, complaint):
    result = resolve(*(part for pair in words.items() for part in pair))

    assert result.exit_code == code, result.output
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert words.keys() == {"--workers"} or len(result.stderr.splitlines()) == 1


def test_an_invalid_group_name_exits_2(resolve):
    result = resolve(group="no group")

    assert result.exit_code == 2
    assert "producer group" in result.stderr


def test_without_the_sql_extra_resolve_says_what_to_install(resolve, monkeypatch):
    monkeypatch.setitem(sys.modules, "txmq.transaction.resources", None)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "txmq.databases.engines", raising=False)
    monkeypatch.delitem(sys.modules, "txmq.transaction.resources", raising=False)

    result = resolve()

    assert result.exit_code == 1
    assert "pip install 'txmq[sql]'" in result.stderr


def test_until_empty_is_refused_at_a_stock_broker(asking, database):
    result = asking("resolve", "icbc", "--database", database, "--until-empty")

    assert result.exit_code == 1
    assert "leave out --until-empty" in result.stderr
