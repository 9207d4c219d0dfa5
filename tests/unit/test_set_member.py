"""A member of a set: when it leads, and when it lets another one lead."""

import asyncio
from contextlib import closing, nullcontext, suppress

import pytest

from tests.unit.handlers.handler_stage import STEADY
from txmq.runtime.coordinator import AllowedLoss, Leader, LogEnd, SetAct, Standing
from txmq.testing import World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.config import BrokerSettings, ReplicationSettings
from txmq_broker.processes.member import SetMember
from txmq_broker.replication.set_acts import removal_text
from txmq_broker.store.log.commit_log import HighWater, Mark
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.proof import NO_MARK

M1, M2 = "m1.00000001", "m2.00000002"
NOTHING = LogEnd(0, 0)
CHOSEN = SetAct("hand-over", M2, "Li Na", "an upgrade", 5)


class Stage:
    """Machine m1 in a set whose last leader, m2, has resigned; the store knows both as in sync."""

    def __init__(self, world, lease=5):
        self.lease = lease
        self.machine = machine = world.machine("m1")
        machine.disk.replace("member", f"{M1.partition('.')[2]}\n".encode())
        self.store = SimulatedCoordination(machine.entropy)
        self.first = self.store.coordinator("m2")

    async def resigned(self, acknowledged=None, **changes):
        """Have m2 lead and resign; the state of the set has these changes then."""
        first = self.first
        leadership = await first.lead(Leader(M2, "m2:10911"), await first.view(), 60, NOTHING)
        seen = await first.view()
        wanted = seen._replace(**{"in_sync": (M1, M2), **changes})
        assert await first.change(leadership, seen, wanted, None, acknowledged) is not None
        await first.resign(leadership)

    async def seconds_until_leading(self, within=20):
        """Start m1; when it leads."""
        machine = self.machine
        leading = asyncio.Event()
        settings = BrokerSettings(
            listen=f"{machine.address}:10911",
            names="names:9876",
            replication=ReplicationSettings(
                coordinator="etcd://store:2379", member="m1", mode="async", lease=self.lease
            ),
        )
        member = SetMember(
            settings,
            self.store.coordinator("m1"),
            clock=machine.clock,
            network=machine.network,
            disk=machine.disk,
            entropy=machine.entropy,
            on_leading=lambda _: leading.set(),
        )
        began = machine.clock.monotonic()
        running = machine.run(member.run(), name="member")
        try:
            async with asyncio.timeout(within):
                await leading.wait()
            return machine.clock.monotonic() - began
        finally:
            member.stop()
            await running


async def seconds_until_leading(world, **changes):
    stage = Stage(world)
    await stage.resigned(**changes)
    return await stage.seconds_until_leading()


def run(scenario):
    world = World(1, scenario="set member", conditions=STEADY)
    return world.run(scenario(world))


def test_the_only_member_in_sync_leads_at_once():
    assert run(lambda world: seconds_until_leading(world, in_sync=(M1,))) < 0.5


def test_a_started_member_waits_a_moment_for_the_others_in_sync():
    """They may have more of the log, if this directory was put back to an earlier state."""
    assert 2.0 <= run(seconds_until_leading) < 2.5


def test_a_started_member_leads_at_once_when_all_in_sync_stand_and_none_has_more():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, Standing(LogEnd(-1, 0)), 1, 60)
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


def test_a_member_that_stood_after_an_older_epoch_is_waited_for():
    """It may have followed since, and have more than it had then."""

    async def scenario(world):
        stage = Stage(world)
        await stage.first.stand(M2, Standing(LogEnd(-1, 0)), 0, 60)
        await stage.resigned()
        return await stage.seconds_until_leading()

    assert 2.0 <= run(scenario) < 2.5


def test_others_see_that_a_member_stands_for_longer_than_they_wait():
    """The one with the most must not be gone when one with less decides."""

    async def scenario(world):
        stage = Stage(world, lease=2)
        await stage.resigned()
        await stage.seconds_until_leading()
        return stage.store.standing(1)

    assert M1 in run(scenario)


def test_a_member_that_has_less_than_another_one_that_stands_does_not_lead():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, Standing(LogEnd(1, 500)), 1, 60)
        return await stage.seconds_until_leading()

    with pytest.raises(TimeoutError):
        run(scenario)


def test_a_member_that_lacks_what_the_set_acknowledged_does_not_lead_and_says_what_to_do(caplog):
    with pytest.raises(TimeoutError):
        run(lambda world: seconds_until_leading(world, acknowledged=LogEnd(1, 500), in_sync=(M1,)))

    (line,) = [line for line in caplog.messages if "does not lead" in line]
    assert "its log ends at position 0 in epoch 0" in line
    assert "acknowledged what is before 500 in epoch 1" in line
    assert f"txmq cluster promote {M1}" in line
    assert "--allow-data-loss" in line


def test_a_member_that_lacks_something_leads_if_an_operator_accepts_the_loss():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned(acknowledged=LogEnd(1, 500), in_sync=(M2,))
        loss = AllowedLoss(M1, "Li Na", "m2 has burnt", 5, (M2,))
        await stage.first.allow_loss(await stage.first.view(), loss)
        return await stage.seconds_until_leading(), stage.store.acknowledged

    seconds, acknowledged = run(scenario)
    assert seconds < 0.5
    assert acknowledged == NOTHING


def without_mark(disk):
    """A power cut took the mark; the log has a torn write, and nothing whole."""
    disk.remove("high-water")
    with closing(disk.open("log/00000000000000000000.log", create=True)) as file:
        file.write(0, b"the beginning of a span")


def with_mark_at_500(disk):
    """The log has nothing of what the mark knows as durable."""
    HighWater(disk, known_log(disk)[0]).settle(Mark(0, 0, 500, 0))


def no_mark(epoch, position):
    return Standing(LogEnd(epoch, position), NO_MARK)


async def in_doubt(world, harm, other=None, *, acknowledged=None, **changes):
    """A stage where m1 has led in epoch 2 and is in doubt, and m2 perhaps stands after epoch 3."""
    stage = Stage(world)
    await stage.resigned(in_sync=(M1,))
    await stage.seconds_until_leading()
    harm(stage.machine.disk)
    await stage.resigned(acknowledged, **changes)
    if other is not None:
        await stage.first.stand(M2, other, 3, 60)
    return stage


@pytest.mark.parametrize("other", [no_mark(-1, 0), no_mark(0, 0)])
def test_of_members_that_all_lost_their_marks_one_with_the_most_leads(other):
    """Nobody could have more, so there is nothing that a person could wait for."""

    async def scenario(world):
        stage = await in_doubt(world, without_mark, other)
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


def test_the_last_member_in_sync_leads_although_it_lost_its_mark():
    async def scenario(world):
        stage = await in_doubt(world, without_mark, in_sync=(M1,))
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


@pytest.mark.parametrize(
    ("harm", "other", "acknowledged"),
    [
        (without_mark, None, None),
        (without_mark, no_mark(2, 500), None),
        (without_mark, Standing(NOTHING, "its mark knows more", 500), None),
        (without_mark, Standing(LogEnd(2, 500)), None),
        (without_mark, no_mark(0, 0), LogEnd(1, 500)),
        (with_mark_at_500, no_mark(0, 0), None),
        (with_mark_at_500, Standing(NOTHING), None),
    ],
    ids=[
        "another is away",
        "another has more",
        "another had more",
        "one without doubt has more",
        "the store knows more",
        "its mark knows more",
        "its mark knows more than one without doubt has",
    ],
)
def test_a_member_in_doubt_does_not_lead_if_it_may_lack_something(harm, other, acknowledged):
    async def scenario(world):
        stage = await in_doubt(world, harm, other, acknowledged=acknowledged)
        return await stage.seconds_until_leading()

    with pytest.raises(TimeoutError):
        run(scenario)


def test_a_member_without_a_mark_leads_in_place_of_one_that_has_less_without_doubt():
    """That one was put back by a moment, or has nothing more than this one: its log ends before."""

    async def scenario(world):
        stage = await in_doubt(world, without_mark, Standing(LogEnd(-1, 0)))
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


@pytest.mark.parametrize(
    ("other", "leads"),
    [(no_mark(1, 500), False), (Standing(LogEnd(0, 0), "its mark knows more", 500), True)],
    ids=["one that can lead", "one that cannot lead"],
)
def test_a_member_without_doubt_leaves_it_to_one_that_has_more(other, leads):
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, other, 1, 60)
        return await stage.seconds_until_leading()

    with nullcontext() if leads else pytest.raises(TimeoutError):
        run(scenario)


def test_the_others_see_for_as_long_as_it_runs_what_a_member_in_doubt_had():
    async def scenario(world):
        stage = await in_doubt(world, with_mark_at_500)
        with suppress(TimeoutError):
            await stage.seconds_until_leading()
        return stage.store.standing(3)[M1]

    standing = run(scenario)
    assert standing.end == NOTHING
    assert standing.had == 500
    assert "high-water" in standing.doubt


def test_a_member_that_cannot_write_leads_once_it_can(caplog):
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned(in_sync=(M1,))
        stage.machine.disk.fail_writes()
        mending = asyncio.get_running_loop().call_later(6, stage.machine.disk.repair)
        try:
            return await stage.seconds_until_leading()
        finally:
            mending.cancel()

    assert 6 <= run(scenario) < 8
    assert sum("does not lead: it cannot write" in line for line in caplog.messages) == 1


def test_a_full_disk_leaves_it_to_the_others_to_lead_for_a_while():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned(in_sync=(M1,))
        await stage.seconds_until_leading()
        await stage.resigned()
        stage.machine.disk.capacity = stage.machine.disk.space().used
        return await stage.seconds_until_leading()

    assert 10 <= run(scenario) < 15


def test_another_member_that_was_chosen_comes_first_but_not_for_long():
    """It may have died since an operator chose it."""
    assert 3.0 <= run(lambda world: seconds_until_leading(world, hand_over=CHOSEN)) < 3.5


def test_a_member_that_was_removed_does_not_lead(caplog):
    removal = SetAct("remove", "m1", "Li Na", "a slow disk", 5)
    with pytest.raises(TimeoutError):
        run(lambda world: seconds_until_leading(world, removed=(removal,)))
    line = f"it does not lead: {removal_text(M1, removal)}"
    assert caplog.messages.count(line) == 1
