"""A power cut at every step of a run of delayed messages: what was acknowledged holds.

Messages are delayed, recalled and delivered; some are delivered while others join; files end and
old ones are deleted. See test_power_loss.py for plain messages.
"""

import asyncio
from collections import Counter

import pytest

from tests.soak import count
from tests.unit.store.delay_shelf import DelayShelf
from tests.unit.store.press import Press, noting, power_lost
from tests.unit.store.shelf import Sizes
from txmq.errors import TxmqError
from txmq.testing import Loss, MemoryDisk, simulate
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.due_messages import Due

pytestmark = pytest.mark.slow

SMALL = Sizes(segment_size=6000, checkpoint_every=3000)
MESSAGES = 40
LIVES = count(1, 100)
LINES = 3


class Life:
    """What was asked and answered, and a copy of the disk from before each operation."""

    def __init__(self, seed):
        self.dues: dict[bytes, Due] = {}
        self.recalled: set[bytes] = set()
        self.points = []
        simulate(lambda world: self._live(world.entropy), seed)

    def _look(self, event):
        self.points.append((event, self._disk.clone(), len(self._press.acknowledged)))

    async def _live(self, chance):
        self._disk = disk = MemoryDisk(chance.fork("disk"))
        disk.slow_sync(0.0, 0.03)
        async with Press(disk, SMALL, DelayShelf) as press:
            self._press, self.acknowledged = press, press.acknowledged
            self._delays = press.store.delays
            Keeper(disk).save_floors({}, 0)
            disk.on_write = self._look
            for number in range(MESSAGES):
                self._join(f"{number}", chance)
                self._plain(number, chance)
                self._recall(chance)
                self._leave()
                if chance.chance(0.7):
                    await asyncio.sleep(chance.fraction() / 20)
                if number == MESSAGES * 2 // 3:
                    await self._delete_files()
            await press.flusher.drain()
            disk.on_write = None
        self._look(None)

    def _turn(self):
        try:
            return self._press.flusher.turn_ms()
        except TxmqError:
            return None

    def _plain(self, number, chance):
        if self._turn() is not None:
            self._press.send_oneway(b"plain %d " % number + b"." * chance.below(400), "Fill")

    def _join(self, name, chance):
        if self._turn() is None:
            return
        body = name.encode()
        line = self._delays.line(chance.below(LINES))
        now_ms = self._press.clock.wall_ms()
        due_ms = max(now_ms + 1 + chance.below(700), line.leaving.due_ms)
        self.dues[body] = self._press.shelf.later(body, due_ms, line)
        self._press.ask(("waits", body))

    def _recall(self, chance):
        able = [
            body
            for body, due in self.dues.items()
            if ("waits", body) in self.acknowledged
            and due.place > self._delays.line(due.line).leaving
            and not self._delays.is_recalled(due)
        ]
        if able and chance.chance(0.2) and self._turn() is not None:
            body = able[chance.below(len(able))]
            self._press.shelf.recall(self.dues[body])
            self.recalled.add(body)
            self._press.ask(("recalled", body))

    def _leave(self):
        if self._delays.is_delivering or self._turn() is None:
            return
        for body in self._press.shelf.leave_all(self._press.clock.wall_ms()):
            assert body not in self.recalled
            self._press.ask(("came", body))

    async def _delete_files(self):
        await asyncio.sleep(1.5)
        self._leave()
        await asyncio.sleep(0.5)
        store = self._press.store
        await self._press.flusher.drain()
        while files := store.checkpoints.completed_files():
            pinned = store.pinned()
            if pinned is not None and files[0].end > pinned:
                break
            Keeper(self._disk).save_floors(store.floors_after(1), store.log.durable)
            store.drop_first_file()

    def check(self, shelf, acknowledged):
        """Check every acknowledgement against the contents of the disk."""
        came = list(shelf.bodies().values())
        waits = Counter(shelf.waits())
        assert len(set(came)) == len(came), "a message came twice"
        assert set(waits.values()) <= {1}
        assert not set(came) & set(waits)
        assert set(came) | set(waits) <= set(self.dues)
        queue = shelf.store.find_queue("T", 0)
        has_deleted = queue is not None and queue.min_offset > 0
        told = {}
        for what, body in self.acknowledged[:acknowledged]:
            told[body] = what
        for body, what in told.items():
            if what == "waits":
                is_there = body in came or body in waits or body in self.recalled
                # Delivered messages that were old enough are deleted by now.
                assert is_there or has_deleted
            elif what == "recalled":
                assert body not in came
                assert body not in waits
            elif what == "came":
                assert body not in waits
                assert body in came or has_deleted
        pinned = shelf.delays.pinned()
        for body in waits:
            assert pinned is not None, body
        return came, waits


@pytest.mark.parametrize("seed", range(LIVES))
def test_acknowledged_delays_and_recalls_survive_a_power_cut_at_any_step(seed):
    life = Life(seed)
    kinds = Counter(what for what, _ in life.acknowledged)
    assert min(kinds[kind] for kind in ("waits", "recalled", "came")) >= 3
    assert len(life.points) > 60
    done = {(event.kind, event.path[:4]) for event, *_ in life.points if event is not None}
    assert {("create", "inde"), ("remove", "log/")} <= done

    for twin, where, acknowledged in power_lost(life.points, seed):
        shelf = DelayShelf(twin, SMALL, Keeper(twin).floors().floors)
        with noting(where):
            seen = life.check(shelf, acknowledged)

            # Messages that were read once are durable: another power cut loses none.
            shelf.close()
            twin.crash(loss=Loss.EVERYTHING)
            shelf.open()
            assert life.check(shelf, acknowledged) == seen

            came, waits = seen
            assert Counter(shelf.deliver(1 << 50)) == waits
            assert len(shelf.bodies()) == len(came) + len(waits)
            shelf.restart_cleanly()
            assert shelf.waits() == []
            shelf.close()
