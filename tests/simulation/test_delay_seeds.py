"""A broker's lives by chance: messages come later and are recalled, the broker dies in every way,
its clock jumps, its disk fills, its indexes are lost, files go; and each comes once, in time.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tests.faults.crash_driver import connected
from tests.simulation.mix import SmallStore, kib
from txmq.errors import TransportError
from txmq.protocol import properties
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import RecallMessage, SendAnswer, SendMessage, TopicSettings
from txmq.testing import Loss, MachineCrashedError, World
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, DelaySettings, RetentionSettings

SEEDS = 5
STEPS = 120
LEVELS = ["1s 2s 5s 10s", "10s 1s", "2s 2s 2s 1m 3s"]
TOPIC = "L"
KEEPING = RetentionSettings(keep=1e9)
DELETING = RetentionSettings(keep=0.001)
_GONE = 604


@dataclass
class Later:
    name: str
    wish_ms: int
    handle: str | None = None
    is_unwanted: bool = False
    is_recalled: bool = False
    came_ms: int | None = None


class Lives:
    """One broker from life to life, and the one producer who knows what it was told."""

    def __init__(self, world, flush):
        self.world, self.chance = world, world.entropy.fork("lives")
        self.server, self.outside = world.machine("server"), world.machine("client")
        address = self.server.address
        self.settings = BrokerSettings(
            listen=f"{address}:10911",
            names_listen=f"{address}:9876",
            store=SmallStore(flush=flush, segment_size=kib(8), checkpoint_every=kib(2)),
            retention=KEEPING,
            delay=DelaySettings(levels=LEVELS[0]),
        )
        self.all: list[Later] = []
        self.came: list[str] = []
        self.offset = 0
        self.levels_ms = self.settings.delay.levels_ms()
        self.serving = None
        self.early: list[Later] = []

    async def start(self):
        if not self.server.is_up:
            self.server.restart()
        ready, self.over = asyncio.Event(), asyncio.Event()
        ports = {
            port: getattr(self.server, port) for port in ("clock", "network", "disk", "entropy")
        }

        async def serve(settings, over):
            async with Broker(settings, **ports) as broker:
                self.broker = broker
                ready.set()
                await over.wait()

        self.server.disk.slow_sync(0.0, 0.01)
        self.serving = self.server.run(serve(self.settings, self.over))
        await ready.wait()
        self.watch()

    def watch(self):
        """See that no message leaves before it is due."""
        schedule, clock = self.broker.schedule, self.server.clock
        send = schedule.send

        def watched(due, stored_ms):
            name = self.broker.store.delays.read(due).body.rstrip(b".").decode()
            later = self.all[int(name[1:])]
            if clock.wall_ms() < max(due.due_ms, later.wish_ms):
                self.early.append(later)
            return send(due, stored_ms)

        schedule.send = watched

    async def gone(self):
        with suppress(MachineCrashedError):
            await self.serving

    async def end(self):
        """Stop, kill or crash the broker at random."""
        how = self.chance.below(4 if self.settings.store.flush == "sync" else 2)
        if how == 0:
            self.over.set()
            await self.serving
        elif how == 1:
            self.server.kill()
        else:
            loss = (Loss.EVERYTHING, Loss.PAGES, Loss.TAIL, Loss.ANY)[self.chance.below(4)]
            self.server.crash(loss)
        await self.gone()
        if not self.server.is_up:
            self.server.restart()
        if self.chance.chance(0.2):
            for name in self.server.disk.names("index"):
                self.server.disk.remove(f"index/{name}")
        if self.chance.chance(0.3):
            levels = LEVELS[self.chance.below(len(LEVELS))]
            self.settings = replace(self.settings, delay=DelaySettings(levels=levels))
            self.levels_ms = self.settings.delay.levels_ms()

    # What the producer does

    async def send(self, peer):
        size, now_ms = self.chance.below(600), self.server.clock.wall_ms()
        later = Later(f"L{len(self.all)}", 0)
        if self.chance.chance(0.4):
            level = 1 + self.chance.below(len(self.levels_ms))
            later.wish_ms, wish = now_ms + self.levels_ms[level - 1], {"DELAY": str(level)}
        else:
            wait_ms = (5, 700, 3000, 70_000)[self.chance.below(4)]
            later.wish_ms = now_ms + wait_ms
            wish = {"TIMER_DELIVER_MS": str(later.wish_ms)}
        self.all.append(later)
        text = properties.render({"UNIQ_KEY": later.name, **wish})
        header = SendMessage("P", TOPIC, "TBW102", 1, 0, 0, 0, 0, text, 0)
        body = later.name.encode() + b"." * size
        answer = await peer.ask(RequestCode.SEND_MESSAGE, header, body)
        if answer.code == 0:
            later.handle = answer.read(SendAnswer).recall_handle

    async def recall(self, peer):
        able = [message for message in self.all[-20:] if message.handle]
        if not able:
            return
        later = able[self.chance.below(len(able))]
        later.is_unwanted = True
        answer = await peer.ask(RequestCode.RECALL_MESSAGE, RecallMessage(TOPIC, later.handle))
        if answer.code == 0:
            assert later.came_ms is None, f"{later} came and was recalled"
            later.is_recalled = True

    async def pull(self, peer):
        for record in await peer.pull(TOPIC, self.offset):
            assert record.queue_offset == self.offset
            self.offset += 1
            name = record.body.rstrip(b".").decode()
            later = self.all[int(name[1:])]
            assert later.came_ms is None, f"{later} came twice"
            assert not later.is_recalled, f"{later} was recalled and came"
            later.came_ms = record.stored_ms
        house = self.broker._housekeeping
        if self.offset == self.broker.store.queue(TOPIC, 0).max_offset:
            # Delete files that are no longer needed.
            house.retention = DELETING
            house.retain_now()
            house.retention = KEEPING

    async def one_life(self, steps):
        async with connected(
            self.outside.network, self.outside.clock, self.settings.listen
        ) as peer:
            settings = TopicSettings(TOPIC, "TBW102", 1, 1, 6)
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, settings)
            for _ in range(steps):
                await self.step(peer)
            await self.pull(peer)
            dying = asyncio.create_task(self.end())
            with suppress(TransportError):
                while not dying.done():
                    await self.send(peer)
            await dying

    async def step(self, peer):
        what = self.chance.below(100)
        clock, disk = self.server.clock, self.server.disk
        if what < 45:
            await self.send(peer)
        elif what < 60:
            await self.recall(peer)
        elif what < 75:
            await self.pull(peer)
        elif what < 92:
            await asyncio.sleep(self.chance.fraction() * (0.1, 3.0)[self.chance.below(2)])
        elif what < 95:
            clock.jump((2 * self.chance.fraction() - 1) * (1.0, 100.0, 1e5)[self.chance.below(3)])
        else:
            disk.capacity = disk.space().used
            await asyncio.sleep(1.0)
            disk.capacity = None

    async def finish(self):
        """Messages still due come now, and none comes twice."""
        await self.start()
        async with connected(
            self.outside.network, self.outside.clock, self.settings.listen
        ) as peer:
            for _ in range(10):
                await asyncio.sleep(10)
                await self.pull(peer)
            # After the clock was set back, messages may wait long.
            self.server.clock.jump(1e7)
            for _ in range(4):
                await asyncio.sleep(1)
                await self.pull(peer)
        assert not self.early
        delays = self.broker.store.delays
        assert delays.next_ms() is None
        for later in self.all:
            if later.handle is not None and not later.is_unwanted:
                assert later.came_ms is not None, f"{later} never came"
            assert not (later.is_recalled and later.came_ms), later
        self.over.set()
        await self.serving


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_delayed_message_comes_once_and_never_early_under_faults(seed, flush):
    world = World(seed, scenario="delays")

    async def scenario():
        lives = Lives(world, flush)
        for _ in range(4):
            await lives.start()
            await lives.one_life(STEPS // 4)
        await lives.finish()
        ends = Counter((message.came_ms is not None, message.is_recalled) for message in lives.all)
        assert ends[True, False] > 10

    world.run(scenario(), timeout=7200.0)
