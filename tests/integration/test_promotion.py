"""Promoting a follower's directory: which one, by whom, why, and to which epoch."""

import asyncio

import pytest

from tests.unit.replication.copy_stage import FollowedShelf, LeadingShelf, promoted
from txmq.errors import DirectoryInUse, UsageError
from txmq.runtime.disk import LocalDisk
from txmq_broker.access.audit import read_audit
from txmq_broker.offline.promotion import promote
from txmq_broker.services.keeper import Keeper

BY = {"operator": "li", "host": "m2"}


def followed(leader, data, *, messages=5, end=None, epoch=0):
    """A directory that has followed a leader, up to a position."""

    async def run():
        copy = FollowedShelf(leader, LocalDisk(data))
        await copy.join()
        leader.add(*[b"message"] * messages)
        copy.copy.note_epoch(epoch)
        if end is None:
            await copy.follow()
        else:
            await copy.follow(end=end)
        await copy.close()

    asyncio.run(run())
    return Keeper(LocalDisk(data))


def test_a_promoted_directory_leads_in_a_new_epoch(tmp_path):
    leader = LeadingShelf()
    leader.store.log.epoch = 4
    keeper = followed(leader, tmp_path, epoch=7)
    assert keeper.copy_state().is_copy
    with pytest.raises(UsageError, match=r"follower; to lead .*: txmq cluster promote --data DIR"):
        keeper.refuse_copy()

    done = promote(tmp_path, "the leader burned", **BY)

    assert (done.epoch, done.end) == (8, leader.store.log.end)
    assert done.last_ms == leader.store.log.last_ms
    state = Keeper(LocalDisk(tmp_path)).copy_state()
    assert (state.is_copy, state.epoch, state.reason) == (False, 8, "the leader burned")
    assert state.promoted_ms > 0
    (entry,) = read_audit(LocalDisk(tmp_path), pytest.fail)
    assert (entry.request, entry.account, entry.peer) == ("PROMOTE", "li", "m2")
    assert entry.fields == {"reason": "the leader burned", "epoch": "8", "end": str(done.end)}
    Keeper(LocalDisk(tmp_path)).refuse_copy()
    shelf = promoted(LocalDisk(tmp_path), leader.sizes)
    assert list(shelf.bodies().values()) == [b"message"] * 5
    shelf.close()


def test_only_the_directory_of_a_stopped_follower_can_be_promoted(tmp_path):
    leader = LeadingShelf(LocalDisk(tmp_path / "leader"))
    leader.add(b"message")
    leader.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="leader is not the directory of a follower$"):
        promote(tmp_path / "leader", "why", **BY)
    assert {path: path.read_bytes() for path in before} == before

    leader = LeadingShelf()
    followed(leader, tmp_path / "copy")
    lock = LocalDisk(tmp_path / "copy").lock()
    with pytest.raises(DirectoryInUse):
        promote(tmp_path / "copy", "why", **BY)
    lock.release()
    assert Keeper(LocalDisk(tmp_path / "copy")).copy_state().is_copy

    promote(tmp_path / "copy", "why", **BY)
    with pytest.raises(UsageError, match="it leads already, in epoch 1$"):
        promote(tmp_path / "copy", "why", **BY)


def test_an_incomplete_copy_is_promoted_only_with_allow_data_loss(tmp_path):
    leader = LeadingShelf()
    leader.add(*[b"before"] * 3)
    followed(leader, tmp_path, end=leader.heads()[1].position)

    with pytest.raises(UsageError, match="never had everything .* add --allow-data-loss"):
        promote(tmp_path, "why", **BY)
    assert Keeper(LocalDisk(tmp_path)).copy_state().is_copy

    promote(tmp_path, "why", **BY, allow_data_loss=True)
    shelf = promoted(LocalDisk(tmp_path), leader.sizes)
    assert list(shelf.bodies().values()) == [b"before"]
    shelf.close()
