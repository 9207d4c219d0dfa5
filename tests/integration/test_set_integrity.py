"""Broker sets whose members come back with less than they had: nothing acknowledged is lost.

All members are killed under load, the directory of one is damaged, and they start again in some
order. Whoever lacks what the set has acknowledged must not lead.
"""

import shutil
import time
from enum import StrEnum

import pytest

from tests.broker_set import LEASE_S, SETTINGS, BrokerSet, assert_alike
from tests.set_damage import Damage, damage, data_of, snapshot
from tests.set_traffic import traffic
from tests.soak import some_of

OLDER_S = 3
"""The age of a snapshot; the set notes what it has acknowledged each second."""


class Order(StrEnum):
    """Which member starts first."""

    DAMAGED = "the-damaged-member-first"
    WHOLE = "a-whole-member-first"
    TOGETHER = "all-three-together"


CASES = [(kind, order) for kind in Damage for order in Order]
CHOSEN = [
    (Damage.SHORTENED_WITHOUT_MARK, Order.DAMAGED),
    (Damage.OLDER, Order.DAMAGED),
    (Damage.SHORTENED, Order.WHOLE),
    (Damage.EMPTIED_WITHOUT_MARK, Order.TOGETHER),
    (Damage.SWAPPED, Order.DAMAGED),
]
"""The two stories that lost messages, and others with each kind of damage."""


@pytest.fixture
def members(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, SETTINGS) as found:
        yield found


@pytest.mark.parametrize(("kind", "order"), some_of(CASES, CHOSEN))
def test_a_member_that_lost_a_part_of_its_log_costs_nothing(kind, order, members, tmp_path):
    with traffic(members, pause_s=0.03, padding=6000, reads_late=True) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        damaged, other = (one for one in members.members.values() if one is not leader)
        older = snapshot(damaged, tmp_path / "older")
        taken = time.monotonic()
        while time.monotonic() < taken + OLDER_S:
            clients.wait_for_more()
        members.wait_in_sync(2)
        # The leader first: it would note that the others are not in sync any more.
        for member in (leader, damaged, other):
            member.kill()
        members.until(lambda: members.leader() is None, "the name server forgets nobody")
        damage(kind, damaged, older=older, other=other)
        lacking = {damaged, other} if kind is Damage.SWAPPED else {damaged}

        match order:
            case Order.DAMAGED:
                damaged.start()
                members.never(members.leader, 2 * LEASE_S, "a member that lacks messages leads")
                leader.start()
                other.start()
            case Order.WHOLE:
                leader.start()
                assert members.wait_for_leader() is leader
                damaged.start()
                other.start()
            case Order.TOGETHER:
                for member in (damaged, other, leader):
                    member.launch()
        assert members.wait_for_leader() not in lacking, members.told()
        clients.wait_for_more()
        wipe_if_refused(members, damaged)
        members.wait_in_sync(2)
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def wipe_if_refused(members, member):
    """A member that refuses to start says what to do; this does it."""
    if member.is_running:
        return
    assert "to go on without what is missing" in member.tail()
    shutil.rmtree(data_of(member))
    member.start()
