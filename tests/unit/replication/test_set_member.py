"""When a member of a set leads, and when it lets another member lead."""

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
        """Let m2 lead and resign; then the state of the set has these changes."""
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


def test_a_started_member_waits_two_seconds_for_the_other_in_sync_members():
    """They may have more of the log if this directory was put back to an earlier state."""
    assert 2.0 <= run(seconds_until_leading) < 2.5


def test_a_member_leads_at_once_if_all_in_sync_members_stand_with_no_more_log():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, Standing(LogEnd(-1, 0)), 1, 60)
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


def test_a_member_that_stood_in_an_older_epoch_is_waited_for():
    """It may have followed since then and have more."""

    async def scenario(world):
        stage = Stage(world)
        await stage.first.stand(M2, Standing(LogEnd(-1, 0)), 0, 60)
        await stage.resigned()
        return await stage.seconds_until_leading()

    assert 2.0 <= run(scenario) < 2.5


def test_a_candidacy_stays_visible_longer_than_other_members_wait():
    """The member with the most must still be visible when one with less decides."""

    async def scenario(world):
        stage = Stage(world, lease=2)
        await stage.resigned()
        await stage.seconds_until_leading()
        return stage.store.standing(1)

    assert M1 in run(scenario)


def test_a_member_with_less_log_than_another_candidate_does_not_lead():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, Standing(LogEnd(1, 500)), 1, 60)
        return await stage.seconds_until_leading()

    with pytest.raises(TimeoutError):
        run(scenario)


def test_a_member_that_lacks_acknowledged_messages_does_not_lead(caplog):
    with pytest.raises(TimeoutError):
        run(lambda world: seconds_until_leading(world, acknowledged=LogEnd(1, 500), in_sync=(M1,)))

    (line,) = [line for line in caplog.messages if "does not lead" in line]
    assert "its log ends at position 0 in epoch 0" in line
    assert "acknowledged what is before 500 in epoch 1" in line
    assert f"txmq cluster promote {M1}" in line
    assert "--allow-data-loss" in line


def test_a_member_that_lacks_messages_leads_if_an_operator_accepts_the_loss():
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
def test_if_all_members_lost_their_marks_one_with_the_longest_log_leads(other):
    """No member can have more, so there is nothing to wait for."""

    async def scenario(world):
        stage = await in_doubt(world, without_mark, other)
        return await stage.seconds_until_leading()

    assert run(scenario) < 0.5


def test_the_last_in_sync_member_leads_even_without_its_mark():
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
def test_a_member_in_doubt_does_not_lead_if_it_may_lack_messages(harm, other, acknowledged):
    async def scenario(world):
        stage = await in_doubt(world, harm, other, acknowledged=acknowledged)
        return await stage.seconds_until_leading()

    with pytest.raises(TimeoutError):
        run(scenario)


def test_a_member_without_a_mark_leads_instead_of_an_undoubted_shorter_one():
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
def test_an_undoubted_member_yields_to_one_with_a_longer_log_that_can_lead(other, leads):
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned()
        await stage.first.stand(M2, other, 1, 60)
        return await stage.seconds_until_leading()

    with nullcontext() if leads else pytest.raises(TimeoutError):
        run(scenario)


def test_a_member_in_doubt_publishes_the_end_of_the_log_it_once_had():
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


def test_a_member_with_a_full_disk_waits_ten_seconds_before_it_leads():
    async def scenario(world):
        stage = Stage(world)
        await stage.resigned(in_sync=(M1,))
        await stage.seconds_until_leading()
        await stage.resigned()
        stage.machine.disk.capacity = stage.machine.disk.space().used
        return await stage.seconds_until_leading()

    assert 10 <= run(scenario) < 15


def test_a_member_chosen_by_an_operator_comes_first_for_three_seconds():
    """It may have died since an operator chose it."""
    assert 3.0 <= run(lambda world: seconds_until_leading(world, hand_over=CHOSEN)) < 3.5


def test_a_removed_member_does_not_lead(caplog):
    removal = SetAct("remove", "m1", "Li Na", "a slow disk", 5)
    with pytest.raises(TimeoutError):
        run(lambda world: seconds_until_leading(world, removed=(removal,)))
    line = f"it does not lead: {removal_text(M1, removal)}"
    assert caplog.messages.count(line) == 1
