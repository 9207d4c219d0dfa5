"""Real processes over two real databases, kill -9 between any two steps: both banks have booked or
none has, the message says the same, nothing stays prepared, and no money is lost.

The points are the lines of the story, as one run that nobody disturbs tells them, and the words
exchanged with each database, before they arrive and before their answer does. TXMQ_SOAK kills
at each point 20 times, or as often as it says.
"""

import asyncio
import contextlib
import secrets
import signal
from collections import Counter

import pytest

from tests.integration.transaction.crash_bank import QUEUES, Scene
from tests.integration.transaction.crash_stage import Tellers, soak, soaked
from tests.integration.xa.xa_stage import OPENING
from tests.integration.xa.xa_teller import XAPlan
from tests.integration.xa.xa_wire import REPLY, REQUEST, Line, spelled
from tests.running import in_loop, run_by
from tests.servers.serving import BrokerProcess
from txmq import Client, TransactionManager

PREPARE = (b"PREPARE TRANSACTION", b"PREPARE TRANSACTION\0")
CLAIM = (b"COMMIT\0", b"COMMIT\0")
COMMIT_PREPARED = (b"COMMIT PREPARED", b"COMMIT PREPARED\0")
EXCHANGES = [
    (bank, words, side)
    for bank, words in [
        ("icbc", PREPARE), ("ccb", PREPARE), ("icbc", CLAIM),
        ("icbc", COMMIT_PREPARED), ("ccb", COMMIT_PREPARED),
    ]
    for side in (REQUEST, REPLY)
]  # fmt: skip
COMMITTED, ROLLED_BACK = 1, 2
SETTLE_SECONDS = 30


@pytest.fixture(scope="module")
def asking_broker(tmp_path_factory):
    """One that asks soon."""
    soon = ("transaction.timeout=0.3s", "transaction.check_interval=0.2s")
    broker = BrokerProcess(tmp_path_factory.mktemp("xa-broker"), settings=soon)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def xa_tellers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xa-tellers")
    with contextlib.closing(Tellers(folder, "tests.integration.xa.xa_teller")) as found:
        yield found


class Played:
    """Tellers of one group, two banks, and lines to these that can be cut."""

    def __init__(self, tellers, scene, banks, lines, kind):
        self.tellers = tellers
        self.scene = scene
        self.banks = banks
        self.lines = lines
        self.kind = kind
        self.died = {}
        self.count = 0

    async def act(self, point, **more):
        """One transfer; returns its transaction, and how the process ended."""
        self.count += 1
        target = f"t-{self.count}"
        urls = {
            name: spelled(bank.url.set(port=self.lines[name].port))
            for name, bank in self.banks.banks.items()
        }
        plan = XAPlan(
            kind=self.kind, urls=urls, names=self.scene.broker.names, group=self.scene.group,
            topic=self.scene.topic, target=target, **more,
        )  # fmt: skip
        is_known = asyncio.Event()

        async def kill():
            await is_known.wait()
            await self.tellers.kill()

        if isinstance(point, str):
            plan.point = point
        else:
            bank, exchange, side = point
            self.lines[bank].wait_for(exchange, side, f"'{target}'".encode(), kill)
        await self.tellers.start(plan)
        is_known.set()
        code = await self.tellers.ended()
        return self.tellers.xids.get(target), code

    async def die(self, point):
        xid, code = await self.act(point)
        while code == 0 and is_second_phase(point):
            # A recovery committed this branch first, so the point was not reached.
            assert self.tellers.said[f"t-{self.count}"]["state"] == "COMMITTED"
            xid, code = await self.act(point)
        assert code == -signal.SIGKILL, f"{point}: {self.tellers.said}\n{self.tellers.tail()}"
        self.died[xid] = point

    async def settle(self, resource):
        """Recover until nothing is prepared and no transaction runs."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                found = await resource.recover(0.0)
                if found.is_complete and not found.left and not self.banks.prepared:
                    return
                await asyncio.sleep(0.05)

    def agree(self):
        """Both banks, the fence and the topic are one fact, and nothing is left behind."""
        seen = [key for key, _ in self.scene.visible()]
        entries = {
            name: {key for (key,) in bank.order("SELECT id FROM entry")}
            for name, bank in self.banks.banks.items()
        }
        assert max(Counter(seen).values(), default=1) == 1, "a message is there twice"
        assert entries["icbc"] == entries["ccb"] == set(seen)
        moved = len(seen)
        assert self.banks.balances == {"icbc": OPENING - moved, "ccb": OPENING + moved}
        self.banks.see_nothing_left()
        assert self.scene.open() == []
        visible = {xid for _, xid in self.scene.visible()}
        fence = self.banks.fence
        committed = {xid for xid, outcome in fence.items() if outcome == COMMITTED}
        assert committed == visible
        return visible


@contextlib.asynccontextmanager
async def played(broker, banks, tellers, kind):
    for bank in banks.banks.values():
        bank.order("CREATE TABLE entry (id TEXT PRIMARY KEY, amount INT)")
    name = secrets.token_hex(4)
    scene = Scene(broker, banks, name)
    async with contextlib.AsyncExitStack() as stack:
        async with Client(broker.names) as client:
            await client.admin.create_topic(scene.topic, QUEUES)
        lines = {
            bank_name: await stack.enter_async_context(Line(bank.url))
            for bank_name, bank in banks.banks.items()
        }
        yield Played(tellers, scene, banks, lines, kind)


@contextlib.asynccontextmanager
async def member(scene, banks, **options):
    """Another member of the group."""
    async with (
        banks.service(**options) as resource,
        TransactionManager(scene.group, scene.broker.names, resource),
    ):
        yield resource


async def labels(play):
    """The lines of the story of one undisturbed transfer."""
    told = []
    note = play.tellers._note
    play.tellers._note = lambda said: told.append(said["label"]) if "label" in said else note(said)
    try:
        _, code = await play.act("none, but tell")
    finally:
        del play.tellers._note
    assert code == 0, play.tellers.tail()
    assert play.tellers.said["t-1"]["state"] == "COMMITTED"
    assert [label for label in told if label.startswith("step")] == [
        f"step {number}" for number in range(1, 10)
    ]
    assert len(told) == len(set(told)) == 15, told
    return told


def is_second_phase(point):
    is_line = isinstance(point, str)
    return point.endswith("is committed") if is_line else point[1] is COMMIT_PREPARED


def fate(point):
    """The fate of a transaction killed at this point; None where it depends on timing."""
    if not isinstance(point, str):
        _, exchange, side = point
        if exchange is CLAIM:
            return COMMITTED if side is REPLY else ROLLED_BACK
        return COMMITTED if exchange is COMMIT_PREPARED else ROLLED_BACK
    undecided = ("step 3", "step 4", "step 5", "branch icbc is prepared", "branch ccb is prepared")
    if point in ("step 1", "step 2"):
        return None
    is_claimed = not point.startswith(undecided) and "is claimed" not in point
    return COMMITTED if is_claimed or point == "the decision is claimed: commit" else ROLLED_BACK


@pytest.mark.fault("P19", "P20", "P21")
@pytest.mark.slow
@pytest.mark.timeout(0 if soak(0, 1) else 300)
@pytest.mark.parametrize(
    ("kind", "heir"),
    soaked(
        [("async", "another"), ("plain", "recovery")],
        [("plain", "another"), ("async", "recovery")],
    ),
)
@run_by(in_loop)
async def test_both_banks_and_the_topic_agree_wherever_a_process_is_killed(
    asking_broker, banks, xa_tellers, kind, heir
):
    async with played(asking_broker, banks, xa_tellers, kind) as play:
        points = [*(await labels(play)), *EXCHANGES]
        if heir == "another":
            await answered_by_another(play, points, soak(1, 20))
        else:
            await recovered(play, points, soak(1, 20))
        visible = play.agree()
        assert [(point, xid in visible) for xid, point in play.died.items()] == [
            (point, fate(point) == COMMITTED) for point in play.died.values()
        ]
        fence = banks.fence
        assert {xid for xid, point in play.died.items() if fate(point)} <= set(fence)
        print(
            f"{kind}, {heir}: {len(points)} points, {len(play.died)} killed, "
            f"{len(visible & set(play.died))} of them committed, {len(fence)} in the fence"
        )


@pytest.mark.fault("P19", "P20", "P21")
@pytest.mark.slow
@run_by(in_loop)
async def test_resolve_decides_transactions_over_two_banks(asking_broker, banks, xa_tellers):
    def resolve(scene):
        named = [
            part
            for name, bank in banks.banks.items()
            for part in ("--database", f"{name}={spelled(bank.url)}")
        ]
        return scene.broker.txmq("resolve", scene.group, "--until-empty", *named)

    async with played(asking_broker, banks, xa_tellers, "plain") as play:
        # Each needs the rows that the one before has locked.
        for point in ("branch icbc is prepared", "step 6", "step 8"):
            await play.die(point)
            done = await asyncio.to_thread(resolve, play.scene)
            is_committed = fate(point) == COMMITTED
            assert (done["committed"], done["rolled_back"]) == (is_committed, not is_committed)
        await play.scene.until(lambda: not banks.prepared, "nothing to be prepared")
        play.agree()


async def answered_by_another(play, points, count):
    """Checks alone decide what is undecided: the horizon is far. Every next teller needs the rows
    that the last one has locked.
    """
    async with member(play.scene, play.banks, recover_interval=0.2):
        for point in points * count:
            await play.die(point)
        await play.scene.until_settled()
        await play.scene.until(lambda: not play.banks.prepared, "nothing to be prepared")


async def recovered(play, points, count):
    """Recoveries alone decide: no other member runs. A later member answers the broker."""
    async with play.banks.service() as resource:
        for point in points * count:
            await play.die(point)
            await play.settle(resource)
            play.banks.see_nothing_left()
    async with member(play.scene, play.banks):
        await play.scene.until_settled()
