"""A power cut at every step of a busy run: acknowledged messages are there, at their offsets.

The flusher runs in virtual time, syncs are slow and overlap with writes, files end, checkpoints are
saved, a topic is deleted, old files go. Before each operation on the disk a copy of it is taken;
afterwards every copy loses its power and is opened again.
"""

import asyncio

import pytest

from tests.soak import count
from tests.unit.store.press import LOSSES, Press, noting, power_lost
from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import TxmqError
from txmq.testing import Loss, MemoryDisk, SeededEntropy, simulate
from txmq_broker.services.keeper import Keeper

pytestmark = pytest.mark.slow

SMALL = Sizes(segment_size=4096, checkpoint_every=3000)
MESSAGES = 90
LIVES = count(1, 200)


class Life:
    """What was done to a disk, and a copy of it from before each operation."""

    def __init__(self, seed, sizes):
        self.sizes = sizes
        self.sent = {}
        self.acknowledged = []
        self.excused = set()
        self.points = []
        simulate(lambda world: self._live(world.entropy), seed)

    def _look(self, event):
        known = len(self._press.acknowledged), frozenset(self.excused)
        self.points.append((event, self._disk.clone(), *known))

    async def _live(self, chance):
        self._disk = disk = MemoryDisk(chance.fork("disk"))
        disk.slow_sync(0.0, 0.03)
        async with Press(disk, self.sizes) as press:
            self._press = press
            self.acknowledged = press.acknowledged
            Keeper(disk).save_floors({}, 0)
            disk.on_write = self._look
            for number in range(MESSAGES):
                self._send(number, chance)
                if chance.chance(0.4):
                    await asyncio.sleep(chance.fraction() / 40)
                if number == MESSAGES // 2:
                    self._delete_topic()
                if number == MESSAGES * 2 // 3:
                    await self._delete_files()
            await press.flusher.drain()
            disk.on_write = None
        self._look(None)

    def _send(self, number, chance):
        body = b"%d " % number + b"." * chance.below(500)
        place = ("TU"[chance.below(2)], chance.below(2))
        try:
            placed = self._press.send(body, *place, keys=f"k{number}")
        except TxmqError:
            return
        key = (*place, placed.offset)
        assert key not in self.sent, "an offset was given twice"
        self.sent[key] = placed

    def _delete_topic(self):
        self.excused |= {place for place in self.sent if place[0] == "U"}
        self._floors = {"U": self._press.store.queues.forget_topic("U")}
        Keeper(self._disk).save_floors(self._floors, self._press.store.log.durable)

    async def _delete_files(self):
        await asyncio.sleep(0.2)
        store = self._press.store
        assert len(store.checkpoints.completed_files()) >= 2
        until = store.checkpoints.completed_files()[1].end
        self.excused |= {place for place, placed in self.sent.items() if placed.position < until}
        Keeper(self._disk).save_floors(store.floors_after(2), store.log.durable)
        store.drop_first_file()
        store.drop_first_file()

    def reopened(self, disk):
        return Shelf(disk, self.sizes, Keeper(disk).floors().floors)

    def check(self, shelf, acknowledged, excused):
        """Check that all acknowledged messages are there, and no others, in order."""
        seen = shelf.everything()
        for (topic, number), (low, high, bodies) in seen.items():
            assert sorted(bodies) == list(range(low, high))
            for offset, body in bodies.items():
                assert self.sent[topic, number, offset].body == body
        for placed in self.acknowledged[:acknowledged]:
            place = (placed.topic, placed.number, placed.offset)
            if place not in excused:
                _, _, bodies = seen[place[:2]]
                assert bodies.get(placed.offset) == placed.body, place
                key = f"k{int(placed.body.split()[0])}"
                assert shelf.found_by_key(key, placed.topic) == [placed.body]
        return seen

    def check_offsets_go_on(self, shelf, acknowledged):
        """Check that new messages get offsets after all acknowledged ones."""
        ends = {}
        for placed in self.acknowledged[:acknowledged]:
            queue = (placed.topic, placed.number)
            ends[queue] = max(ends.get(queue, 0), placed.offset + 1)
        for (topic, number), end in ends.items():
            (placed,) = shelf.add(b"new", topic=topic, number=number)
            assert placed.offset >= end


@pytest.mark.fault("S4", "S5")
@pytest.mark.parametrize("seed", range(LIVES))
def test_acknowledged_messages_survive_a_power_cut_at_any_step(seed):
    life = Life(seed, SMALL)
    assert len(life.acknowledged) > MESSAGES // 2
    assert len(life.points) > 100

    for twin, where, acknowledged, excused in power_lost(life.points, seed):
        shelf = life.reopened(twin)
        with noting(where):
            seen = life.check(shelf, acknowledged, excused)

            # Messages that were read once are durable: another power cut loses none.
            shelf.close()
            twin.crash(loss=Loss.EVERYTHING)
            shelf.open()
            assert shelf.everything() == seen

            life.check_offsets_go_on(shelf, acknowledged)
            after = shelf.everything()
            shelf.restart()
            assert shelf.everything() == after
            shelf.close()


@pytest.mark.parametrize("seed", range(LIVES))
def test_with_async_flush_a_power_cut_at_any_step_leaves_a_clean_prefix(seed):
    life = Life(seed, SMALL._replace(flush="async", flush_interval=0.05))

    for number, (event, disk, _, excused) in enumerate(life.points):
        disk.crash(SeededEntropy(number), LOSSES[number % 4])
        with noting(f"seed {seed}, before {event}"):
            shelf = life.reopened(disk)
            seen = life.check(shelf, 0, excused)
            shelf.restart()
            assert shelf.everything() == seen


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_killed_broker_keeps_everything_it_wrote(seed):
    life = Life(seed, SMALL)

    for event, disk, acknowledged, excused in life.points[::3]:
        shelf = life.reopened(disk)
        with noting(f"seed {seed}, before {event}"):
            seen = life.check(shelf, acknowledged, excused)
            shelf.restart()
            assert shelf.everything() == seen
            assert shelf.recovery.cut_bytes == 0
