"""`txmq worker` as users run it: real processes, a real broker, and signals."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest

from tests.integration.worker.worker_process import WorkerProcess, is_running, wait_for
from tests.servers.serving import environment
from txmq import Message
from txmq.blocking import Client, Producer
from txmq_broker.testing import BrokerThread

HEAD = """
import asyncio
import os
from pathlib import Path

from txmq import Client, ConsumerSettings, Later, ReceivedMessage, StartFrom

client = Client(os.environ["TXMQ_NAMES"])
first = ConsumerSettings(start=StartFrom.FIRST)


def note(body):
    with open("done", "a") as file:
        file.write(f"{body} {os.getpid()}\\n")

"""

LOAD = """
@client.on("Load", group="load", settings=first)
async def handle(body: str):
    await asyncio.sleep(0.005)
    note(body)


@client.every(topic="Ticks", interval=1)
def tick():
    return {"from": os.getpid()}
"""

GATED = """
@client.on("Gated", group="gated", settings=first)
async def handle(body: str):
    note("began-" + body)
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    note("ended-" + body)
"""

RELOADED = """
@client.on("Reloaded", group="reloaded", settings=first)
async def handle(body: str):
    note("VERSION-" + body)
"""

TYPED = """
from msgspec import Struct
from pydantic import BaseModel


class Order(Struct):
    number: int
    card: str


class Invoice(BaseModel):
    number: int


@client.on("Typed", group="typed", settings=first)
def bill(message: ReceivedMessage, order: Order):
    note(f"{order.number}-{message.tags}")
    if order.number == 7:
        raise ValueError("no sevens")


@client.on("Invoices", group="typed")
async def send(invoice: Invoice):
    note(f"invoice-{invoice.number}")
"""

BLOCKING = """
from dataclasses import dataclass, replace

from sqlalchemy import create_engine

from txmq import Message, Middleware, Outbox, Relay, SQLResource, blocking
from txmq.outbox.table import create_outbox
from txmq.transaction.resources.schema import create_fence

engine = create_engine("sqlite:///bank.db")
create_fence(engine)
create_outbox(engine)
shared = blocking.Client(os.environ["TXMQ_NAMES"])
tm = blocking.TransactionManager("bank", shared, SQLResource(engine))
relay = Relay(engine, client)
outbox = Outbox()


class Stamp(Middleware):
    async def send(self, message, call_next):
        return await call_next(replace(message, properties={**message.properties, "by": "stamp"}))


shared.middleware(Stamp())
client.middleware(Stamp())


@dataclass
class Order:
    id: str


@shared.on("Purchases", group="bank", settings=first)
@tm.transactional(topic="Bills", keys=lambda order: order.id)
def buy(session, order: Order):
    outbox.add(session, Message(topic="Letters", body=order.id.encode()))


@shared.on("Bills", group="bank")
def bill(order: Order, message: ReceivedMessage):
    note(f"bill-{order.id}-{message.key}-{message.properties['by']}")


@client.on("Letters", group="letters", settings=first)
async def post(text: str, message: ReceivedMessage):
    note(f"letter-{text}-{message.properties['by']}")
"""


@pytest.fixture(scope="module")
def cluster():
    with (
        BrokerThread() as broker,
        Client(broker.names) as client,
        Producer("p", client) as producer,
    ):
        for topic in (
            "Load",
            "Ticks",
            "Gated",
            "Reloaded",
            "Typed",
            "Invoices",
            "Purchases",
            "Bills",
            "Letters",
        ):
            client.admin.create_topic(topic, queues=4)
        yield SimpleNamespace(names=broker.names, admin=client.admin, producer=producer)


@pytest.fixture
def start(cluster, tmp_path):
    def worker(text, *options, **more):
        return WorkerProcess(tmp_path, cluster.names, HEAD + text, *options, **more)

    return worker


def send(cluster, topic, *bodies, tags=""):
    for body in bodies:
        data = body if isinstance(body, bytes) else body.encode()
        cluster.producer.send(Message(topic=topic, body=data, tags=tags))


def test_a_killed_process_and_a_rolling_restart_lose_nothing(cluster, start):
    wanted = [f"m{number}" for number in range(400)]
    with start(LOAD, "--processes", "2") as worker:
        worker.until_ready()
        before = worker.pids()
        send(cluster, "Load", *wanted[:200])
        worker.until(lambda: len(worker.did()) > 20)
        os.kill(before[0], signal.SIGKILL)
        send(cluster, "Load", *wanted[200:300])
        # The page may show the killed process for a moment.
        after = worker.until(lambda: (pids := worker.pids())[1:] and pids != before and pids)
        assert after[1] == before[1]
        assert worker.metric("process_restarts_total") == 1
        assert "process 1 ended: killed by SIGKILL; another starts in" in worker.log()

        worker.process.send_signal(signal.SIGHUP)
        send(cluster, "Load", *wanted[300:])
        worker.until_ready(times=2)
        assert not {*worker.pids()} & {*after}
        worker.until(lambda: {*worker.bodies()} == {*wanted})
        assert len({pid for _, pid in worker.did()}) >= 2
        worker.until(lambda: len(all_of(cluster, "Ticks")) >= 2)
        assert worker.stop() == 0
    # One of the two processes sends each tick, and a restarted process repeats none.
    keys = [message.key for message in all_of(cluster, "Ticks")]
    assert len({*keys}) == len(keys)
    assert all(key.startswith("tick@") for key in keys)


def all_of(cluster, topic):
    queues = cluster.admin.route(topic).readable
    return [
        message
        for queue in queues
        for message in cluster.admin.pull(queue, cluster.admin.min_offset(queue)).messages
    ]


def test_a_stop_finishes_messages_in_hand_and_fetches_no_more(cluster, start):
    with start(GATED, "-p", "2") as worker:
        worker.until_ready()
        send(cluster, "Gated", "a", "b", "c")
        worker.until(lambda: worker.metric("in_hand", group="gated", topic="Gated") == 3)
        children = worker.pids()
        worker.process.send_signal(signal.SIGTERM)
        worker.until(lambda: worker.log().count("draining 1 consumer") == 2)
        with pytest.raises(HTTPError, match="503"):
            worker.page("/health/ready")
        send(cluster, "Gated", "late")
        (worker.folder / "go").touch()
        assert worker.process.wait(20) == 0
        assert sorted(worker.bodies()) == [
            f"{word}-{body}" for word in ("began", "ended") for body in "abc"
        ]
    assert not any(map(is_running, children))
    assert cluster.admin.group_lag("gated").lag == 1


def test_processes_finish_their_work_if_the_supervisor_is_killed(cluster, start):
    with start(GATED.replace("Gated", "Load").replace("gated", "orphans"), "-p", "2") as worker:
        worker.until_ready()
        children = worker.pids()
        worker.until(lambda: worker.bodies())
        worker.process.kill()
        worker.until(lambda: worker.log().count("the supervisor is gone") == 2)
        (worker.folder / "go").touch()
        worker.until(lambda: not any(map(is_running, children)))
        bodies = worker.bodies()
        assert bodies.count("began-m1") == bodies.count("ended-m1") == 1
        assert len(bodies) % 2 == 0


def test_a_second_signal_ends_a_worker_at_once(cluster, start):
    with start(GATED.replace("gated", "hasty")) as worker:
        worker.until_ready()
        worker.until(worker.bodies)
        (child,) = worker.pids()
        worker.process.send_signal(signal.SIGINT)
        worker.until(lambda: "press Ctrl-C again" in worker.log())
        assert worker.stop(signal.SIGINT) == 1
        wait_for(lambda: not is_running(child), "the process is gone")
        assert not any(body.startswith("ended") for body in worker.bodies())


def test_handlers_that_outlast_the_drain_are_cancelled_and_messages_redelivered(cluster, start):
    with start(GATED.replace("gated", "slow"), "--drain-timeout", "0.1") as worker:
        worker.until_ready()
        worker.until(lambda: worker.metric("in_hand", group="slow", topic="Gated") == 4)
        assert worker.stop() == 0
        assert "given up: handlers still work on 4 messages" in worker.log()
    assert cluster.admin.group_lag("slow").lag == 4


def test_an_edit_reloads_and_a_syntax_error_waits_for_a_fix(cluster, start):
    with start(RELOADED.replace("VERSION", "one"), "--reload") as worker:
        worker.until_ready()
        send(cluster, "Reloaded", "a")
        worker.until(lambda: worker.bodies() == ["one-a"])
        worker.app.write_text(HEAD + RELOADED.replace("VERSION", "two"))
        worker.until_ready(times=2)
        assert "changed: app.py; restarting" in worker.lines
        send(cluster, "Reloaded", "b")
        worker.until(lambda: worker.bodies() == ["one-a", "two-b"])

        worker.app.write_text(HEAD + "def handle(:\n")
        worker.until(lambda: "waiting for a change" in worker.log())
        assert "app cannot be imported: invalid syntax" in worker.log()
        send(cluster, "Reloaded", "c")
        worker.app.write_text(HEAD + RELOADED.replace("VERSION", "three"))
        worker.until_ready(times=3)
        worker.until(lambda: worker.bodies() == ["one-a", "two-b", "three-c"])
        assert worker.stop() == 0


def test_a_rolling_restart_keeps_the_other_processes_if_the_new_code_is_broken(cluster, start):
    with start(RELOADED.replace("VERSION", "old"), "-p", "2", "--restarts", "1") as worker:
        worker.until_ready()
        first, second = worker.pids()
        worker.app.write_text("1 / 0")
        worker.process.send_signal(signal.SIGHUP)
        worker.until(lambda: "process 1 does not start again; the others keep" in worker.log())
        assert "app cannot be imported: ZeroDivisionError: division by zero" in worker.log()
        assert worker.pids() == [second]
        send(cluster, "Reloaded", "d", "e")
        worker.until(lambda: {"old-d", "old-e"} <= {*worker.bodies()})
        worker.app.write_text(HEAD + RELOADED.replace("VERSION", "new"))
        worker.until_ready(times=2)
        assert worker.pids()[1] == second
        assert worker.pids()[0] != first
        assert worker.stop() == 0


def test_invalid_bodies_become_dead_letters_with_a_reason_and_the_group_goes_on(cluster, start):
    bad = [
        b'{"number": "4111111111111111", "card": "x"}',
        b'{"number": 1}',
        b"\xff\x1b[31m\xe2\x80\xae" + b"k" * 100_000,
    ]
    good = [f'{{"number": {number}, "card": "4111"}}' for number in (1, 7, 2)]
    with start(TYPED) as worker:
        worker.until_ready()
        send(cluster, "Typed", *bad, *good, tags="Paid")
        send(cluster, "Invoices", '{"number": "x4111"}', '{"number": 5}')
        worker.until(lambda: {*worker.bodies()} == {"1-Paid", "7-Paid", "2-Paid", "invoice-5"})
        of_typed = {"group": "typed", "topic": "Typed"}
        worker.until(lambda: worker.metric("failed_total", **of_typed) == 4)
        assert worker.metric("handled_total", **of_typed) == 2
        assert worker.metric("dead_letters_total", **of_typed) == 3
        assert worker.metric("retried_total", **of_typed) == 1
        assert worker.metric("in_hand", **of_typed) == 0
        assert worker.metric("handler_seconds_count", **of_typed) == 6
        assert worker.metric("dead_letters_total", group="typed", topic="Invoices") == 1
        assert worker.page("/health/ready") == "ready\n"
        shown = wait_for(lambda: letters_shown(cluster, 4), "four dead letters")
        assert worker.stop() == 0
    for reason in (
        "Order: Expected int, got str at $.number",
        "Order: Object missing required field card",
        "Order: JSON is malformed: invalid character (byte 0)",
        "Invoice: Input should be a valid integer, unable to parse string as an integer at $.num",
    ):
        assert f"the body does not fit {reason}" in shown
    assert "4111" not in shown
    assert "\x1b" not in shown


def test_managers_relays_and_handlers_of_both_apis_work_together(cluster, start):
    with start(BLOCKING, target="app") as worker:
        worker.until_ready()
        for what in ("Purchases as bank", "Letters as letters", "checks of bank", "relay of txmq"):
            assert what in worker.lines[1]
        send(cluster, "Purchases", '{"id": "a"}', '{"id": "b"}')
        wanted = {"bill-a-a-stamp", "bill-b-b-stamp", "letter-a-stamp", "letter-b-stamp"}
        worker.until(lambda: {*worker.bodies()} == wanted)
        worker.until(
            lambda: worker.metric("relayed_total", outbox="txmq_outbox", outcome="published") == 2
        )
        assert worker.metric("transactions_total", group="bank", outcome="committed") == 2
        assert worker.metric("handled_total", group="bank", topic="Purchases") == 2
        worker.until(lambda: worker.metric("lag", group="bank") is not None)
        assert worker.stop() == 0
    assert cluster.admin.group_lag("bank").lag == 0


def letters_shown(cluster, count):
    words = ["dlq", "show", "typed", "--names", cluster.names]
    text = subprocess.run(
        [sys.executable, "-m", "txmq", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=20,
    ).stdout
    return text if text.count("its consumer gave it up") == count else ""


@pytest.mark.parametrize(
    ("text", "options", "code", "reason"),
    [
        ("", {"target": "app:clinet"}, 2, "app has no name 'clinet'; the nearest name is 'client'"),
        ("import os; os._exit(3)", {}, 1, "process 1 died 2 times in a row, the last time: exit"),
    ],
)
def test_an_application_that_cannot_start_ends_the_worker(start, text, options, code, reason):
    with start(text, "-p", "2", "--restarts", "2", **options) as worker:
        assert worker.process.wait(20) == code
        assert worker.log().count(reason) == 1
