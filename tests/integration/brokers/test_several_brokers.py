"""`txmq serve --brokers 2`: one cluster of two processes, used, killed, drained and restarted."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.integration.worker.worker_process import is_running, wait_for
from tests.interop.interop_clients import prepare_cpp
from tests.interop.interop_stage import Stage, assert_once, half, letters
from tests.servers.several_brokers import SeveralBrokers
from txmq import Message
from txmq.client import Admin, Session
from txmq.errors import TxmqError
from txmq.message import Queue

QUEUES = 2
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
NAMES = ("broker-a", "broker-b")

Acknowledged = dict[tuple[str, int, int], bytes]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory) -> Iterator[SeveralBrokers]:
    running = SeveralBrokers(tmp_path_factory.mktemp("brokers"))
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def cpp():
    return prepare_cpp()


def test_the_ready_line_and_the_metrics_page_name_all_brokers(brokers):
    addresses = ";".join(brokers.addresses)
    data = brokers.folder / "data"

    assert brokers.ready_lines() == [f"ready brokers {addresses} names {brokers.names} data {data}"]
    assert brokers.page("/health/ready") == (200, "ready\n")
    text = brokers.page("/metrics")[1]
    for name in NAMES:
        assert f'txmq_broker_ready{{broker="{name}"}} 1.0' in text
        assert f'txmq_broker_process_ready{{broker="{name}"}} 1.0' in text
    heads = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(heads) == len(set(heads)), "Prometheus refuses a second head of a metric"
    assert len(set(brokers.pids().values())) == len(NAMES)


@pytest.mark.timeout(90)
def test_a_stock_client_uses_both_brokers(brokers, cpp, tmp_path):
    stage = Stage(brokers, tmp_path, "Stock")
    try:
        topic, group = stage.topic(queues=QUEUES), stage.group()
        consumer = stage.consumer(cpp, topic, group)
        sender = stage.transactor(cpp, topic, stage.group(), "COMMIT")
        lines = letters("plain", 8)
        halves = [half(f"half-{number}", "COMMIT") for number in range(4)]

        stage.send(sender, [*lines, *halves])
        stage.wait_handled([consumer], [*lines, *halves])
        sender.leave()
        consumer.leave()
    finally:
        stage.close()

    assert_once([consumer], [*lines, *halves])
    assert all(brokers.ends_at(topic, QUEUES)), "one broker has no message"
    assert all(brokers.ends_at(HALF_TOPIC, 1)), "one broker has no transaction"


async def load(
    names: str, acknowledged: Acknowledged, refused: set[str], is_over: threading.Event
) -> None:
    """Send to both brokers; note the acknowledged messages and the brokers that refused one."""
    async with Session(names, answer_s=5.0) as session:
        admin = Admin(session)

        async def send(broker: str, number: int) -> None:
            count = 0
            while not is_over.is_set():
                count += 1
                body = f"{broker} {number} {count}".encode()
                queue = Queue("Killed", broker, count % QUEUES)
                try:
                    receipt = await admin.send(Message(topic="Killed", body=body), queue)
                except TxmqError:
                    refused.add(broker)
                    await asyncio.sleep(0.05)
                    continue
                place = (broker, receipt.queue.number, receipt.offset)
                assert place not in acknowledged, f"{place} was given twice"
                acknowledged[place] = body

        await asyncio.gather(*[send(name, number) for name in NAMES for number in range(8)])


async def stored(names: str) -> Acknowledged:
    bodies: Acknowledged = {}
    async with Session(names) as session:
        admin = Admin(session)
        for broker in NAMES:
            for number in range(QUEUES):
                queue, offset = Queue("Killed", broker, number), 0
                while (batch := await admin.pull(queue, offset)).found:
                    for message in batch.messages:
                        bodies[broker, number, message.offset] = message.body
                        offset = message.offset + 1
    return bodies


def test_kill_9_of_one_broker_loses_nothing_and_leaves_the_other_alone(brokers):
    brokers.create_topic("Killed", QUEUES)
    acknowledged: Acknowledged = {}
    refused: set[str] = set()
    is_over = threading.Event()
    sending = threading.Thread(
        target=lambda: asyncio.run(load(brokers.names, acknowledged, refused, is_over))
    )
    sending.start()

    def count(broker):
        return sum(place[0] == broker for place in list(acknowledged))

    try:
        wait_for(lambda: count("broker-b") > 100, brokers.tail)
        killed, kept = brokers.pids()["broker-b"], brokers.pids()["broker-a"]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: brokers.brokers_of("Killed") == ["broker-a"], "the route to change")
        before = count("broker-a")
        wait_for(lambda: count("broker-a") > before + 100, "the other broker to go on")
        brokers.until_healthy()
        before = count("broker-b")
        wait_for(lambda: count("broker-b") > before + 20, "the killed broker to go on")
    finally:
        is_over.set()
        sending.join()

    assert brokers.pids()["broker-a"] == kept
    assert brokers.pids()["broker-b"] != killed
    assert refused == {"broker-b"}
    found = asyncio.run(stored(brokers.names))
    assert {place: found.get(place) for place in acknowledged} == acknowledged
    assert (
        'txmq_broker_process_restarts_total{broker="broker-b"} 1.0' in brokers.page("/metrics")[1]
    )


def test_brokers_of_a_killed_supervisor_end_and_the_next_one_serves_their_messages(brokers):
    pids = brokers.pids().values()
    before = asyncio.run(stored(brokers.names))

    brokers.kill()
    brokers.start()  # At once: the directories are still locked.

    wait_for(lambda: not any(is_running(pid) for pid in pids), "the brokers to end")
    assert asyncio.run(stored(brokers.names)) == before


def test_a_directory_of_several_brokers_is_not_served_in_part(brokers):
    pids = brokers.pids().values()
    brokers.stop()

    assert not any(is_running(pid) for pid in pids)
    assert "Traceback" not in brokers.tail(1_000_000)
    first = brokers.folder / "data" / "broker-a"
    for words, reason in {
        ("serve", "--brokers", "1"): "also holds broker-b",
        ("serve",): "Start all with --brokers 2",
        ("serve", "--drain-timeout", "9"): "--drain-timeout needs --brokers",
        ("serve", "--data", str(first), "--brokers", "2"): "is the directory of one broker",
        ("log verify",): f"broker-a, broker-b; name one, as {first}",
    }.items():
        code, text = brokers.refusal(*words)
        assert code == 2
        assert reason in text


def test_a_broker_with_a_damaged_directory_leaves_the_others_running(brokers):
    config = brokers.folder / "data" / "broker-b" / "config"
    tables = {path: path.read_bytes() for path in config.glob("topics.json*")}
    for path in tables:
        path.write_text("damaged")
    brokers.launch()
    reason = "broker-b does not run: config/topics.json: it is damaged"

    wait_for(
        lambda: can_reach(brokers) and reason in brokers.page("/health/ready")[1], brokers.tail
    )
    assert brokers.page("/health/ready")[0] == 503
    wait_for(lambda: brokers.brokers_of("Killed") == ["broker-a"], brokers.tail)
    for path, data in tables.items():
        path.write_bytes(data)
    brokers.until_healthy()

    assert brokers.brokers_of("Killed") == list(NAMES)
    brokers.stop()


def can_reach(brokers):
    try:
        return bool(brokers.page("/health/live"))
    except OSError:
        return False
