"""Followers that serve reads, as real processes with a real etcd."""

import json
import signal
import threading

import pytest

from tests.servers.broker_set import GET_CLUSTER, BrokerSet
from tests.servers.serving import PULL_MESSAGE, ask

SEND_MESSAGE, END_TRANSACTION = 10, 37
LEASE_S = 2
SETTINGS = (
    f"replication.lease={LEASE_S}",
    "replication.lag_max=20s",
    "replication.wait_max=20s",
    "slaveReadEnable=true",
    "replication.far_behind=0",
)
TOPIC = "Read"
HELD_S = 4


@pytest.fixture
def members(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, SETTINGS) as broker_set:
        broker_set.wait_in_sync(2).create_topic(TOPIC, 1)
        yield broker_set


def replicas(members):
    """The members by the number under which the name server has them."""
    brokers = json.loads(ask(members.names.names, GET_CLUSTER)[2])["brokerAddrTable"]
    by_address = {member.address: member for member in members.members.values()}
    addresses = brokers.get(members.name, {}).get("brokerAddrs", {})
    return {int(number): by_address[address] for number, address in addresses.items()}


def send(member, text, **more):
    fields = {"producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "queueId": 0}
    fields |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
    fields |= {"properties": "", "reconsumeTimes": 0} | more
    return ask(member.address, SEND_MESSAGE, content=text.encode(), **fields)[0]


def pull(member, offset, hold_s=0, count=32):
    """The code, the suggested replica and the body of an answer."""
    fields = {"consumerGroup": "G", "topic": TOPIC, "queueId": 0, "queueOffset": offset}
    fields |= {"maxMsgNums": count, "commitOffset": 0, "subVersion": 0, "subscription": "*"}
    fields |= {"sysFlag": 6 if hold_s else 4, "suspendTimeoutMillis": int(hold_s * 1000)}
    code, answer, body = ask(member.address, PULL_MESSAGE, **fields)
    return code, int(answer.get("suggestWhichBrokerId", -1)), body


class Later(threading.Thread):
    """A call in a thread of its own, and what it returned or raised."""

    def __init__(self, function, *given):
        super().__init__(daemon=True)
        self.call, self.result = (function, given), None
        self.start()

    def run(self):
        function, given = self.call
        try:
            self.result = function(*given)
        except Exception as error:
            self.result = error

    def wait(self):
        self.join(30)
        return self.result


def test_a_follower_serves_acknowledged_messages_and_refuses_changes(members):
    members.until(lambda: set(replicas(members)) == {0, 1, 2}, "a follower does not register")
    leader, reader, other = (replicas(members)[number] for number in (0, 1, 2))
    assert send(leader, "first") == send(leader, "second") == 0
    members.until(lambda: b"second" in pull(reader, 0)[2], "the follower shows nothing")
    shown = members.names.txmq("cluster", "list")
    assert sorted(row["replica"] for row in shown) == [0, 1, 2]
    # Behind the end a consumer is sent to a follower, and at the end to the leader.
    assert [pull(member, 0)[1] for member in (leader, reader)] == [0, 0]
    assert pull(leader, 0, count=1)[1] in {1, 2}
    assert [pull(reader, offset, count=1)[1] for offset in (0, 1)] == [1, 0]

    members.wait_settled()
    before = reader.log_bytes()
    assert send(reader, "refused") == 14
    assert send(reader, "half", sysFlag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01P\x02") == 14
    end = {"producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": 0}
    end |= {"commitOrRollback": 8, "fromTransactionCheck": "false", "msgId": "M"}
    assert ask(reader.address, END_TRANSACTION, **end)[0] == 14
    assert reader.log_bytes() == before

    # A message that one of the two followers lacks may not be shown yet.
    other.signal(signal.SIGSTOP)
    sent = Later(send, leader, "not on all")
    members.until(lambda: b"not on all" in reader.log_bytes()[1], "the follower copies nothing")
    held = Later(pull, reader, 2, HELD_S)
    members.never(lambda: pull(reader, 2)[2] or not held.is_alive(), 1, "it shows too much")
    other.signal(signal.SIGCONT)
    assert sent.wait() == 0
    code, _, body = held.wait()
    assert (code, b"not on all" in body) == (0, True)
    other.stop()
    assert set(replicas(members)) == {0, 1}


def test_a_new_leader_ends_waiting_pulls_and_becomes_replica_0_at_once(members):
    members.until(lambda: set(replicas(members)) == {0, 1, 2}, "a follower does not register")
    leader, *others = (replicas(members)[number] for number in (0, 1, 2))
    assert send(leader, "first") == 0
    members.until(
        lambda: all(pull(follower, 0)[2] for follower in others), "a follower shows nothing"
    )
    held = {follower: Later(pull, follower, 1, 20) for follower in others}
    leader.kill()
    after = members.wait_for_leader(leader)
    assert replicas(members)[0] is after
    assert after in others
    # 19 says that nothing came; every client retries a broken connection.
    answer = held[after].wait()
    assert isinstance(answer, OSError | ValueError) or answer[0] == 19, answer
    members.until(lambda: send(after, "second") == 0, "the new leader takes nothing")
    (other,) = (follower for follower in others if follower is not after)
    members.until(lambda: b"second" in pull(other, 1)[2], "the other follower shows nothing")
    leader.start()
    members.until(lambda: set(replicas(members).values()) == {leader, *others}, "one is missing")


def test_followers_keep_serving_reads_while_nobody_leads(members, etcd):
    """Without etcd no member leads, and there is no fail-over."""
    assert send(members.leader(), "first") == 0
    members.until(lambda: set(replicas(members)) == {0, 1, 2}, "a follower does not register")
    leader, *others = (replicas(members)[number] for number in (0, 1, 2))
    members.until(
        lambda: all(pull(follower, 0)[2] for follower in others), "a follower shows nothing"
    )
    etcd.kill()
    members.until(lambda: 0 not in replicas(members), "it still leads")
    for number, member in replicas(members).items():
        code, suggested, body = pull(member, 0, count=1)
        assert (code, suggested, b"first" in body) == (0, 0, True)
        assert number > 0
        assert send(member, "refused") == 14
    assert etcd.start()
    assert send(members.wait_for_leader(), "second") == 0
