"""A leader that cannot write gives its lease back, and another member takes the sends."""

import time
from contextlib import ExitStack, contextmanager

import pytest

from tests.faults import full_disk
from tests.faults.failing_writes import FailingWrites
from tests.servers.broker_set import (
    BUSY_S,
    FAIL_OVER_S,
    LEASE_S,
    PATIENCE_S,
    SETTINGS,
    BrokerSet,
    assert_alike,
)
from tests.soak import only_in_soak, some_of
from tests.traffic.set_traffic import traffic


class Broken:
    """Writes of one member fail with EIO."""

    reason = "Input/output error"

    def __init__(self, member):
        self._disk = FailingWrites(member.folder / "library")
        member.account = self._disk.variables

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def fail(self, process):
        self._disk.fail()

    def mend(self, process):
        self._disk.mend()


class Full:
    """The disk of one member has no room."""

    reason = "the disk is full"
    kind = full_disk.Limited

    def __init__(self, member):
        self._disk = self.kind(member.folder / "data")

    def __enter__(self):
        self._disk.__enter__()
        return self

    def __exit__(self, *_):
        self._disk.__exit__()

    def fail(self, process):
        self._disk.fill(process)

    def mend(self, process):
        self._disk.make_room(process)


class FullFileSystem(Full):
    """The file system of one member's directory is full."""

    reason = "No space left on device"
    kind = full_disk.KINDS[0]


DISKS = (Broken, Full) if FullFileSystem.kind is Full.kind else (Broken, Full, FullFileSystem)
LASTING = [kind for kind in DISKS if kind is not Full]
"""Those that outlast the process."""


@contextmanager
def running(kind, folder, etcd):
    """A set whose disks can fail, and its disks by member."""
    members = BrokerSet(folder, etcd.port, SETTINGS)
    with ExitStack() as stack:
        disks = {member: stack.enter_context(kind(member)) for member in members.members.values()}
        stack.enter_context(members)
        yield members, disks


@pytest.mark.parametrize("kind", some_of(DISKS, [Broken, DISKS[-1]]))
def test_a_leader_that_cannot_write_steps_down_and_rejoins_once_it_can(kind, tmp_path, etcd):
    with running(kind, tmp_path, etcd) as (members, disks):
        with traffic(members, pause_s=0.02) as clients:
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            disks[leader].fail(leader.process)
            begun = time.monotonic()
            members.wait_for_leader(leader)
            took_s = time.monotonic() - begun
            assert took_s < FAIL_OVER_S + BUSY_S, f"{took_s:.1f} s\n{members.told()}"
            clients.wait_for_more()
            assert kind.reason in leader.tail()
            disks[leader].mend(leader.process)
            members.wait_in_sync(2)
        clients.check(members.wait_in_sync(2))
        assert_alike(members)


@pytest.mark.parametrize("kind", some_of(LASTING, [Broken]))
def test_a_member_that_cannot_write_does_not_lead(kind, tmp_path, etcd):
    """The member starts first, and has everything that was acknowledged."""
    with running(kind, tmp_path, etcd) as (members, disks):
        with traffic(members, pause_s=0.02) as clients:
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            failing, other = (one for one in members.members.values() if one is not leader)
            # The leader first: otherwise it would note that the others are no longer in sync.
            for member in (leader, failing, other):
                member.kill()
            members.until(lambda: members.leader() is None, "the name server forgets nobody")
            disks[failing].fail(failing.process)
            failing.start()
            members.never(members.leader, 2 * LEASE_S, "a member leads that cannot write")
            assert kind.reason in failing.tail()
            other.start()
            leader.start()
            assert members.wait_for_leader() is not failing
            clients.wait_for_more()
            disks[failing].mend(failing.process)
            members.wait_in_sync(2)
        clients.check(members.wait_in_sync(2))
        assert_alike(members)


@pytest.mark.parametrize("kind", only_in_soak(*DISKS))
def test_messages_only_on_a_failing_leader_are_copied_before_another_leads(kind, tmp_path, etcd):
    with running(kind, tmp_path, etcd) as (members, disks):
        with traffic(members, pause_s=0.02) as clients:
            clients.wait_for_more()
            leader = members.wait_in_sync(2)
            others = [member for member in members.members.values() if member is not leader]
            for member in others:
                member.kill()
            members.wait_in_sync(0)
            clients.wait_for_more()
            disks[leader].fail(leader.process)
            clients.wait_for_silence(PATIENCE_S, 2 * LEASE_S)
            disks[leader].mend(leader.process)
            clients.wait_for_more()
            assert members.leader() is leader
            disks[leader].fail(leader.process)
            clients.wait_for_silence(PATIENCE_S, LEASE_S)
            for member in others:
                member.start()
            members.wait_for_leader(leader)
            clients.wait_for_more()
            disks[leader].mend(leader.process)
            members.wait_in_sync(2)
        clients.check(members.wait_in_sync(2))
        assert_alike(members)
