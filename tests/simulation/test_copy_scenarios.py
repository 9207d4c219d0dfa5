"""Broker sets in situations that no seed covers, step by step."""

import asyncio
import logging

import pytest

from tests.running import run_by
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_node import machine_of
from tests.simulation.copy_stage import CopyStage
from txmq.runtime.coordinator import AllowedLoss
from txmq.testing import World
from txmq.testing.coordination import SimulatedCoordinator

LOST = "the store of the set has lost its data"


def in_set(main, mix=None):
    """Run a coroutine function of a set with a leader and two followers."""
    world = World(1, scenario=main.__qualname__)

    async def scenario():
        stage = CopyStage(world, mix or CopyMix())
        await stage.open()
        async with asyncio.timeout(10):
            while len(stage.set.in_sync()) < len(stage.members):
                await asyncio.sleep(0.1)
        await main(stage)
        await stage.set.stop()
        for node in stage.names:
            await node.stop()

    world.run(scenario())


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@run_by(in_set)
async def test_after_the_store_lost_its_data_no_member_leads_until_an_operator_chooses(
    stage, /, restarted, caplog
):
    logging.disable(logging.NOTSET)

    leader, view = stage.set.leader, stage.coordination.view()
    stage.coordination.forget()
    if restarted:
        for node in stage.members:
            await node.kill()
            node.start()
    await asyncio.sleep(20)
    assert stage.coordination.view().leader is None
    assert LOST in caplog.text

    member = leader.name_in_set()
    loss = AllowedLoss(member, "Li Na", "etcd is new", 5, ())
    assert stage.coordination.allow_loss(stage.coordination.view(), loss)
    async with asyncio.timeout(10):
        while len(stage.set.in_sync()) < len(stage.members):
            await asyncio.sleep(0.1)
    assert stage.set.leader is leader
    assert stage.coordination.view().epoch > view.epoch


@run_by(in_set)
async def test_a_member_chosen_after_a_loss_leads_in_an_epoch_newer_than_all(stage, /):
    """Others led in that epoch, so their logs would be taken for copies of its log."""
    leader, coordination = stage.set.leader, stage.coordination
    chosen = next(node for node in stage.members if node is not leader)
    coordination.partition(chosen.name)
    stage.world.network.isolate(chosen.name)
    for _ in range(2):
        epoch = coordination.view().epoch
        await stage.set.leader.kill()
        async with asyncio.timeout(20):
            while not stage.set.is_serving or coordination.view().epoch == epoch:
                for node in stage.members:
                    node.start()
                await asyncio.sleep(0.1)
    newest = coordination.view().epoch

    coordination.forget()
    coordination.heal(chosen.name)
    stage.world.network.heal(chosen.name)
    await asyncio.sleep(20)
    loss = AllowedLoss(chosen.name_in_set(), "Li Na", "etcd is new", 5, ())
    assert coordination.allow_loss(coordination.view(), loss)
    async with asyncio.timeout(20):
        while len(stage.set.in_sync()) < len(stage.members):
            await asyncio.sleep(0.1)
    assert stage.set.leader is chosen
    assert coordination.view().epoch > newest


@run_by(in_set, CopyMix(members=1))
async def test_a_leader_whose_disk_is_full_leads_again_after_a_restart(stage, /):
    leader = stage.set.leader
    await leader.kill()
    leader.disk.capacity = leader.disk.space().used
    leader.start()
    async with asyncio.timeout(10):
        while not stage.set.is_serving:
            await asyncio.sleep(0.1)
    leader.disk.capacity = None


@pytest.mark.parametrize("method", ["renew", "change"])
@run_by(in_set)
async def test_a_leader_with_failing_store_requests_gives_way_to_another_member(
    stage, /, method, monkeypatch
):
    """Because of a bug of its own that no retry can fix."""
    leader, ask = stage.set.leader, getattr(SimulatedCoordinator, method)

    async def broken(self, leadership, *given):
        if machine_of(leadership.leader.member) == leader.name:
            raise RuntimeError("a fault of the program")
        return await ask(self, leadership, *given)

    monkeypatch.setattr(SimulatedCoordinator, method, broken)
    other = next(node for node in stage.members if node is not leader)
    await other.kill()  # So the in-sync set has to change.
    async with asyncio.timeout(10):
        while not stage.set.is_serving or stage.set.leader is leader:
            await asyncio.sleep(0.1)
    monkeypatch.undo()
    other.start()
