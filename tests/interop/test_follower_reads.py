"""The C++ client, ali-ons and ours read from followers: old messages, and while nobody leads."""

from tests.interop.interop_stage import letters
from tests.interop.interop_together import PlaySet, played

LEASE_S = 2
SETTINGS = (
    f"replication.lease={LEASE_S}",
    "slaveReadEnable=true",
    "replication.far_behind=0",
)
COUNT = 400


@played(("cpp", "ons", "ours"), broker=PlaySet(settings=SETTINGS))
def test_consumers_read_old_messages_and_continue_without_a_leader(stage, *clients):
    members, etcd = stage.broker.members, stage.broker.etcd
    leader = stage.broker = members.wait_in_sync(2)
    topic, ours = stage.topic(), clients[-1]
    early, late = ([(one, stage.retried_group()) for one in clients] for _ in range(2))
    lines = stage.send(stage.sender(ours, topic), letters("m", COUNT))
    members.wait_settled()

    # The leader sends them to a follower, because they begin far behind the end.
    for client, group in early:
        stage.wait_handled([stage.consumer(client, topic, group)], lines)
    followers = [one for one in members.members.values() if one is not leader]
    assert sum(read_at(members, one) for one in followers) > 0

    before = {one: read_at(members, one) for one in followers}
    etcd.kill()
    members.until(lambda: members.leader() is None, "it still leads")
    consumers = [stage.consumer(client, topic, group) for client, group in late]
    for consumer in consumers:
        stage.wait_handled([consumer], lines)
    assert sum(read_at(members, one) - before[one] for one in followers) >= 3 * COUNT

    assert etcd.start()
    members.wait_for_leader()
    more = stage.send(stage.sender(ours, topic), letters("n", COUNT))
    for consumer in consumers:
        stage.wait_handled([consumer], more, seconds=100)


def read_at(members, member):
    """How many messages consumers have read from a member."""
    return int(members.figures(member)["msgGetTotalTodayNow"])
