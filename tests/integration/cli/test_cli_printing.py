"""Names, texts and refusals from strangers are escaped, so that no terminal obeys them."""

import json
import re
from pathlib import Path

import pytest

from txmq.cli import print_failure
from txmq.client.observe import trace_records as trace
from txmq.client.observe.trace_records import HandlerStart, SendRecord
from txmq.protocol import bodies, command, headers
from txmq.protocol.properties import render

HOSTILE = "x\x1b]0;t\x07[red]\x9b31m\u202e\r\nfake\x00\u2028\u200b"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
DEAD = "%DLQ%g"
CLI = Path(__file__).parents[3] / "txmq" / "cli"
OUTPUT_MODULES = {"__init__.py", "output.py", "common.py", "logs.py"}


def store(broker, topic, body, properties):
    head = headers.SendMessage("g", topic, "TBW102", 1, 0, 0, 1, 0)
    return broker.store(topic, 0, head, body, properties, 0)


@pytest.fixture
def hostile(cluster):
    """A cluster in which every text is hostile."""
    broker = cluster.brokers[0]
    cluster.brokers[1].name = HOSTILE
    for name in (HOSTILE, "T", DEAD, "%RETRY%g", "RMQ_SYS_TRACE_TOPIC"):
        cluster.add_topic(name, queues=1)
    for name in (HOSTILE, "g"):
        broker.groups[name] = bodies.GroupConfig(name)
        broker.offsets[name, "T", 0] = 0
        broker.offsets[name, HOSTILE, 0] = 0
        client = bodies.ClientConnection(HOSTILE, HOSTILE, HOSTILE, 317)
        subscribed = {HOSTILE: bodies.SubscriptionData(HOSTILE, HOSTILE)}
        broker.consumers[name] = bodies.ConsumerConnections(
            [client], HOSTILE, HOSTILE, HOSTILE, subscribed
        )
    named = render({"UNIQ_KEY": "U1", "KEYS": HOSTILE, "TAGS": HOSTILE, HOSTILE: HOSTILE})
    cluster.place = store(broker, "T", HOSTILE.encode(), named).offset_id
    store(broker, "T", b"\x1b[2J\xff", named)
    dead = named + render({"RETRY_TOPIC": HOSTILE, "DLQ_REASON": HOSTILE})
    cluster.dead = store(broker, DEAD, HOSTILE.encode(), dead).offset_id
    earliest = headers.TimestampAnswer(1)
    cluster.replies[32] = lambda request: command.answer(request, 0, earliest)
    records = [
        SendRecord(at_ms=1, region=HOSTILE, group=HOSTILE, topic="T", id="U1", keys=HOSTILE,
             store_host=HOSTILE, body_bytes=1, cost_ms=1),
        HandlerStart(
            at_ms=1, region=HOSTILE, group=HOSTILE, request_id=HOSTILE, id="U1", attempts=1
        ),
    ]  # fmt: skip
    store(broker, "RMQ_SYS_TRACE_TOPIC", trace.encode(records), render({"KEYS": "U1"}))
    transaction = bodies.TransactionEntry(
        transaction_id=HOSTILE, state=HOSTILE, producer_group=HOSTILE, topic=HOSTILE, queue_id=0,
        half_offset=0, commit_log_offset=0, offset_msg_id=HOSTILE, keys=HOSTILE, stored_ms=1,
        checks=0, client_id=HOSTILE,
    )  # fmt: skip
    listed = bodies.OpenTransactions([transaction], 1, 0, 1)
    cluster.replies[7701] = lambda request: command.answer(request, body=listed.write())
    shown = {"transaction": transaction.write().decode()}
    record = broker.log[0]
    cluster.replies[7702] = lambda request: command.answer(request, 0, shown, body=record)
    return cluster


COMMANDS = [
    ("topic", "list", "--all"),
    ("topic", "status", "T"),
    ("topic", "route", "T"),
    ("topic", "create", "New"),
    ("group", "list", "--all"),
    ("group", "progress", "g"),
    ("group", "progress", HOSTILE),
    ("group", "clients", "g"),
    ("group", "reset", "g", "T", "--to", "earliest", "--yes"),
    ("message", "pull", "T"),
    ("message", "query", "T", "x"),
    ("message", "view", "PLACE"),
    ("message", "trace", "T", "U1"),
    ("dlq", "list"),
    ("dlq", "show", "g"),
    ("dlq", "show", "g", "DEAD"),
    ("dlq", "resend", "g", "DEAD", "--reason", HOSTILE),
    ("tx", "list"),
    ("tx", "show", "x", "--broker", "broker-a"),
    ("cluster", "list"),
    ("group", "delete", HOSTILE, "--yes"),
    ("topic", "delete", HOSTILE, "--yes"),
]


def assert_safe(result):
    text = result.stdout + result.stderr
    assert text
    assert RAW.findall(text) == [], (result.output, result.exception)
    assert not re.search("^fake", text, re.MULTILINE), "a line of a stranger's"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception


@pytest.mark.parametrize("wanted", COMMANDS, ids=lambda it: "-".join(it[:2]))
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_text_from_the_wire_is_escaped_before_it_is_printed(asking, hostile, wanted, form):
    places = {"PLACE": hostile.place, "DEAD": hostile.dead}
    result = asking(*[places.get(word, word) for word in wanted], *form)

    assert_safe(result)
    assert result.exit_code == 0, result.output
    if form:
        json.loads(result.stdout)


@pytest.mark.parametrize("code", [17, 1])
@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "T"),
        ("topic", "status", "T"),
        ("group", "list"),
        ("message", "send", "T", "x"),
        ("message", "query", "T", "k"),
        ("tx", "commit", "x", "--reason", "r", "--yes"),
        ("tx", "recheck", "x"),
    ],
    ids=" ".join,
)
def test_refusals_are_escaped_before_they_are_printed(asking, cluster, arguments, code):
    cluster.add_topic("T")
    for request in (17, 202, 201, 310, 12, 7701, 7702, 7703, 7704):
        cluster.replies[request] = lambda it: command.answer(it, code, remark=HOSTILE)

    result = asking(*arguments)

    assert_safe(result)
    assert result.exit_code == 1


def test_a_question_escapes_the_name_that_it_asks_about(asking, hostile, terminal):
    result = asking("topic", "delete", HOSTILE, input="n\n")

    assert_safe(result)
    assert "⟨U+001B⟩]0;t" in result.stderr
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "delete", "T"),
        ("group", "delete", "g"),
        ("tx", "commit", "x", "--reason", "r"),
        ("dlq", "resend", "g", "--all", "--reason", "r"),
    ],
    ids=" ".join,
)
def test_without_a_terminal_a_command_that_asks_is_refused_and_names_yes(
    asking, hostile, arguments
):
    hostile.add_topic("T")
    before = len(hostile.asked)

    result = asking(*arguments, input="y\n")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "standard input is not a terminal; add --yes" in result.stderr
    changes = {"DELETE_TOPIC_IN_BROKER", "DELETE_SUBSCRIPTIONGROUP", "DECIDE_TRANSACTION"}
    assert not changes & {code.name for _, code, _ in hostile.asked[before:]}


def test_the_lines_of_a_body_are_indented_to_its_column(asking, cluster):
    cluster.add_topic("T", queues=1)
    record = store(cluster.brokers[0], "T", b"{\n\t1\nid  2}", render({"UNIQ_KEY": "U1"}))

    result = asking("message", "view", record.offset_id)

    assert "body         {\n              1\n             id  2}\n" in result.stdout


def test_a_traceback_escapes_control_characters(capsys):
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        print_failure(type(error), error, error.__traceback__)

    text = capsys.readouterr().err
    assert text.startswith("Traceback (most recent call last):\n")
    assert "ValueError: x⟨U+001B⟩]0;t" in text
    assert RAW.findall(text) == []


@pytest.mark.parametrize("name", sorted({path.name for path in CLI.glob("*.py")} - OUTPUT_MODULES))
def test_commands_print_only_through_the_output_modules(name):
    text = (CLI / name).read_text()

    assert not re.findall(r"typer\.(?:echo|confirm|prompt)|(?<!\.)\bprint\(|print_exc", text)
    assert not re.findall(r"sys\.std(?:out|err)\.write", text)
