"""The commands about broker sets, with real members and a real etcd."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.servers import database_server, etcd_server
from tests.servers.broker_set import BrokerSet
from tests.servers.serving import environment

LEASE_S = 2
REASON = "the other machine has burnt"
LOST = "the store of the set has lost its data: its epoch is 0, and this member has seen epoch 1"


@pytest.fixture
def members(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, (f"replication.lease={LEASE_S}",), count=2) as broker_set:
        yield broker_set


@pytest.fixture
def trio(tmp_path, etcd):
    with BrokerSet(tmp_path, etcd.port, (f"replication.lease={LEASE_S}",)) as broker_set:
        yield broker_set


def txmq(*words):
    return subprocess.run(
        [sys.executable, "-m", "txmq", *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def status(members):
    done = txmq("cluster", "status", "--names", members.names.names, "--json")
    assert done.returncode == 0, done.stderr
    (broker,) = json.loads(done.stdout)
    return broker


def promote(members, member, *more):
    leader = ["--coordinator", members.members["m1"].etcd, "--broker", members.name]
    return txmq("cluster", "promote", member, *leader, "--reason", REASON, *more)


def change(members, act, member, *more):
    where = ["--names", members.names.names, "--broker", members.name]
    return txmq("cluster", act, member, *where, "--reason", REASON, *more)


def audit(member):
    done = txmq("audit", "--data", member.folder / "data", "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]


def whole_name(member):
    return f"{member.name}.{(member.folder / 'data/member').read_text().strip()}"


def test_the_status_of_a_set_lists_its_members(members):
    leader = members.wait_in_sync(1)
    leader.create_topic("T", 4)
    members.wait_settled()
    (follower,) = (member for member in members.members.values() if member is not leader)
    shown = status(members)
    expected = {
        "broker": members.name,
        "address": leader.address,
        "name": leader.name,
        "member": whole_name(leader),
        "epoch": 1,
        "mode": "sync",
        "in_sync": 2,
        "min_in_sync": 1,
    }
    assert shown.items() >= expected.items()
    (entry,) = shown["followers"]
    assert entry["address"].startswith("127.0.0.1:")
    assert (entry["name"], entry["member"]) == (follower.name, whole_name(follower))
    assert (entry["in_sync"], entry["position"]) == (True, shown["log_end"])
    assert (entry["bytes_behind"], entry["seconds_behind"]) == (0, 0)
    figures = members.figures(leader)
    assert (figures["epoch"], figures["isLeader"], figures["followers"]) == ("1", "1", "1")
    assert int(figures["secondsSinceLeaseRenewal"]) < LEASE_S


def test_an_operator_can_promote_a_member_that_may_lack_messages(members):
    leader = members.wait_in_sync(1)
    leader.create_topic("T", 4)
    members.wait_settled()
    (other,) = (member for member in members.members.values() if member is not leader)
    refused = promote(members, whole_name(other), "--allow-data-loss")
    assert refused.returncode == 1
    assert f"{whole_name(leader)} leads {members.name} in epoch 1" in refused.stderr

    other.kill()
    members.wait_in_sync(0)
    gone = whole_name(leader)
    leader.kill()
    shutil.rmtree(leader.folder / "data")
    other.start()
    members.until(lambda: not has_leader(members), "the lease does not end")
    assert members.leader() is None

    refused = promote(members, whole_name(other))
    assert refused.returncode == 2
    assert f"may lack messages that {members.name} acknowledged. In sync: {gone}" in refused.stderr
    refused = promote(members, "m9", "--allow-data-loss")
    assert (refused.returncode, "'m9' is not a member; members: m1." in refused.stderr) == (2, True)
    refused = promote(members, gone)
    assert (refused.returncode, "is in sync: it leads" in refused.stderr) == (1, True)

    done = promote(members, other.name, "--allow-data-loss", "--operator", "Li Na", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).items() >= {"former": [gone], "reason": REASON}.items()
    assert members.wait_for_leader() is other
    assert status(members)["epoch"] == 2
    lines = txmq("audit", "--data", other.folder / "data", "--json").stdout.splitlines()
    (entry,) = [line for line in map(json.loads, lines) if line["request"] == "PROMOTE"]
    assert (entry["account"], entry["fields"]["reason"]) == ("Li Na", REASON)
    assert entry["fields"]["in_sync_before"] == gone

    # The wiped member joins under a new name, and both are in sync.
    leader.start()
    assert members.wait_in_sync(1) is other


def has_leader(members):
    """Whether the lease of the old leader still exists; this changes nothing."""
    return f" leads {members.name} " in promote(members, "m9", "--allow-data-loss").stderr


def test_a_leader_hands_over_to_the_member_an_operator_chose(trio):
    leader = trio.wait_in_sync(2)
    leader.create_topic("T", 4)
    trio.wait_settled()
    chosen = [member for member in trio.members.values() if member is not leader][-1]

    refused = promote(trio, "mm1")
    assert refused.returncode == 2
    assert refused.stderr.endswith("; did you mean m1?\n"), refused.stderr
    assert f"'mm1' is not a member; members: {whole_name(trio.members['m1'])}, " in refused.stderr
    refused = promote(trio, leader.name)
    assert (refused.returncode, "leads already" in refused.stderr) == (1, True)

    done = promote(trio, chosen.name, "--operator", "Li Na", "--json")
    assert done.returncode == 0, done.stderr + trio.told()
    outcome = json.loads(done.stdout)
    assert outcome["member"] == whole_name(chosen)
    assert (outcome["former"], outcome["epoch"]) == ([whole_name(leader)], 2)
    assert outcome["ms"] < 1000, trio.told()
    assert trio.wait_for_leader(other_than=leader) is chosen
    entries = [entry for entry in audit(chosen) if entry["request"] == "HAND_OVER"]
    assert [(entry["account"], entry["fields"]) for entry in entries] == [
        ("Li Na", {"member": whole_name(chosen), "reason": REASON})
    ]
    asked = [entry for entry in audit(leader) if entry["request"] == "CHANGE_SET"]
    assert [bool(entry.get("refused")) for entry in asked] == [True, True, False]
    assert asked[-1]["fields"]["operator"] == "Li Na"
    # The old leader follows.
    assert trio.wait_in_sync(2) is chosen


def test_a_removed_member_cannot_follow_until_it_is_let_back(trio):
    leader = trio.wait_in_sync(2)
    leader.create_topic("T", 4)
    followers = [member for member in trio.members.values() if member is not leader]
    gone, other = followers

    refused = change(trio, "remove", leader.name)
    assert (refused.returncode, "leads; have another member lead" in refused.stderr) == (1, True)
    refused = change(trio, "rejoin", gone.name)
    assert (refused.returncode, "was not removed; removed: none" in refused.stderr) == (1, True)

    done = change(trio, "remove", gone.name, "--operator", "Li Na")
    assert (done.returncode, done.stdout) == (
        0,
        f"removed {gone.name} from {trio.name}, by Li Na\n",
    ), done.stderr
    assert trio.wait_in_sync(1) is leader
    line = f"was removed from the set by Li Na: {REASON}; to let it follow again: txmq cluster"
    trio.until(lambda: line in gone.tail(), "no line")
    shown = status(trio)
    assert [entry["name"] for entry in shown["followers"]] == [other.name]
    (removed,) = shown["removed"]
    assert (removed["name"], removed["operator"]) == (gone.name, "Li Na")
    refused = change(trio, "remove", gone.name)
    assert (refused.returncode, "was removed from the set by Li Na" in refused.stderr) == (1, True)

    # A new directory does not let it in either, and the next leader knows of the removal.
    gone.kill()
    shutil.rmtree(gone.folder / "data")
    assert promote(trio, other.name).returncode == 0
    gone.start()
    trio.until(lambda: line in gone.tail(), "no line")
    assert trio.wait_in_sync(1) is other
    assert change(trio, "rejoin", gone.name).returncode == 0
    assert trio.wait_in_sync(2) is other
    assert status(trio)["removed"] == []


def test_a_removal_that_leaves_too_few_copies_needs_consent(tmp_path, etcd):
    settings = (f"replication.lease={LEASE_S}", "replication.min_in_sync=2")
    with BrokerSet(tmp_path, etcd.port, settings, count=2) as duo:
        leader = duo.wait_in_sync(1)
        (other,) = (member for member in duo.members.values() if member is not leader)
        refused = change(duo, "remove", other.name)
        assert refused.returncode == 1
        assert "1 of 2 copies would be in sync, and sends would be refused" in refused.stderr
        assert change(duo, "remove", other.name, "--allow-refused-sends").returncode == 0
        assert duo.wait_in_sync(0) is leader


def test_promoting_a_member_of_an_unknown_set_fails(members):
    leader = ["--coordinator", members.members["m1"].etcd, "--broker", "nosuch"]
    done = txmq("cluster", "promote", "m1.00000000", *leader, "--reason", REASON)
    assert done.returncode == 2
    assert done.stderr == (
        "txmq: no member of a broker set 'nosuch' has ever led; check the name, or if its etcd has "
        "lost its data, add --allow-data-loss\n"
    )


def test_after_etcd_loses_its_data_nobody_leads_until_an_operator_promotes(tmp_path):
    """Members that have seen an epoch do not start again with the first one."""
    with (
        database_server.wanted(etcd_server.etcd_server) as etcd,
        BrokerSet(tmp_path, etcd.port, (f"replication.lease={LEASE_S}",), count=2) as members,
    ):
        leader = members.wait_in_sync(1)
        leader.create_topic("T", 4)
        members.wait_settled()
        etcd.kill()
        shutil.rmtree(etcd.home / "data")
        assert etcd.start()
        for member in members.members.values():
            members.until(lambda member=member: LOST in member.tail(), "does not say so")
        members.until(lambda: members.leader() is None, "the name server forgets nobody")
        leader.kill()
        leader.start()
        members.never(members.leader, 2 * LEASE_S, "a member leads")

        refused = promote(members, whole_name(leader))
        assert refused.returncode == 2
        assert "if its etcd has lost its data, add --allow-data-loss" in refused.stderr
        done = promote(members, whole_name(leader), "--allow-data-loss")
        assert done.returncode == 0, done.stderr
        assert members.wait_in_sync(1) is leader
        assert status(members)["epoch"] == 1_002, "no member has led in this epoch unseen"
