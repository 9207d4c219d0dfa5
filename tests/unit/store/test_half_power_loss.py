"""A power cut at every step of a run of transactions: what was acknowledged holds.

A producer prepares, commits and rolls back, repeats and contradicts some of its decisions; some
half messages share one; some messages ask for a delay; other transactions are parked; files end
and old ones are deleted. See test_power_loss.py for plain messages.
"""

import asyncio

import pytest

from tests.soak import count
from tests.unit.store.press import Press, noting, power_lost
from tests.unit.store.shelf import Shelf, Sizes
from txmq.errors import TxmqError
from txmq.protocol.span import DecisionKind
from txmq.protocol.topics import HALF_TOPIC, PARKED_TOPIC, SCHEDULE_TOPIC
from txmq.testing import Loss, MemoryDisk, simulate
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.pending_transactions import transaction_key

pytestmark = pytest.mark.slow

SMALL = Sizes(segment_size=6000, checkpoint_every=3000)
TRANSACTIONS = 30
LIVES = count(1, 100)
LEVEL = 18
"""The level with the longest delay."""
FIRST_DELAYED = 14
"""No earlier message asks for a delay, because what waits keeps the files of the log."""


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """So that files this small have room for markers, too."""
    for module in ("txmq_broker.store.half_store", "txmq_broker.services.flusher"):
        monkeypatch.setattr(f"{module}.SPAN_BYTES_MAX", 1000)


class Life:
    """What was asked and answered, and a copy of the disk from before each operation."""

    def __init__(self, seed):
        self.prepared = {}
        self.wanted = {}
        self.together = []
        self.delayed = set()
        self.points = []
        simulate(lambda world: self._live(world.entropy), seed)

    def _look(self, event):
        self.points.append((event, self._disk.clone(), len(self._press.acknowledged)))

    async def _live(self, chance):
        self._disk = disk = MemoryDisk(chance.fork("disk"))
        disk.slow_sync(0.0, 0.03)
        async with Press(disk, SMALL) as press:
            self._press, self.acknowledged = press, press.acknowledged
            self._halves = press.store.halves
            Keeper(disk).save_floors({}, 0)
            disk.on_write = self._look
            for number in range(TRANSACTIONS):
                self._prepare(f"{number}", chance)
                self._plain(number, chance)
                for key in list(self._halves.pending):
                    if chance.chance(0.2):
                        self._decide(key, chance)
                if chance.chance(0.3):
                    self._decide_together(chance)
                if chance.chance(0.5):
                    await asyncio.sleep(chance.fraction() / 40)
                if number == TRANSACTIONS * 2 // 3:
                    await self._delete_files(chance)
            await press.flusher.drain()
            disk.on_write = None
        self._look(None)

    def _plain(self, number, chance):
        try:
            self._press.send_oneway(b"plain %d " % number + b"." * chance.below(400), "Fill")
        except TxmqError:
            return

    def _prepare(self, unique, chance):
        try:
            self._press.flusher.turn_ms()
        except TxmqError:
            return
        body = f"{unique} ".encode() + b"." * chance.below(200)
        level = LEVEL if int(unique) >= FIRST_DELAYED else 0
        half = self._press.shelf.prepare(body, unique=unique, keys=f"k{unique}", level=level)
        if level:
            self.delayed.add(unique)
        self.prepared[transaction_key(unique)] = unique, body
        self._press.ask(("prepared", unique, half.offset))

    def _decide(self, key, chance, *, can_park=True):
        unique, _ = self.prepared[key]
        if key in self._halves.closing:
            return
        half = self._halves.pending.find(key)
        can_park = can_park and not half.is_parked and key not in self._halves.parking
        kind = [DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK, DecisionKind.PARKED][
            chance.below(2 + can_park)
        ]
        self._press.flusher.decision_ms()
        self._press.shelf.decide(unique, kind)
        if kind is not DecisionKind.PARKED:
            assert unique not in self.wanted, "a decision was taken twice"
            self.wanted[unique] = kind
        self._press.ask(("ended", unique, kind))

    def _decide_together(self, chance):
        keys = [key for key in self._halves.pending if key not in self._halves.closing]
        uniques = [self.prepared[key][0] for key in keys[-3:]]
        if len(uniques) < 2:
            return
        kind = [DecisionKind.COMMITTED, DecisionKind.ROLLED_BACK][chance.below(2)]
        self._press.flusher.decision_ms()
        self._press.shelf.decide_together(uniques, kind)
        self.together.append(uniques)
        for unique in uniques:
            self.wanted[unique] = kind
            self._press.ask(("ended", unique, kind))

    async def _delete_files(self, chance):
        await asyncio.sleep(0.2)
        for key in list(self._halves.pending)[:-3]:
            self._decide(key, chance, can_park=False)
        await asyncio.sleep(0.2)
        store = self._press.store
        pinned = store.pinned()
        oldest = store.log.segments.starts[-1] if pinned is None else pinned
        while (files := store.checkpoints.completed_files()) and files[0].end <= oldest:
            Keeper(self._disk).save_floors(store.floors_after(1), store.log.durable)
            store.drop_first_file()

    def check(self, shelf, acknowledged):
        """Check every acknowledgement against the contents of the disk."""
        waiting = list(shelf.bodies(SCHEDULE_TOPIC, LEVEL - 1).values())
        visible = [*shelf.bodies().values(), *waiting]
        is_open = shelf.transactions()
        queue = shelf.store.find_queue("T", 0)
        has_deleted = queue is not None and queue.min_offset > 0
        bodies = dict(self.prepared.values())
        assert len(set(visible)) == len(visible), "a message is there twice"
        by_body = {body: unique for unique, body in bodies.items()}
        for body in visible:
            assert self.wanted[by_body[body]] is DecisionKind.COMMITTED
            assert by_body[body] not in is_open
            topic = SCHEDULE_TOPIC if body in waiting else "T"
            assert shelf.found_by_key(f"k{by_body[body]}", topic) == [body]
        assert set(map(by_body.get, waiting)) == self.delayed & set(map(by_body.get, visible))
        for what, unique, detail in self.acknowledged[:acknowledged]:
            decided = self.wanted.get(unique)
            if what == "prepared" and detail >= shelf.store.halves.half_queue.min_offset:
                assert bodies[unique] in shelf.bodies(HALF_TOPIC).values()
                assert unique in is_open or decided is not None
            elif detail is DecisionKind.PARKED and decided is None:
                assert is_open[unique][0].is_parked
                assert bodies[unique] in shelf.bodies(PARKED_TOPIC).values()
            elif detail is DecisionKind.ROLLED_BACK:
                assert unique not in is_open
                assert bodies[unique] not in visible
            elif detail is DecisionKind.COMMITTED:
                assert unique not in is_open
                # Floors are raised before the files of old messages are deleted.
                assert has_deleted or bodies[unique] in visible
        halves = set(shelf.bodies(HALF_TOPIC).values())
        for uniques in self.together:
            stored = [unique for unique in uniques if bodies[unique] in halves]
            fates = {unique in is_open for unique in stored}
            assert len(fates) < 2, "a decision on several messages covers only some of them"
        return shelf.everything(), is_open


def test_a_life_has_everything_that_its_power_cuts_are_about():
    life = Life(0)

    assert len(life.acknowledged) > TRANSACTIONS
    assert len(life.points) > 60
    assert len(life.together) > 3
    assert any(life.wanted.get(unique) is DecisionKind.COMMITTED for unique in life.delayed)
    done = {(event.kind, event.path[:4]) for event, *_ in life.points if event is not None}
    assert {("create", "inde"), ("remove", "log/")} <= done


@pytest.mark.fault("S4")
@pytest.mark.parametrize("seed", range(LIVES))
def test_acknowledged_halves_and_decisions_survive_a_power_cut_at_any_step(seed):
    life = Life(seed)

    for twin, where, acknowledged in power_lost(life.points, seed):
        shelf = Shelf(twin, SMALL, Keeper(twin).floors().floors)
        with noting(where):
            seen = life.check(shelf, acknowledged)

            # Messages that were read once are durable: another power cut loses none.
            shelf.close()
            twin.crash(loss=Loss.EVERYTHING)
            shelf.open()
            assert life.check(shelf, acknowledged) == seen

            for unique in seen[1]:
                shelf.decide(unique, DecisionKind.COMMITTED)
            shelf.flush()
            assert shelf.transactions() == {}
            waiting = shelf.bodies(SCHEDULE_TOPIC, LEVEL - 1).values()
            visible = [*shelf.bodies().values(), *waiting]
            assert len(set(visible)) == len(visible)
            after = shelf.everything()
            shelf.restart_cleanly()
            assert (shelf.everything(), shelf.transactions()) == (after, {})
            shelf.close()
