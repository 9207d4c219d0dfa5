"""Broker sets as real processes with a real etcd: leaders die, and no message is lost."""

import shutil
import signal
import time
from contextlib import ExitStack
from statistics import median

import pytest

from tests.faults import full_disk
from tests.servers.broker_set import BUSY_S, FAIL_OVER_S, LEASE_S, SETTINGS, BrokerSet, assert_alike
from tests.soak import IS_SOAK, count
from tests.traffic.set_traffic import traffic


@pytest.fixture
def members(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, SETTINGS) as broker_set:
        yield broker_set


@pytest.fixture
def linked(tmp_path, etcd):
    """Members whose links to etcd and to each other can be cut."""
    with BrokerSet(tmp_path, etcd.port, SETTINGS, has_links=True) as broker_set:
        yield broker_set


def test_a_killed_or_frozen_leader_is_replaced_without_loss(members):
    with traffic(members) as clients:
        times = []
        for number in range(count(4, 20)):
            clients.wait_for_more()
            leader, end = members.wait_in_sync(2), (signal.SIGKILL, signal.SIGSTOP)[number % 2]
            leader.signal(end)
            begun = time.monotonic()
            members.wait_for_leader(leader)
            times.append(time.monotonic() - begun)
            assert times[-1] < FAIL_OVER_S + BUSY_S, f"{times[-1]:.1f} s\n{members.told()}"
            clients.wait_for_more()
            if end is signal.SIGSTOP:
                leader.signal(signal.SIGCONT)
            else:
                leader.process.wait()
                leader.start()
    print(f"seconds without a leader: median {median(times):.2f}, worst {max(times):.2f}")
    assert median(times) < FAIL_OVER_S
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_a_stopped_leader_hands_over_at_once(members):
    with traffic(members) as clients:
        times = []
        for _ in range(count(2, 10)):
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            begun = time.monotonic()
            leader.signal(signal.SIGTERM)
            members.wait_for_leader(leader)
            times.append(time.monotonic() - begun)
            assert leader.process.wait(20) == 0
            leader.start()
    print(f"seconds of a hand-over: median {median(times):.2f}, worst {max(times):.2f}")
    assert max(times) < 1 + BUSY_S
    assert min(times) < 1 or not IS_SOAK
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_a_leader_hands_over_to_a_chosen_member_and_loses_nothing(members):
    with traffic(members) as clients:
        times = []
        for number in range(count(2, 10)):
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            others = [member for member in members.members.values() if member is not leader]
            chosen = others[number % 2]
            times.append(members.promote(chosen)["ms"] / 1000)
            assert members.wait_for_leader(leader) is chosen
    print(f"seconds of a hand-over: median {median(times):.2f}, worst {max(times):.2f}")
    assert max(times) < 1 + BUSY_S
    assert min(times) < 1 or not IS_SOAK
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_a_member_that_lost_its_directory_rejoins_but_cannot_lead_first(members):
    with traffic(members) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        wiped, other = (one for one in members.members.values() if one is not leader)
        # The leader first: otherwise it would note that the others are no longer in sync.
        for member in (leader, other, wiped):
            member.kill()
        shutil.rmtree(wiped.folder / "data")
        members.until(lambda: members.leader() is None, "the name server forgets nobody")
        wiped.start()
        members.never(members.leader, 2 * LEASE_S, "a member without the log leads")
        other.start()
        assert members.wait_for_leader() is other
        leader.start()
        clients.wait_for_more()
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_a_set_stops_answering_without_etcd_and_resumes_with_it(members, etcd):
    with traffic(members) as clients:
        clients.wait_for_more()
        members.wait_in_sync(2)
        etcd.kill()
        clients.wait_for_silence(LEASE_S + 1, LEASE_S)
        assert etcd.start()
        clients.wait_for_more()
    clients.check(members.wait_in_sync(2))
    assert_alike(members)


def test_an_etcd_restart_does_not_change_the_leader(members, etcd):
    with traffic(members) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        etcd.kill()
        assert etcd.start()
        clients.wait_for_more(400)
        assert members.leader() is leader
    clients.check(members.wait_in_sync(2))


def test_a_leader_cut_off_from_etcd_steps_down_and_follows(linked):
    with traffic(linked) as clients:
        clients.wait_for_more()
        leader = linked.wait_in_sync(2)
        linked.to_etcd[leader].cut()
        linked.wait_for_leader(leader)
        clients.wait_for_more()
        linked.to_etcd[leader].heal()
    clients.check(linked.wait_in_sync(2))
    assert_alike(linked)


def test_a_leader_cut_off_from_its_followers_goes_on_alone(linked):
    """The followers lag, leave the set, and come back."""
    with traffic(linked) as clients:
        clients.wait_for_more()
        leader = linked.wait_in_sync(2)
        linked.to_members[leader].cut()
        linked.wait_in_sync(0)
        clients.wait_for_more()
        assert linked.leader() is leader
        linked.to_members[leader].heal()
        linked.wait_in_sync(2)
    clients.check(leader)
    assert_alike(linked)


@pytest.mark.parametrize("kind", full_disk.KINDS)
def test_a_follower_with_a_full_disk_leaves_the_set_and_catches_up_once_it_has_room(
    kind, tmp_path, etcd
):
    members = BrokerSet(tmp_path, etcd.port, SETTINGS)
    with ExitStack() as stack:
        disks = {
            name: stack.enter_context(kind(tmp_path / name / "data")) for name in members.members
        }
        stack.enter_context(members)
        with traffic(members) as clients:
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            follower = next(member for member in members.members.values() if member is not leader)
            disk = disks[follower.name]
            disk.fill(follower.process)
            members.wait_in_sync(1)
            clients.wait_for_more(200)
            assert members.leader() is leader
            (line,) = [line for line in follower.tail().splitlines() if "the disk is full" in line]
            assert "not following: the disk is full" in line
            disk.make_room(follower.process)
            members.wait_in_sync(2)
        clients.check(leader)
        assert_alike(members)


def test_a_lone_leader_refuses_sends_when_two_copies_are_required(tmp_path, etcd):
    settings = (*SETTINGS, "replication.min_in_sync=2")
    with BrokerSet(tmp_path, etcd.port, settings) as members, traffic(members) as clients:
        clients.wait_for_more()
        leader = members.wait_in_sync(2)
        others = [member for member in members.members.values() if member is not leader]
        others[0].kill()
        clients.wait_for_more()
        others[1].kill()
        clients.wait_for_silence(LEASE_S, LEASE_S)
        clients.wait_for_refusal("ServiceUnavailable")
        others[0].start()
        clients.wait_for_more()
        others[1].start()
        clients.stop()
        clients.check(members.wait_in_sync(2))
        assert_alike(members)
