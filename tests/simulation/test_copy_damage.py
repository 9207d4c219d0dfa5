"""Broker sets whose disks are damaged, or of which several machines go down at once, step by step.

Somebody sends and somebody reads all the time. What each scenario leaves behind must be whole when
it is over, and every promise of a set must have been kept.
"""

import asyncio
import errno
import logging

import pytest

from tests.running import run_by
from tests.simulation.copy_history import (
    AllBack,
    Damaged,
    LossAllowed,
    Mended,
    SetChanged,
    WritesFail,
)
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_node import machine_of
from tests.simulation.copy_runs import COPY_CHECKERS, judge
from tests.simulation.copy_stage import CopyStage
from tests.simulation.history import Acknowledged
from tests.simulation.mix import kib
from txmq.client import Admin, Session
from txmq.testing import Loss, World, simulate

MIX = CopyMix(
    segment=kib(16),
    queues=1,
    producers=1,
    lanes=2,
    sends=400,
    think_s=0.2,
    body_max=300,
    batch_chance=0.0,
    hold_s=0.5,
    lag_max=1.0,
    sync_s=(0.0, 0.005),
    faults=("writes fail",),
)
"""Much is sent all the time, and nothing goes wrong by itself."""


def live(act, *, seeds=2, **dials):
    """Run a scenario on a set with some seeds, the first twice, and judge it."""
    mix = MIX.but(**dials)

    async def scenario(world: World):
        stage = CopyStage(world, mix)
        await stage.open()
        stage.people()
        await until(lambda: len(stage.set.in_sync()) == len(stage.members))
        await asyncio.sleep(3)
        await act(stage)
        stage.calm()
        await stage.settle()
        await stage.close()
        judge(stage.history, COPY_CHECKERS)

    scenario.__qualname__ = act.__qualname__
    for seed in range(seeds):
        simulate(scenario, seed, conditions=mix.conditions, twice=seed == 0)


async def until(condition, within_s=30.0):
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


def count(stage, kind):
    return stage.history.count(kind)


async def end_all(stage, how="kill", *, harmed=None, as_harmed=""):
    """Take all members and the store down at once."""
    stage.coordination.stop()
    for node in stage.members:
        stage.lose(node, as_harmed if node is harmed else how)
        node.is_wanted = False
        if how == "kill":
            node.machine.kill()
        else:
            node.machine.crash(Loss.ANY)
    for node in stage.members:
        await node.gone()


async def begin_all(stage, first=None, alone_s=0.0):
    """Start the store and all members, perhaps one of them some time before the others."""
    stage.coordination.start()
    if first is not None:
        first.start()
        await asyncio.sleep(alone_s)
    for node in stage.members:
        node.start()
    stage.history.add(AllBack(stage.world.now()))


def follower_of(stage):
    return next(node for node in stage.set.in_sync() if node is not stage.set.leader)


# Less than it had


FIRST = pytest.mark.parametrize("alone_s", [0.0, 15.0], ids=["with the others", "first"])


@pytest.mark.fault("C3")
@FIRST
@pytest.mark.parametrize("with_mark", [False, True], ids=["its mark left", "its mark lost"])
@run_by(live)
async def test_a_follower_that_lost_its_log_tail_does_not_lead(stage, /, alone_s, with_mark):
    harmed = follower_of(stage)
    await end_all(stage, harmed=harmed, as_harmed="lost tail")
    assert harmed.lose_tail(stage.world.entropy.fork("tail"), with_mark=with_mark)

    await begin_all(stage, harmed, alone_s)
    await until(lambda: stage.set.is_serving and harmed.is_whole)


@pytest.mark.fault("C3")
@run_by(live)
async def test_a_leader_that_lost_its_log_tail_does_not_lead_before_the_others(stage, /):
    leader = stage.set.leader
    stage.lose(leader, "lost tail")
    await leader.kill()
    assert leader.lose_tail(stage.world.entropy.fork("tail"), with_mark=True)

    leader.start()
    await until(lambda: stage.set.is_serving and leader.is_whole)


@pytest.mark.fault("C4")
@FIRST
@run_by(live)
async def test_a_follower_put_back_to_an_older_directory_does_not_lead(stage, /, alone_s):
    harmed = follower_of(stage)
    before = harmed.snapshot()
    await asyncio.sleep(5)
    await end_all(stage, harmed=harmed, as_harmed="older state")
    harmed.put_back(before)

    await begin_all(stage, harmed, alone_s)
    await until(lambda: stage.set.is_serving and harmed.is_whole)


@pytest.mark.fault("C4")
@pytest.mark.parametrize("role", ["a follower", "the leader"])
@run_by(live, lease=2, seeds=4)
async def test_messages_of_the_last_second_survive_a_member_put_back_by_a_second(stage, /, role):
    """The store has not heard of them. A member's log end in an earlier election does not count."""
    for _ in range(2):
        leader, follower = stage.set.leader, follower_of(stage)
        harmed = leader if role == "the leader" else follower
        before = harmed.snapshot()
        await asyncio.sleep(0.9)
        await end_all(stage, harmed=harmed, as_harmed="older state")
        harmed.put_back(before)
        # One other returning member is enough.
        for node in stage.members if harmed is leader else (leader, follower):
            node.start()
        stage.coordination.start()
        await until(lambda node=harmed: stage.set.is_serving and node.is_whole)
        for node in stage.members:
            node.start()
        await until(lambda: len(stage.set.in_sync()) == len(stage.members))


@pytest.mark.fault("C4")
@run_by(live)
async def test_a_leader_put_back_to_an_older_directory_does_not_lead_before_the_others(stage, /):
    leader = stage.set.leader
    before = leader.snapshot()
    await asyncio.sleep(5)
    stage.lose(leader, "older state")
    await leader.kill()
    leader.put_back(before)

    leader.start()
    await until(lambda: stage.set.is_serving and leader.is_whole)


@pytest.mark.fault("C5")
@pytest.mark.parametrize("how", ["kill", "power cut"])
@run_by(live)
async def test_losing_all_members_and_the_store_at_once_loses_no_message(stage, /, how):
    for _ in range(3):
        await end_all(stage, how)
        await asyncio.sleep(1)
        await begin_all(stage)
        await until(lambda: stage.set.is_serving)
        await asyncio.sleep(3)


@pytest.mark.fault("C3", "C5")
@run_by(live, seeds=1)
async def test_if_all_members_are_in_doubt_a_complete_one_leads_once_all_are_back(stage, /):
    harmed = stage.set.leader
    await end_all(stage, "power cut", harmed=harmed, as_harmed="lost tail")
    for node in stage.members:
        if node is not harmed:
            node.disk.remove("high-water")
    assert harmed.lose_tail(stage.world.entropy.fork("tail"), with_mark=False)

    await begin_all(stage, harmed, alone_s=8.0)
    await until(lambda: stage.set.is_serving and harmed.is_whole)


@pytest.mark.fault("C9")
@run_by(live)
async def test_if_only_an_incomplete_copy_is_left_an_operator_decides(stage, /, caplog):
    logging.disable(logging.NOTSET)

    caplog.clear()
    leader, coordination = stage.set.leader, stage.coordination
    others = [node for node in stage.members if node is not leader]
    before = leader.snapshot()
    for node in others:
        await node.kill()
    await until(lambda: stage.set.in_sync() == [leader])
    await asyncio.sleep(3)
    stage.lose(leader, "older state")
    await leader.kill()
    leader.put_back(before)
    for node in stage.members:
        node.start()
    await asyncio.sleep(20)
    assert coordination.view().leader is None
    assert "--allow-data-loss" in caplog.text

    stage.allow_loss(leader)
    await until(lambda: len(stage.set.in_sync()) == len(stage.members))
    assert count(stage, LossAllowed) == 1


# Flipped bits


@pytest.mark.fault("C1", "C2")
@pytest.mark.parametrize("role", ["a follower", "the leader"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["that runs", "that is stopped"])
@run_by(live)
async def test_a_flipped_bit_is_noticed_and_repaired_from_another_copy(stage, /, role, is_stopped):
    draw = stage.world.entropy.fork("bits")
    await asyncio.sleep(5)
    node = stage.set.leader if role == "the leader" else follower_of(stage)
    if is_stopped:
        stage.lose(node, "kill")
        await node.kill()
    assert stage.flip_bits(node, draw, 2, only_closed=not is_stopped)
    stage.history.add(Damaged(stage.world.now(), node.name))
    node.start()
    await until(lambda: not node.is_damaged)
    stage.history.add(Mended(stage.world.now(), node.name))
    await until(lambda: node in stage.set.in_sync())


@pytest.mark.fault("C1", "C2")
@run_by(live, members=2)
async def test_two_members_damaged_in_different_places_repair_each_other(stage, /):
    draw = stage.world.entropy.fork("bits")
    await asyncio.sleep(5)
    nodes = [stage.set.leader, follower_of(stage)]
    first, second = nodes
    assert first.flip_bit(draw, kib(8), only_closed=True) is not None
    assert second.flip_bit(draw, kib(16), since=kib(8), only_closed=True) is not None
    for node in nodes:
        stage.history.add(Damaged(stage.world.now(), node.name))
    for node in nodes:
        await until(lambda node=node: not node.is_damaged)
        stage.history.add(Mended(stage.world.now(), node.name))


# More than one machine, or a disk that accepts no writes


@pytest.mark.fault("C6")
@run_by(live)
async def test_a_leader_that_dies_while_the_store_is_down_is_replaced_soon_after(stage, /):
    leader = stage.set.leader
    stage.lose(leader, "kill")
    stage.coordination.stop()
    await leader.kill()
    await asyncio.sleep(2)
    stage.coordination.start()
    stage.history.add(AllBack(stage.world.now()))
    await until(lambda: stage.set.is_serving and stage.set.leader is not leader)


@pytest.mark.fault("C7")
@pytest.mark.parametrize("why", ["every write fails", "no room"])
@run_by(live)
async def test_a_leader_that_cannot_write_hands_over_and_does_not_lead_again(stage, /, why):
    leader, epoch = stage.set.leader, stage.coordination.view().epoch
    stage.history.add(WritesFail(stage.world.now(), leader.name, has_heir=True))
    if why == "no room":
        leader.disk.capacity = leader.disk.space().used
    else:
        leader.disk.fail_writes(error=errno.EIO)
    await until(lambda: stage.set.is_serving and stage.set.leader is not leader)
    taken = count(stage, Acknowledged)
    await asyncio.sleep(20)
    assert count(stage, Acknowledged) > taken
    led = [
        machine_of(event.leader)
        for event in stage.history.events
        if isinstance(event, SetChanged) and event.epoch > epoch
    ]
    assert leader.name not in led

    leader.disk.repair()
    leader.disk.capacity = None
    await until(lambda: leader in stage.set.in_sync())


@pytest.mark.fault("C8")
@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_a_member_removed_under_load_loses_no_message(min_in_sync):
    async def main(stage):
        node, leader = follower_of(stage), stage.set.leader
        machine = stage.world.machine("operator of the set")
        ports = (machine.network, machine.clock, machine.entropy)
        async with Session(stage.names_text, *ports) as session:
            change = (stage.set.name, node.name)
            known = {"reason": "a new disk", "operator": "Li Na"}
            await Admin(session).remove_member(*change, **known)
            assert node not in stage.set.in_sync()
            await asyncio.sleep(3)
            stage.lose(leader, "kill")
            await leader.kill()
            await until(lambda: stage.set.is_serving and stage.set.leader is not leader)
            assert stage.set.leader is not node
            leader.start()
            await until(lambda: leader in stage.set.in_sync())
            session.routes.forget("Topic0")
            await Admin(session).rejoin_member(*change, **known)
            await until(lambda: node in stage.set.in_sync())

    live(main, min_in_sync=min_in_sync)
