"""Every program of the tour, run as its reader would run it, against `txmq serve`."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
from typing import NamedTuple

import pytest

from tests.servers.serving import CHECKOUT, BrokerProcess, environment
from txmq import Message
from txmq.client import Admin, Session

PATIENCE_S = 30
# A failed message comes again after the third level.
SETTINGS = ("filter.sql=true", "delay.levels=1s 1s 1s")
RESULT = re.compile(
    r"SendResult\(status=<SendStatus\.(?P<status>\w+): \d+>, "
    r"queue=Queue\(topic='(?P<topic>\w+)', broker='(?P<broker>[\w-]+)', number=(?P<number>\d+)\), "
    r"offset=(?P<offset>\d+), id='(?P<id>\w+)'"
)
BODY = re.compile(r"ReceivedMessage\(topic='\w+', body=b'([^']*)', tags='(\w*)', keys=\(([^)]*)\)")


class Stored(NamedTuple):
    topic: str
    number: int
    offset: int
    id: str


@pytest.fixture
def broker(tmp_path):
    running = BrokerProcess(tmp_path / "broker", settings=SETTINGS)
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def busy_broker(tmp_path_factory):
    """A shared broker for tests that do not count its messages."""
    running = BrokerProcess(tmp_path_factory.mktemp("busy-broker"), settings=SETTINGS)
    running.start()
    asyncio.run(send(running, b"text", topics=TOPICS))
    yield running
    running.close()


class Program:
    """A running program of the tour, whose lines a test can wait for."""

    def __init__(self, name, broker, *more):
        self.name = name
        self.lines = []
        self._changed = threading.Condition()
        self._is_over = False
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"examples.rocketmq_tour.{name}",
                "--names",
                broker.names,
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=CHECKOUT,
        )
        self.errors = ""
        self._readers = [threading.Thread(target=read) for read in (self._read, self._complain)]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self._process.kill()
        self._finish()

    def _read(self):
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _complain(self):
        self.errors = self._process.stderr.read()

    def until(self, holds):
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or holds(self.lines), PATIENCE_S)
            assert holds(self.lines), f"{self.name} printed only {self.lines}\n{self.errors}"

    def interrupt(self):
        self._process.send_signal(signal.SIGINT)

    def ended(self):
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(PATIENCE_S)
        self._finish()
        return code

    def _finish(self):
        self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        self._process.stdout.close()
        self._process.stderr.close()


def lines_of(name, broker, *more):
    """The lines of a program that ends by itself and prints no error."""
    with Program(name, broker, *more) as program:
        assert (program.ended(), program.errors) == (0, ""), program.lines
        return program.lines


def results_in(lines):
    matches = [RESULT.search(line) for line in lines]
    assert all(matches), lines
    assert {match["status"] for match in matches} == {"OK"}
    return [
        Stored(match["topic"], int(match["number"]), int(match["offset"]), match["id"])
        for match in matches
    ]


def records_of(broker, topic, queues):
    """Everything that is stored, in the order of each queue."""
    records = {}
    for number in range(queues):
        records[number] = []
        while (offset := len(records[number])) < broker.max_offset(topic, number):
            records[number] += broker.records(topic, number, offset)
    return records


def sorted_bodies(records):
    return sorted(record.body.decode() for queue in records.values() for record in queue)


def messages_in(lines):
    """Body, tag and keys of each message that was printed."""
    return [match.groups() for line in lines if (match := BODY.search(line))]


def numbered(text, count):
    return sorted(f"{text} {number}" for number in range(count))


# Producers


def test_the_sync_producer_prints_a_result_for_each_message(broker):
    results = results_in(lines_of("sync_producer", broker))

    assert len({sent.id for sent in results}) == 100
    records = records_of(broker, "testTopic", 4)
    assert sorted_bodies(records) == numbered("Hi,RocketMQ Test", 100)
    for at, result in enumerate(results):
        record = records[result.number][result.offset]
        assert record.body.decode() == f"Hi,RocketMQ Test {at}"
        assert (record.tags, record.properties["KEYS"]) == ("testTag", f"key-{at}")


def test_the_async_producer_makes_two_queues_and_waits_for_all_answers(broker):
    results = results_in(lines_of("async_producer", broker))

    assert len({result.id for result in results}) == 100
    assert {result.number for result in results} == {0, 1}
    records = records_of(broker, "testTopic", 2)
    assert sorted_bodies(records) == numbered("Hi,RocketMQ Async Test", 100)
    assert {record.tags for queue in records.values() for record in queue} == {"testAsyncTag"}


def test_the_oneway_producer_prints_no_results_and_loses_nothing(broker):
    assert lines_of("oneway_producer", broker) == ["producer shutdown"]

    records = records_of(broker, "single", 4)
    assert sorted_bodies(records) == numbered("Hi,RocketMQ Oneway Test", 100)


def test_the_ordered_producer_sends_each_order_to_its_own_queue(broker):
    broker.txmq("topic", "create", "testTopic", "--queues", "3")

    results = results_in(lines_of("ordered_producer", broker))

    assert [result.number for result in results] == [order % 3 for order in range(100)]
    for number, queue in records_of(broker, "testTopic", 3).items():
        orders = [int(record.body.split()[-1]) for record in queue]
        assert orders == list(range(number, 100, 3))


def test_the_batch_producer_sends_all_messages_as_one_batch(broker):
    results = results_in(lines_of("batch_producer", broker))

    assert len({result.number for result in results}) == 1
    assert [result.offset for result in results] == list(range(100))
    assert sorted_bodies(records_of(broker, "TopicA", 4)) == numbered("Hi, Ordered Msg", 100)


def test_a_producer_without_a_broker_fails_with_one_line(tmp_path):
    nowhere = BrokerProcess(tmp_path)

    with Program("sync_producer", nowhere) as program:
        assert program.ended() == 1
        assert program.errors.startswith("ConnectFailed: ")
        assert program.errors.count("\n") == 1


# Consumers


def test_the_normal_consumer_prints_every_message_from_the_first_on(broker):
    lines_of("sync_producer", broker)

    lines = lines_of("normal_consumer", broker, "--count", "100")

    assert lines[0] == "consumer started"
    messages = messages_in(lines)
    assert sorted(body for body, _, _ in messages) == numbered("Hi,RocketMQ Test", 100)
    assert {tag for _, tag, _ in messages} == {"testTag"}
    assert {keys for _, _, keys in messages} == {f"'key-{number}'," for number in range(100)}
    assert broker.all_committed("cg", "testTopic", 4)


def test_the_batch_consumer_receives_up_to_ten_messages_at_once(broker):
    lines_of("batch_producer", broker)

    lines = lines_of("batch_consumer", broker, "--count", "100")

    sizes = [int(line.split()[-1]) for line in lines if line.startswith("a batch of ")]
    assert (sum(sizes), max(sizes)) == (100, 10)
    assert len(sizes) < 30
    assert sorted(body for body, _, _ in messages_in(lines)) == numbered("Hi, Ordered Msg", 100)
    assert broker.all_committed("cg-batch", "TopicA", 4)


def test_the_tag_consumer_receives_two_of_the_three_tags(broker):
    results = results_in(lines_of("filter_by_tag_producer", broker))
    assert len(results) == 10

    lines = lines_of("filter_by_tag_consumer", broker, "--count", "7")

    messages = sorted((body, tag) for body, tag, _ in messages_in(lines))
    tags = ["myTagA", "myTagB", "myTagC"]
    sent = [(f"Hi Filter Tag Msg {number}", tags[number % 3]) for number in range(10)]
    assert messages == sorted(message for message in sent if message[1] != "myTagC")


def test_the_sql_consumer_receives_only_the_ages_it_asked_for(broker):
    for producer in ("filter_by_tag_producer", "filter_by_sql_producer"):
        assert len(results_in(lines_of(producer, broker))) == 10

    lines = lines_of("filter_by_sql_consumer", broker, "--count", "7")

    messages = sorted((body, tag) for body, tag, _ in messages_in(lines))
    assert messages == [(f"Hi Filter SQL Msg {number}", "myTag") for number in range(7)]


def test_the_sql_consumer_names_the_setting_its_broker_lacks(tmp_path):
    plain = BrokerProcess(tmp_path / "plain")
    plain.start()
    try:
        lines_of("filter_by_sql_producer", plain)
        with Program("filter_by_sql_consumer", plain) as program:
            assert program.ended() == 1
            assert program.errors.startswith("FilterUnsupported: broker-a: The broker does not")
            assert "filter.sql = true" in program.errors
    finally:
        plain.close()


WAITED = re.compile(r"consumed at \d\d:\d\d, (\d+\.\d+) s after it was sent: ")


def test_the_delay_consumer_receives_no_message_early(tmp_path):
    patient = BrokerProcess(tmp_path / "patient", settings=("delay.levels=1s 1s 2s",))
    patient.start()
    try:
        results = results_in(lines_of("delay_producer", patient))
        assert len({result.id for result in results}) == 100

        lines = lines_of("delay_consumer", patient, "--count", "100")

        waited = [float(match[1]) for line in lines if (match := WAITED.search(line))]
        assert len(waited) == 100
        assert min(waited) >= 2.0
        messages = [(body, tag) for body, tag, _ in messages_in(lines)]
        assert sorted(messages) == sorted((f"Hi, Delay Msg {n}", "TagB") for n in range(100))
        assert patient.all_committed("cg-delay", "TopicB", 4)
    finally:
        patient.close()


def test_the_transaction_consumer_receives_only_committed_messages(tmp_path):
    hurried = BrokerProcess(tmp_path / "hurried", settings=("transaction.timeout=1s",))
    hurried.start()
    try:
        lines = lines_of("transaction_producer", hurried)

        told = [line.rpartition(", xid=")[0] for line in lines if line.startswith("result of")]
        assert told == [
            "result of TAGA: COMMITTED, acknowledged",
            "result of TAGB: ROLLED_BACK, acknowledged",
            "result of TAGC: UNKNOWN, to be asked about",
        ]
        assert [line.split()[1] for line in lines if line.startswith("checked: ")] == ["TAGC"]
        bodies = ["Hi Transaction Msg 0", "Hi Transaction Msg 2"]
        assert sorted_bodies(records_of(hurried, "TTopic", 4)) == bodies

        lines = lines_of("transaction_consumer", hurried, "--count", "2")

        assert sorted((body, tag) for body, tag, _ in messages_in(lines)) == [
            (bodies[0], "TAGA"),
            (bodies[1], "TAGC"),
        ]
    finally:
        hurried.close()


async def send(broker, *bodies, topics=("TOPIC_TEST",)):
    """Send what the pulling programs read; their Java originals have no producer."""
    async with Session(broker.names) as session:
        for topic in topics:
            for body in bodies:
                await Admin(session).send(Message(topic=topic, tags="TAG_TEST", body=body))


@pytest.fixture
def texts(broker):
    bodies = [f"text {number}" for number in range(3)]
    asyncio.run(send(broker, *[body.encode() for body in bodies]))
    return bodies


def test_pulling_by_hand_prints_the_bodies(broker, texts):
    lines = lines_of("pull_consumer", broker, "--count", "3")

    assert sorted(line for line in lines if line.startswith("text")) == texts
    asked = [line for line in lines if line.startswith("Consume from the queue: TOPIC_TEST/")]
    assert 1 <= len(asked) <= 4
    assert lines[-1] == "consumer stopped"


def test_the_scheduled_pull_prints_the_bodies_and_saves_its_offsets(broker, texts):
    lines = lines_of("scheduled_pull", broker, "--count", "3")

    assert sorted(lines) == ["consumer started", *texts]
    assert broker.all_committed("schedule_consumer", "TOPIC_TEST", 4)


def test_the_push_consumer_retries_a_body_that_is_not_text(broker, texts):
    with Program("push_consumer", broker) as program:
        program.until(lambda lines: sum("consumed" in line for line in lines) == len(texts))
        asyncio.run(send(broker, b"\xff\xfe"))

        program.until(lambda lines: any("attempt 1 at" in line for line in lines))
        program.interrupt()

        assert program.ended() == 0
    assert program.lines[-1] == "consumer stopped"
    assert {line.rpartition(": ")[2] for line in program.lines if "consumed" in line} == set(texts)


TOPICS = ("testTopic", "TopicA", "TopicB", "TopicTest", "TOPIC_TEST", "TTopic")
CONSUMERS = (
    "normal_consumer",
    "batch_consumer",
    "filter_by_tag_consumer",
    "filter_by_sql_consumer",
    "pull_consumer",
    "scheduled_pull",
    "push_consumer",
    "delay_consumer",
    "transaction_consumer",
)


@pytest.mark.parametrize("name", CONSUMERS)
def test_ctrl_c_stops_a_consumer_cleanly(busy_broker, name):
    with Program(name, busy_broker) as program:
        program.until(bool)
        program.interrupt()

        farewell = "stopping; press Ctrl-C again to end at once\n"
        assert (program.ended(), program.errors) == (0, farewell)


# All of them


@pytest.mark.timeout(90)
def test_the_whole_tour_loses_no_message():
    done = subprocess.run(
        [sys.executable, "-m", "examples.rocketmq_tour"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=CHECKOUT,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "540 acknowledged, and none is missing" in done.stdout
