"""The C++ client, ali-ons and ours read from followers: old messages, and while nobody leads."""

import pytest

from tests.broker_set import BrokerSet
from tests.interop.interop_stage import Stage, letters

LEASE_S = 2
SETTINGS = (
    f"replication.lease={LEASE_S}",
    "slaveReadEnable=true",
    "replication.far_behind=0",
)
COUNT = 400


@pytest.mark.timeout(180)
def test_consumers_read_what_is_old_and_go_on_while_nobody_leads(tmp_path, etcd, cpp, ons, ours):
    with BrokerSet(tmp_path / "set", etcd.port, SETTINGS) as members:
        leader = members.wait_in_sync(2)
        stage = Stage(leader, tmp_path, "follower-reads")
        try:
            topic, clients = stage.topic(), (cpp, ons, ours)
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
        finally:
            stage.close()


def read_at(members, member):
    """How many messages consumers have read from a member."""
    return int(members.figures(member)["msgGetTotalTodayNow"])
