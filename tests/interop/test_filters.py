"""Filters: by tags for all three clients, by conditions for those two that know them.

The C++ client has tags alone. A group has one subscription at a broker, so every consumer here has
a group of its own.
"""

import contextlib
import itertools

import pytest

from tests.interop.interop_clients import SharedSenders
from tests.interop.interop_scenarios import tag_expression_selects
from tests.interop.interop_stage import QUEUES, Stage, letter, letters, names, shares
from tests.servers.serving import BrokerProcess
from tests.soak import only_in_soak

SQL = "age BETWEEN 0 AND 6 AND region IN ('eu', 'us') AND (vip = TRUE OR note IS NULL)"
REGIONS = ["eu", "asia", "us"]
PAIRS = [("cpp", "ons"), ("ons", "cpp")]  # Ours with each of them is in test_our_client.py.


@pytest.fixture(scope="session")
def filtering_broker(tmp_path_factory):
    broker = BrokerProcess(
        tmp_path_factory.mktemp("filtering"), settings=("enablePropertyFilter=true",)
    )
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def filtering_senders(filtering_broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filtering-senders")
    with contextlib.closing(SharedSenders(filtering_broker.names, folder)) as senders:
        yield senders


@pytest.fixture
def filtering_stage(filtering_broker, filtering_senders, tmp_path, request):
    """A stage whose broker takes conditions."""
    stage = Stage(filtering_broker, tmp_path, request.node.name, filtering_senders)
    yield stage
    stage.close()


@pytest.fixture(params=["cpp", *only_in_soak("ons", "ours")])
def sending(request):
    return request.getfixturevalue(request.param)


def described(prefix, count):
    """Messages in every combination of the properties that the condition asks for."""
    found = []
    for number in range(count):
        props = {"age": str(number % 10), "region": REGIONS[number % 3]}
        if number % 4 == 1:
            props["note"] = "x"
        if number % 8 == 1:
            props["vip"] = "true"
        found.append(letter(f"{prefix}-{number}", properties=props))
    return found


def is_wanted(line):
    props = line["properties"]
    return (
        int(props["age"]) <= 6
        and props["region"] in {"eu", "us"}
        and ("note" not in props or props.get("vip") == "true")
    )


@pytest.mark.timeout(90)
def test_a_sql_condition_selects_the_same_messages_for_every_client(
    filtering_stage, sending, ons, ours
):
    stage = filtering_stage
    topic = stage.topic()
    consumers = [
        stage.consumer(ons, topic, stage.group(), "--sql", SQL),
        stage.consumer(ours, topic, stage.group(), "--sql", SQL),
        stage.consumer(ours, topic, stage.group(), "--sql", SQL, "--polling"),
    ]
    sender = stage.sender(sending, topic)

    lines = described("m", 60)
    props = {"age": "0", "region": "eu"}
    last = letters("last", 2 * QUEUES, properties=props)  # behind everything else on every queue
    stage.send(sender, lines + last)
    wanted = [line for line in lines if is_wanted(line)] + last
    for consumer in consumers:
        stage.wait_handled([consumer], wanted)
        consumer.leave()

    assert 10 < len(wanted) < len(lines)
    for consumer in consumers:
        assert set(*shares([consumer], last)) == set(range(QUEUES))
        assert sorted(consumer.handled_keys) == sorted(names(wanted))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("consuming", ["ons", "ours"])
def test_a_sql_condition_can_use_tags_and_keys(filtering_stage, request, cpp, consuming):
    stage = filtering_stage
    topic = stage.topic()
    client = request.getfixturevalue(consuming)
    consumer = stage.consumer(
        client, topic, stage.group(), "--sql", "TAGS = 'A' OR KEYS STARTSWITH 'last'"
    )
    sender = stage.sender(cpp, topic)

    tags = itertools.cycle(["A", "B", None])
    lines = [letter(f"m-{number}", tags=next(tags)) for number in range(24)]
    last = letters("last", 2 * QUEUES)
    stage.send(sender, lines + last)
    wanted = [line for line in lines if line["tags"] == "A"] + last
    stage.wait_handled([consumer], wanted)
    consumer.leave()

    assert sorted(consumer.handled_keys) == sorted(names(wanted))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
def test_a_tag_expression_selects_messages_between_two_clients(filtering_stage, request, pair):
    sending, consuming = [request.getfixturevalue(name) for name in pair]

    tag_expression_selects(filtering_stage, sending, consuming)
