"""The power goes at every step of a transaction or a delay, or the broker is killed there."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.faults.crash_driver import Driver, connected
from tests.faults.crash_points import COPY, LABELS, SAVE, phase_of, watched
from tests.simulation.mix import SmallStore, kib
from tests.soak import count
from txmq.settings.units import Duration, Size
from txmq.testing import Loss, Machine, MachineCrashedError, World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings

ENDS = {
    "everything unsynced is lost": Loss.EVERYTHING,
    "some pages are lost": Loss.PAGES,
    "the tail is lost": Loss.TAIL,
    "nothing is lost": Loss.NOTHING,
}


@dataclass
class Trap:
    """Brings a broker down when it reaches a label for the n-th time."""

    label: str
    left: int
    does: Callable[[], None]
    is_armed: bool = False

    def reached(self, label: str) -> None:
        if self.is_armed and label == self.label:
            self.left -= 1
            if not self.left:
                self.does()


def settings_for(phase: str, machine: Machine, flush: str) -> BrokerSettings:
    size = Size(1024**3)
    if phase == COPY:
        size = kib(1)  # Most halves lie in another file than what is written next.
    return BrokerSettings(
        listen=f"{machine.address}:10911",
        names_listen=f"{machine.address}:9876",
        store=SmallStore(
            flush=flush, segment_size=size, checkpoint_every=kib(64 if phase == SAVE else 0.5)
        ),
        transaction=CheckBackSettings(
            timeout=Duration(0.1), check_interval=Duration(1.0), check_max=1
        ),
    )


async def serve(settings: BrokerSettings, machine: Machine, ready: asyncio.Event) -> None:
    ports = {
        "clock": machine.clock,
        "network": machine.network,
        "disk": machine.disk,
        "entropy": machine.entropy,
    }
    async with Broker(settings, **ports):
        ready.set()
        await asyncio.Event().wait()


def lives_and_dies(
    label: str, times: int, loss: Loss | None, seed: int, flush: str = "sync"
) -> None:
    """Two lives of a broker: in the first it comes to a label, in the second all is verified."""
    world = World(seed, scenario=f"{label}, time {times}, {loss}")
    server, outside = world.machine("server"), world.machine("driver")
    settings, driver = settings_for(phase_of(label), server, flush), Driver()
    trap = Trap(label, times, lambda: server.kill() if loss is None else server.crash(loss))

    async def scenario() -> None:
        server.disk.slow_sync(0.0, 0.005)
        for is_last in (False, True):
            ready = asyncio.Event()
            serving = server.run(serve(settings, server, ready))
            await ready.wait()
            async with connected(outside.network, outside.clock, settings.listen) as peer:
                await (driver.verify_all if is_last else driver.verify)(peer)
                if not is_last:
                    trap.is_armed = True
                    await driver.drive(peer, phase_of(label))
                    assert not trap.left, "the label was never reached"
                    trap.is_armed = False
            if not is_last:
                with suppress(MachineCrashedError):
                    await serving
                if not server.is_up:
                    server.restart()

    with watched(trap.reached):
        world.run(scenario())


def in_turn(cases, label):
    """All cases in a soak; otherwise one, which is another at the next label, at the same side of
    the next seam, and at this seam of the next phase.
    """
    index = LABELS.index(label)
    first = index + index // 2 + index // 4
    kept = {(first + more) % len(cases) for more in range(count(1, len(cases)))}
    return [(seed, case) for seed, case in enumerate(cases) if seed in kept]


@pytest.mark.fault("P10", "P11", "P12", "P13", "P14")
@pytest.mark.parametrize("label", LABELS)
def test_acknowledged_messages_survive_a_power_cut_at_any_crash_point(label):
    for seed, loss in in_turn(list(ENDS.values()), label):
        lives_and_dies(label, 1 + seed % 3, loss, seed)


@pytest.mark.fault("P10", "P11", "P12", "P13", "P14")
@pytest.mark.parametrize("label", LABELS)
def test_acknowledged_messages_survive_a_kill_at_any_crash_point(label):
    kinds = [(1, "sync"), (3, "sync")]
    if "the sync" not in label:
        kinds.append((1, "async"))
    for _, (times, flush) in in_turn(kinds, label):
        lives_and_dies(label, times, None, times, flush)
