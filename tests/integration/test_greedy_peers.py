"""Peers that ask for more than their share: refused, and nothing of it is kept."""

import json

import pytest

from txmq.limits import GROUPS_PER_CLIENT_MAX, LAX_HEADER_BYTES_MAX, SUBSCRIPTION_CHARS_MAX
from txmq.protocol import batch, fastjson
from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.headers import PullMessage, SendMessageV2
from txmq.remoting.connection import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.core import topics as topic_table
from txmq_broker.core.clients import Clients
from txmq_broker.testing import embedded

BEAT, SEND, BATCH, PULL = 34, 310, 320, 11
MESSAGE_ILLEGAL, ERROR, NO_PERMISSION, BAD_FILTER = 13, 1, 16, 23


@pytest.fixture
def ask():
    """Ask a broker of this test's own one thing after another."""
    import asyncio

    def run(*questions, check=None):
        async def main():
            async with embedded() as broker:
                pool = ConnectionPool(SystemNetwork(), SystemClock())
                connection = await pool.connection(broker.address)
                codes = [
                    (await connection.ask(code, header, body=body, timeout_s=20)).code
                    for code, header, body in questions
                ]
                if check is not None:
                    check(broker)
                await pool.close()
                return codes

        return asyncio.run(main())

    return run


def send(topic, properties="", *, is_batch=False):
    return SendMessageV2(
        "pg", topic, "TBW102", 4, 0, 0, 1, 0, properties=properties, batch=is_batch
    )


def beat(*groups):
    consumers = [{"groupName": group, "subscriptionDataSet": []} for group in groups]
    return json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()


def test_a_small_batch_that_would_fill_the_log_is_refused_whole(ask):
    body = batch.pack([(0, b"x", "")] * 2000)
    shared = "SHARED\x01" + "y" * 30_000 + "\x02"

    def nothing_is_stored(broker):
        assert broker.store.queue("T", 0).next_offset == 1

    codes = ask(
        (SEND, send("T"), b"first"),
        (BATCH, send("T", shared, is_batch=True), body),
        check=nothing_is_stored,
    )

    assert codes == [0, MESSAGE_ILLEGAL]


def test_a_heartbeat_with_one_bad_name_makes_no_topic(ask):
    def nothing_is_made(broker):
        assert broker.topics.by_name.get("%RETRY%good") is None

    assert ask((BEAT, None, beat("good", "b.ad")), check=nothing_is_made) == [ERROR]


def test_a_heartbeat_names_a_limited_number_of_groups(ask):
    names = [f"g{number}" for number in range(GROUPS_PER_CLIENT_MAX + 1)]

    assert ask((BEAT, None, beat(*names))) == [ERROR]


def test_a_broker_keeps_a_limited_number_of_topics(ask, monkeypatch):
    monkeypatch.setattr(topic_table, "TOPICS_MAX", 18)

    codes = ask(*[(SEND, send(f"T{number}"), b"x") for number in range(9)])

    assert codes[0] == 0
    assert codes[-1] == NO_PERMISSION


def test_a_filter_of_endless_length_is_refused(ask):
    text = "a" * (SUBSCRIPTION_CHARS_MAX + 1)
    pull = PullMessage("g", "T", 0, 0, 32, 4 | 2, 0, 1000, 0, subscription=text)

    assert ask((SEND, send("T"), b"x"), (PULL, pull, b"")) == [0, BAD_FILTER]


def test_a_long_header_is_read_only_where_it_is_strict_json():
    from txmq.errors import RemoteProtocolError
    from txmq.protocol.command import JSON, Frame, decode

    padding = " " * LAX_HEADER_BYTES_MAX

    assert decode(Frame(JSON, b'{"code":1}' + padding.encode(), b"")).code == 1
    with pytest.raises(RemoteProtocolError, match="too long"):
        decode(Frame(JSON, b"{code:1}" + padding.encode(), b""))
    assert fastjson.loads(b"{code:1}" + padding.encode()) == {"code": 1}


def test_a_lost_connection_costs_what_it_belonged_to_and_no_more():
    clients = Clients()
    for number in range(50):
        registration = ProducerRegistration(f"p{number}")
        clients.beat(f"c{number}", Heartbeat("id", [registration]), "JAVA", 409, 0.0)
    visited = []
    leave = clients._leave_producers
    clients._leave_producers = lambda connection, name: (
        visited.append(name) or leave(connection, name)
    )

    clients.drop("c7")
    clients.drop("nobody")

    assert visited == ["p7"]
    assert clients.producers("p7") == []
    assert len(clients.producers("p8")) == 1
