"""``txmq topic create`` and ``update``: nothing changes by accident, and no message is hidden."""

import asyncio
import json

import pytest

from txmq.client import Admin, Session
from txmq.message import Message, Queue
from txmq.protocol import command
from txmq.protocol.bodies import TopicConfig


@pytest.fixture
def topic(txmq, txmq_broker):
    """Run ``txmq topic ...`` against a real broker and return what it printed."""

    def run(*arguments, code=0):
        result = txmq("topic", *arguments, "--names", txmq_broker.names)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return run


def asked(names, question):
    async def ask():
        async with Session(names) as session:
            return await question(Admin(session))

    return asyncio.run(ask())


def fill(names, counts):
    """Send messages to queues of Orders: a count for each queue."""

    async def send(admin):
        for number, count in counts.items():
            for _ in range(count):
                message = Message(topic="Orders", body=b"x")
                await admin.send(message, Queue("Orders", "broker-a", number))

    asked(names, send)


def consume(names, group, offsets):
    async def commit(admin):
        await admin.create_group(group)
        for number, offset in offsets.items():
            await admin.commit_offset(group, Queue("Orders", "broker-a", number), offset)

    asked(names, commit)


def queues(names):
    config = asked(names, lambda admin: admin.topic_config("Orders"))["broker-a"]
    return config.read_queue_nums, config.write_queue_nums


# Creating


def test_creating_an_existing_topic_is_refused(topic, txmq_broker):
    topic("create", "Orders", "--queues", 8)

    refused = topic("create", "Orders", "--queues", 4, code=1)

    assert refused == (
        "txmq: topic 'Orders' exists already at broker-a; change it with: "
        "txmq topic update Orders --queues 4\n"
    )
    assert queues(txmq_broker.names) == (8, 8)


def test_at_a_stock_broker_create_checks_first_that_the_topic_is_new(asking, cluster):
    cluster.brokers[0].topics["Orders"] = TopicConfig("Orders", 8, 8)

    refused = asking("topic", "create", "Orders")
    elsewhere = asking("topic", "create", "Orders", "--broker", "broker-b")

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "exists already at broker-a; change it with: txmq topic update Orders" in refused.stderr
    assert elsewhere.exit_code == 0, elsewhere.output
    assert cluster.codes("UPDATE_AND_CREATE_TOPIC") == [("broker-b", "UPDATE_AND_CREATE_TOPIC")]


# Changing


def test_permit_changes_only_the_permission_at_the_named_broker(topic, asking, cluster):
    cluster.add_topic("Orders", queues=3)
    for broker in cluster.brokers:
        broker.topics["Orders"].order = True

    result = asking("topic", "permit", "Orders", "r", "--broker", "broker-b")

    assert result.stdout == "topic Orders at broker-b: 3 queues, r, ordered\n"
    a, b = (broker.topics["Orders"] for broker in cluster.brokers)
    assert (a.perm, b.perm, b.read_queue_nums, b.order) == (6, 4, 3, True)


def test_queues_can_be_added_without_a_further_option(topic, txmq_broker):
    topic("create", "Orders", "--queues", 1)

    assert topic("update", "Orders", "--queues", 2) == "topic Orders at broker-a: 2 queues, rw\n"
    assert queues(txmq_broker.names) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("update", "Ordres", "--queues", 2), 1, "'Ordres' does not exist; the nearest name is"),
        (("update", "Orders"), 2, "name what to change: --queues or --order"),
        (("permit", "Orders", "x"), 2, "not one of rw, r, w"),
        (("update", "Orders", "--queues", 2, "--broker", "x"), 1, "has nothing at broker 'x'"),
    ],
)
def test_an_invalid_topic_change_says_why(topic, arguments, code, words):
    topic("create", "Orders")

    assert words in topic(*arguments, code=code)


# Removing queues


def test_removing_queues_is_refused_with_a_count_of_the_hidden_messages(topic, txmq_broker):
    topic("create", "Orders", "--queues", 4)
    fill(txmq_broker.names, {0: 2, 2: 1, 3: 5})
    consume(txmq_broker.names, "billing", {2: 1, 3: 3})

    refused = topic("update", "Orders", "--queues", 2, code=1)

    assert refused == (
        "txmq: topic 'Orders' has more than 2 queues at broker-a. The others would be hidden. "
        "6 messages are in 2 queues: 1 in broker-a:2, 5 in broker-a:3. "
        "Not yet consumed: 2 by group 'billing'. "
        "Shrink it in two safe steps with: txmq topic update Orders --queues 2 --shrink\n"
    )
    assert queues(txmq_broker.names) == (4, 4)


def test_shrink_removes_queues_in_two_steps_once_they_are_consumed(topic, txmq_broker):
    names = txmq_broker.names
    topic("create", "Orders", "--queues", 3)
    fill(names, {1: 1, 2: 2})
    consume(names, "billing", {1: 0, 2: 2})
    shrink = ("update", "Orders", "--queues", 1, "--shrink")

    first = topic(*shrink)

    assert "topic Orders at broker-a: 1 queue to write, 3 to read, rw\n" in first
    assert "txmq topic update Orders --queues 1 --shrink" in first
    assert queues(names) == (3, 1)

    early = topic(*shrink, code=1)

    assert "Not yet consumed: 1 by group 'billing'. When they are consumed, run again" in early
    assert queues(names) == (3, 1)

    consume(names, "billing", {1: 1})
    assert topic(*shrink) == "topic Orders at broker-a: 1 queue, rw\n"
    assert queues(names) == (1, 1)


def test_shrink_keeps_queues_whose_messages_no_group_has_consumed(topic, txmq_broker):
    topic("create", "Orders", "--queues", 2)
    fill(txmq_broker.names, {1: 1})
    shrink = ("update", "Orders", "--queues", 1, "--shrink")
    topic(*shrink)

    assert "1 message is in 1 queue: 1 in broker-a:1. No group has consumed them." in topic(
        *shrink, code=1
    )


def test_shrink_removes_even_empty_queues_in_two_steps(topic, txmq_broker):
    topic("create", "Orders", "--queues", 2)

    assert "The others are empty." in topic("update", "Orders", "--queues", 1, code=1)
    topic("update", "Orders", "--queues", 1, "--shrink")
    assert queues(txmq_broker.names) == (2, 1)
    topic("update", "Orders", "--queues", 1, "--shrink")
    assert queues(txmq_broker.names) == (1, 1)


# Listing


def test_topics_are_listed_with_queues_permission_and_messages(topic, txmq_broker):
    topic("create", "Orders", "--queues", 2)
    topic("create", "Archive", "--queues", 1, "--perm", "r")
    fill(txmq_broker.names, {0: 1, 1: 2})

    rows = json.loads(topic("list", "--json"))

    assert rows == [
        {"topic": "Archive", "read_queues": 1, "write_queues": 1, "permission": "r", "messages": 0},
        {"topic": "Orders", "read_queues": 2, "write_queues": 2, "permission": "rw", "messages": 3},
    ]
    lines = [line.split() for line in topic("list").splitlines() if line.strip()]
    assert lines[0] == ["topic", "read", "queues", "write", "queues", "permission", "messages"]
    assert lines[2:] == [["Archive", "1", "1", "r", "0"], ["Orders", "2", "2", "rw", "3"]]


def test_topic_list_still_shows_topics_of_brokers_that_refuse_details(asking, cluster):
    cluster.add_topic("Orders", queues=2)
    cluster.replies[21] = lambda request: command.answer(request, 1, remark="no")

    result = asking("topic", "list", "--json")

    assert [row["topic"] for row in json.loads(result.stdout)] == ["Orders"]
    assert result.stderr == "txmq: without broker broker-a: no\ntxmq: without broker broker-b: no\n"
