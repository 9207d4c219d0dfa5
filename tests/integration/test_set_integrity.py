"""Members of broker sets come back with less than they had: no acknowledged message is lost.

All members are killed under load, the directory of one is damaged, and they start again in some
order. A member that lacks what the set has acknowledged must not lead, and joins again by itself.
"""

import asyncio
import time
from enum import StrEnum

import pytest

from tests.faults.set_damage import Damage, damage, snapshot
from tests.servers.broker_set import LEASE_S, SETTINGS, BrokerSet, assert_alike
from tests.soak import some_of
from tests.traffic.set_traffic import traffic
from txmq_broker.replication.etcd import etcd_coordinator

OLDER_S = 3
"""The age of a snapshot; the set notes what it has acknowledged each second."""


class Order(StrEnum):
    """Which member starts first."""

    DAMAGED = "the-damaged-member-first"
    WHOLE = "a-whole-member-first"
    TOGETHER = "all-three-together"


class Whose(StrEnum):
    """Whose directory is damaged."""

    FOLLOWER = "a-follower"
    LEADER = "the-leader"


CASES = [(kind, whose, order) for kind in Damage for whose in Whose for order in Order]
CHOSEN = [
    (Damage.SHORTENED_WITHOUT_MARK, Whose.FOLLOWER, Order.DAMAGED),
    (Damage.OLDER, Whose.FOLLOWER, Order.DAMAGED),
    (Damage.EMPTIED_WITHOUT_MARK, Whose.FOLLOWER, Order.DAMAGED),
    (Damage.SWAPPED, Whose.FOLLOWER, Order.WHOLE),
]
"""The three stories that lost messages, and one of each other kind."""


@pytest.fixture
def members(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, SETTINGS) as broker_set:
        yield broker_set


@pytest.mark.parametrize(("kind", "whose", "order"), some_of(CASES, CHOSEN))
def test_no_message_is_lost_when_a_member_loses_part_of_its_log(
    kind, whose, order, members, tmp_path
):
    with traffic(members, pause_s=0.03, padding=6000, reads_late=True) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        damaged, other = (one for one in members.members.values() if one is not leader)
        whole = leader
        if whose is Whose.LEADER:
            damaged, whole = leader, damaged
        older = None
        if kind is Damage.OLDER:
            older = snapshot(damaged, tmp_path / "older")
            taken = time.monotonic()
            while time.monotonic() < taken + OLDER_S:
                clients.wait_for_more()
        members.wait_in_sync(2)
        # The leader first: otherwise it would note that the others are no longer in sync.
        for member in sorted(members.members.values(), key=lambda one: one is not leader):
            member.kill()
        members.until(lambda: members.leader() is None, "the name server forgets nobody")
        damage(kind, damaged, older=older, other=other)
        lacking = {damaged, other} if kind is Damage.SWAPPED else {damaged}

        match order:
            case Order.DAMAGED:
                damaged.start()
                members.never(members.leader, 2 * LEASE_S, "a member that lacks messages leads")
                whole.start()
                other.start()
            case Order.WHOLE:
                whole.start()
                assert members.wait_for_leader() is whole
                damaged.start()
                other.start()
            case Order.TOGETHER:
                for member in (damaged, other, whole):
                    member.launch()
        assert members.wait_for_leader() not in lacking, members.told()
        clients.wait_for_more()
        members.wait_in_sync(2)
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_a_member_does_not_follow_a_leader_that_lacks_acknowledged_messages(members, tmp_path):
    """The leader was chosen while etcd had lost the position that the set has acknowledged."""
    with traffic(members, pause_s=0.03, reads_late=True) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        lacking, other = (one for one in members.members.values() if one is not leader)
        older = snapshot(lacking, tmp_path / "older")
        clients.wait_for_more()
    members.wait_settled()
    store = Store(members)
    end = int(members.figures(leader)["commitLogMaxOffset"])
    members.until(
        lambda: (noted := store.acknowledged()) and noted.position == end, "etcd is not told"
    )
    known = store.acknowledged()
    for member in (leader, lacking, other):
        member.kill()
    members.until(lambda: members.leader() is None, "the name server forgets nobody")
    damage(Damage.OLDER, lacking, older=older, other=other)
    store.put_acknowledged(None)
    lacking.start()
    assert members.wait_for_leader() is lacking
    members.until(lambda: store.acknowledged() is not None, "the leader notes nothing in etcd")
    store.put_acknowledged(known)
    before = other.log_bytes()
    other.start()
    members.until(lambda: "the set has acknowledged" in other.tail(), "it does not refuse")
    assert f"{lacking.address} leads without" in other.tail()
    assert f"txmq cluster promote {other.name}." in other.tail()
    assert other.log_bytes() == before

    lacking.kill()
    members.until(lambda: not store.has_leader(), "its lease does not end")
    members.promote(other, "--allow-data-loss")
    lacking.start()
    leader.start()
    assert members.wait_in_sync(2) is other
    clients.check(other)
    assert_alike(members)


class Store:
    """What etcd knows about a set: whether it has a leader, and the end of what it acknowledged."""

    def __init__(self, members):
        self._etcd = etcd_coordinator(members.etcd, "DefaultCluster", members.name)

    def has_leader(self):
        return asyncio.run(self._etcd.view()).leader is not None

    def acknowledged(self):
        return asyncio.run(self._etcd.acknowledged())

    def put_acknowledged(self, end):
        if end is None:
            call = "/v3/kv/deleterange", {"key": self._etcd._acknowledged_key}
        else:
            call = "/v3/kv/put", self._etcd._put_acknowledged(end)["request_put"]
        asyncio.run(self._etcd._call(*call))
