"""Peers that ask for more than their share are refused, and nothing of it is kept."""

import asyncio
import json

import pytest

from txmq.errors import InternalError, NoPermission, ServiceUnavailable
from txmq.limits import (
    GROUPS_PER_CLIENT_MAX,
    HEARTBEAT_BYTES_MAX,
    LAX_HEADER_BYTES_MAX,
    SUBSCRIPTION_CHARS_MAX,
)
from txmq.protocol import batch, fastjson
from txmq.protocol.bodies import (
    ConsumerRegistration,
    Heartbeat,
    MessageQueue,
    ProducerRegistration,
    SubscriptionData,
)
from txmq.protocol.headers import PullMessage, SendMessageV2
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.config import TopicDefaults
from txmq_broker.core import clients as client_table
from txmq_broker.core import groups as group_table
from txmq_broker.core import locks as lock_table
from txmq_broker.core import offsets as offset_table
from txmq_broker.core import sent_properties
from txmq_broker.core.admission import RateLimit
from txmq_broker.core.clients import Clients
from txmq_broker.core.groups import Groups
from txmq_broker.core.locks import Locks
from txmq_broker.core.offsets import Offsets
from txmq_broker.services import topic_creator
from txmq_broker.testing import embedded

BEAT, SEND, BATCH, PULL = 34, 310, 320, 11
MESSAGE_ILLEGAL, ERROR, NO_PERMISSION, BAD_FILTER = 13, 1, 16, 23


@pytest.fixture
def ask():
    """Send requests, one after another, to a broker of the test's own."""

    def run(*questions, before=None, check=None, together=False):
        async def main():
            async with embedded() as broker:
                if before is not None:
                    before(broker)
                pool = ConnectionPool(SystemNetwork(), SystemClock())
                connection = await pool.connection(broker.address)
                answers = [
                    connection.ask(code, header, body=body, timeout_s=20)
                    for code, header, body in questions
                ]
                if together:
                    codes = [reply.code for reply in await asyncio.gather(*answers)]
                else:
                    codes = [(await answer).code for answer in answers]
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


@pytest.mark.parametrize("unique", ["", "UNIQ_KEY\x01{:04}\x02"], ids=["any", "uniform"])
def test_a_small_batch_that_would_fill_the_log_is_refused_whole(ask, monkeypatch, unique):
    body = batch.pack([(0, b"x", unique.format(number)) for number in range(1000)])
    examined = []

    def examine(*given):
        examined.append(given)
        return real(*given)

    real = sent_properties.examine
    monkeypatch.setattr(sent_properties, "examine", examine)
    shared = "SHARED\x01" + "y" * 30_000 + "\x02"

    def nothing_is_stored(broker):
        assert broker.store.queue("T", 0).next_offset == 1

    codes = ask(
        (SEND, send("T"), b"first"),
        (BATCH, send("T", shared, is_batch=True), body),
        check=nothing_is_stored,
    )

    assert codes == [0, MESSAGE_ILLEGAL]
    assert len(examined) < 300, "the properties of all messages would fill the memory"


def test_a_heartbeat_with_one_bad_group_name_creates_no_topic(ask):
    def nothing_is_made(broker):
        assert broker.topics.by_name.get("%RETRY%good") is None

    assert ask((BEAT, None, beat("good", "b.ad")), check=nothing_is_made) == [ERROR]


def test_a_heartbeat_with_too_many_groups_is_refused(ask):
    names = [f"g{number}" for number in range(GROUPS_PER_CLIENT_MAX + 1)]

    assert ask((BEAT, None, beat(*names))) == [ERROR]


def test_a_broker_keeps_a_limited_number_of_topics(ask, monkeypatch):
    monkeypatch.setattr(topic_creator, "MADE_TOPICS_MAX", 18)

    codes = ask(*[(SEND, send(f"T{number}"), b"x") for number in range(9)])

    assert codes[0] == 0
    assert codes[-1] == NO_PERMISSION


def test_topics_created_at_once_share_their_saves(ask, monkeypatch):
    monkeypatch.setattr(topic_creator, "SAVES_TOGETHER", 1)
    saves = []

    def each_is_there(broker):
        assert all(broker.store.queue(f"T{number}", 0).next_offset == 1 for number in range(4))

    keep = topic_creator.TopicCreator._put
    monkeypatch.setattr(
        topic_creator.TopicCreator, "_put", lambda *given: saves.append(1) or keep(*given)
    )
    questions = [(SEND, send(f"T{number}"), b"x") for number in range(4)]

    assert ask(*questions, check=each_is_there, together=True) == [0] * 4
    assert len(saves) == 2


def test_clients_create_topics_at_a_limited_rate(ask, monkeypatch):
    monkeypatch.setattr(topic_creator, "MADE_TOGETHER_MAX", 2)
    monkeypatch.setattr(topic_creator, "MADE_PER_SECOND_MAX", 0.001)

    assert ask(*[(SEND, send(f"T{number}"), b"x") for number in (1, 2, 3, 1)]) == [0, 0, 14, 0]


def test_a_failed_save_of_new_topics_refuses_every_waiting_send(ask, monkeypatch):
    monkeypatch.setattr(topic_creator, "SAVES_TOGETHER", 1)

    def fail(broker):
        broker.disk.replace = refuse

    def refuse(*_, **__):
        raise OSError(28, "full")

    questions = [(SEND, send(f"T{number}"), b"x") for number in range(3)]

    assert ask(*questions, before=fail, together=True) == [14] * 3


def test_an_oversized_heartbeat_is_refused(ask):
    assert ask((BEAT, None, b" " * (HEARTBEAT_BYTES_MAX + 1))) == [ERROR]


def test_a_client_at_the_group_limit_is_accepted(ask):
    topics = [{"topic": f"{'t' * 60}{number}", "subVersion": 1} for number in range(2)]
    groups = [f"{'g' * 60}{number}" for number in range(GROUPS_PER_CLIENT_MAX)]
    consumers = [{"groupName": group, "subscriptionDataSet": topics} for group in groups]
    producers = [{"groupName": group} for group in groups]
    body = {"clientID": "c", "consumerDataSet": consumers, "producerDataSet": producers}

    def each_is_there(broker):
        assert broker.clients.members == 2 * len(groups)
        assert broker.clients.subscriptions == 2 * len(groups)

    assert ask((BEAT, None, json.dumps(body).encode()), check=each_is_there) == [0]


def test_an_oversized_filter_is_refused(ask):
    text = "a" * (SUBSCRIPTION_CHARS_MAX + 1)
    pull = PullMessage("g", "T", 0, 0, 32, 4 | 2, 0, 1000, 0, subscription=text)

    assert ask((SEND, send("T"), b"x"), (PULL, pull, b"")) == [0, BAD_FILTER]


def test_a_long_header_is_accepted_only_as_strict_json():
    from txmq.errors import RemoteProtocolError
    from txmq.protocol.command import JSON, decode

    padding = " " * LAX_HEADER_BYTES_MAX

    assert decode((JSON, b'{"code":1}' + padding.encode(), b"")).code == 1
    with pytest.raises(RemoteProtocolError, match="too long"):
        decode((JSON, b"{code:1}" + padding.encode(), b""))
    assert fastjson.loads(b"{code:1}" + padding.encode()) == {"code": 1}


def test_a_lost_connection_removes_only_its_own_groups():
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


def heartbeat(producers=(), **consumers):
    return Heartbeat(
        "id",
        [ProducerRegistration(name) for name in producers],
        [
            ConsumerRegistration(group, subscription_data_set=[SubscriptionData(t) for t in topics])
            for group, topics in consumers.items()
        ],
    )


def test_all_clients_together_have_a_limited_number_of_groups(monkeypatch):
    monkeypatch.setattr(client_table, "MEMBERS_MAX", 13)
    monkeypatch.setattr(client_table, "SUBSCRIPTIONS_MAX", 8)
    clients = Clients()

    def beats(connection, beat):
        clients.check(connection, beat)
        clients.beat(connection, beat, "JAVA", 409, 0.0)

    greedy = heartbeat([f"p{number}" for number in range(10)])
    beats("c1", greedy)
    with pytest.raises(ServiceUnavailable, match=r"20 groups together, and 13 is the limit"):
        beats("c2", greedy)
    beats("c1", greedy)
    beats("c3", heartbeat(["p1"], g=["T"]))  # A small client is always accepted.
    with pytest.raises(ServiceUnavailable, match=r"9 subscriptions together, and 8"):
        beats("c4", heartbeat(h="abcdefgh"))
    assert (clients.members, clients.subscriptions, clients.refused) == (12, 1, 2)

    clients.leave("c3", "p1", "g")
    clients.drop("c1")
    assert (clients.members, clients.subscriptions) == (0, 0)
    beats("c2", greedy)
    beats("c4", heartbeat(h="abcdefgh"))
    beats("c4", heartbeat(h="a"))
    assert (clients.members, clients.subscriptions) == (11, 1)


def test_repeated_heartbeats_cannot_exceed_the_group_limit_of_a_connection(monkeypatch):
    monkeypatch.setattr(client_table, "GROUPS_PER_CLIENT_MAX", 2)
    clients = Clients()
    first = heartbeat(["p1", "p2"])
    clients.check("c", first)
    clients.beat("c", first, "JAVA", 409, 0.0)

    with pytest.raises(InternalError, match="at most 2 producer groups"):
        clients.check("c", heartbeat(["p3"]))


def test_offsets_of_unknown_groups_are_limited(monkeypatch):
    monkeypatch.setattr(offset_table, "UNKNOWN_OFFSETS_MAX", 2)
    known = {"good"}
    offsets = Offsets(is_known=known.__contains__)
    offsets.put("a", "T", 0, 1)
    offsets.put("b", "T", 0, 1)
    offsets.put("b", "T", 0, 2)
    with pytest.raises(ServiceUnavailable, match="the group c does not exist"):
        offsets.put("c", "T", 0, 1)
    offsets.put("good", "T", 0, 1)

    known.add("a")
    offsets.put("a", "T", 1, 1)  # A group that exists by now leaves room.
    offsets.put("c", "T", 0, 1)
    offsets.forget_group("b")
    assert (offsets.count, offsets.unknown, offsets.refused) == (4, 1, 1)
    again = Offsets(is_known=known.__contains__)
    again.load(offsets.saved())
    assert (again.count, again.unknown) == (4, 1)


def test_a_broker_keeps_a_limited_number_of_offsets(monkeypatch):
    monkeypatch.setattr(offset_table, "OFFSETS_MAX", 1)
    offsets = Offsets()
    offsets.put("a", "T", 0, 1)
    with pytest.raises(ServiceUnavailable, match="which is the limit"):
        offsets.put("a", "T", 1, 1)
    offsets.put("a", "T", 0, 2)


def test_a_broker_keeps_a_limited_number_of_locks(monkeypatch):
    monkeypatch.setattr(lock_table, "LOCKS_MAX", 3)
    locks, queues = Locks(), [MessageQueue("T", "b", number) for number in range(4)]
    assert locks.lock("g", "c", queues[:2], 0.0) == queues[:2]
    with pytest.raises(ServiceUnavailable, match="no queue of the group h was locked"):
        locks.lock("h", "c", queues[:2], 0.0)
    assert locks.lock("g", "c", queues[:3], 1.0) == queues[:3]
    assert locks.lock("g", "other", queues[:1], 1.0) == []
    locks.unlock("g", "c", queues)
    assert locks.count == 0
    locks.lock("h", "c", queues[:3], 0.0)
    locks.expire(1_000.0)
    assert locks.count == 0


def test_clients_create_groups_at_a_limited_rate_and_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(group_table, "MADE_TOGETHER_MAX", 2)
    monkeypatch.setattr(group_table, "MADE_GROUPS_MAX", 3)
    groups = Groups(TopicDefaults())
    groups.get("a", 0)
    groups.get("b", 0)
    with pytest.raises(ServiceUnavailable, match="groups a second"):
        groups.get("c", 0)
    groups.get("c", 1_000)
    with pytest.raises(NoPermission, match="clients create none beyond 3"):
        groups.get("d", 60_000)
    assert groups.get("a", 60_000).group_name == "a"
    assert groups.refused == 2


def test_a_full_rate_limit_allows_one_burst_of_any_size():
    limit = RateLimit(1, 2)

    assert limit.take(5, 10.0)
    assert not limit.take(1, 13.0)
    assert limit.take(1, 14.0)
    assert limit.wait_s() == 1.0
