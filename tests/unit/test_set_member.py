"""A member of a set: when it leads, and when it lets another one lead."""

import asyncio

import pytest

from tests.unit.handlers.handler_stage import STEADY
from txmq.runtime.coordinator import Leader, SetAct
from txmq.testing import World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.config import BrokerSettings, ReplicationSettings
from txmq_broker.core.set_acts import removal_text
from txmq_broker.member import SetMember

M1, M2 = "m1.00000001", "m2.00000002"
CHOSEN = SetAct("hand-over", M2, "Li Na", "an upgrade", 5)


async def seconds_until_leading(world, **changes):
    """Start m1 at a set without a leader whose state has these changes; when it leads."""
    machine = world.machine("m1")
    machine.disk.replace("member", f"{M1.partition('.')[2]}\n".encode())
    store = SimulatedCoordination(machine.entropy)
    first = store.coordinator("m2")
    leadership = await first.lead(Leader(M2, "m2:10911"), await first.view(), 60)
    seen = await first.view()
    wanted = seen._replace(in_sync=(M1, M2), **changes)
    assert await first.change(leadership, seen, wanted) is not None
    await first.resign(leadership)
    leading = asyncio.Event()
    settings = BrokerSettings(
        listen=f"{machine.address}:10911",
        names="names:9876",
        replication=ReplicationSettings(
            coordinator="etcd://store:2379", member="m1", mode="async", lease=5
        ),
    )
    member = SetMember(
        settings,
        store.coordinator("m1"),
        clock=machine.clock,
        network=machine.network,
        disk=machine.disk,
        entropy=machine.entropy,
        on_leading=lambda _: leading.set(),
    )
    began = machine.clock.monotonic()
    running = machine.run(member.run(), name="member")
    try:
        async with asyncio.timeout(20):
            await leading.wait()
        return machine.clock.monotonic() - began
    finally:
        member.stop()
        await running


def run(scenario):
    world = World(1, scenario="set member", conditions=STEADY)
    return world.run(scenario(world))


def test_a_member_in_sync_leads_at_once():
    assert run(seconds_until_leading) < 0.5


def test_another_member_that_was_chosen_comes_first_but_not_for_long():
    """It may have died since an operator chose it."""
    assert 1.0 <= run(lambda world: seconds_until_leading(world, hand_over=CHOSEN)) < 1.5


def test_a_member_that_was_removed_does_not_lead(caplog):
    removal = SetAct("remove", "m1", "Li Na", "a slow disk", 5)
    with pytest.raises(TimeoutError):
        run(lambda world: seconds_until_leading(world, removed=(removal,)))
    line = f"it does not lead: {removal_text(M1, removal)}"
    assert caplog.messages.count(line) == 1
