"""A producer is paused by SIGSTOP while the broker checks its transaction.

A decision made while it was paused still holds when it continues; without one, it decides then.
TXMQ_SOAK pauses 20 times at each point, or as often as it says.
"""

import asyncio
import random
import signal
from collections import Counter

import pytest

from tests.integration.transaction.crash_bank import COMMITTED, ROLLED_BACK
from tests.integration.transaction.crash_stage import another, on_scene, plan, soak, soaked, wires
from tests.integration.transaction.crash_teller import INSIDE_1, INSIDE_2
from tests.running import in_loop, run_by

KINDS = ["postgres", "postgres-async", "sqlite"]
MODEST = 1
AT_ONCE = 16
AWAKE_S, ASLEEP_S = 0.08, 0.15


async def asleep(scene, tellers, kind, ways, point, target):
    """Stop a teller in the middle of a transaction; returns that transaction."""
    wanted = plan(scene, kind, ways, target=target, bystanders=[f"b-{target}"], point=point)
    wanted.signal = "SIGSTOP"
    await tellers.start(wanted)
    await tellers.stopped()
    return tellers.xids[target]


async def awake(tellers):
    """It goes on to its end; returns what it says of its transactions."""
    tellers.send(signal.SIGCONT)
    assert await tellers.ended() == 0, tellers.tail()
    return tellers.said


async def naps(broker, bank, tellers, kind, point, meanwhile, afterwards):
    async with on_scene(broker, bank) as scene, wires(scene) as ways, another(scene):
        for number in range(soak(MODEST, 20)):
            target = f"t-{number}"
            xid = await asleep(scene, tellers, kind, ways, point, target)
            await meanwhile(scene, xid)
            said = await awake(tellers)
            await scene.until_settled()
            afterwards(scene, target, xid, said[target])
    scene.agree()


@pytest.mark.fault("P8")
@pytest.mark.slow
@pytest.mark.parametrize("kind", soaked(KINDS[:1], KINDS[1:]))
@run_by(in_loop)
async def test_a_producer_paused_before_its_fence_cannot_commit(
    broker_that_parks, bank_for, tellers, kind
):
    async def decided(scene, xid):
        await scene.until(lambda: not scene.open(), "a check to roll it back")
        assert scene.bank.fence[xid] == ROLLED_BACK

    def refused(scene, target, xid, said):
        assert said == {"id": target, "raised": "RolledBackByCheck"}
        assert scene.bank.fence[xid] == ROLLED_BACK
        assert target not in scene.bank.debits

    # The local transaction is called, and has not begun.
    await naps(broker_that_parks, bank_for(kind), tellers, kind, "5", decided, refused)


@pytest.mark.fault("P8")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    soaked(
        [("postgres-async", INSIDE_2), ("sqlite", INSIDE_2)],
        [
            ("postgres", INSIDE_1),
            ("postgres", INSIDE_2),
            ("postgres-async", INSIDE_1),
            ("sqlite", INSIDE_1),
        ],
    ),
)
@run_by(in_loop)
async def test_a_producer_paused_behind_its_fence_commits_even_a_parked_transaction(
    broker_that_parks, bank_for, tellers, kind, point
):
    async def parked(scene, xid):
        await scene.until(lambda: scene.open("parked"), "the broker to give up")
        assert xid not in scene.bank.fence

    def committed(scene, target, xid, said):
        assert said == {"id": target, "state": "COMMITTED", "acknowledged": True}
        assert scene.bank.fence[xid] == COMMITTED
        assert scene.bank.debits[target] == xid

    await naps(broker_that_parks, bank_for(kind), tellers, kind, point, parked, committed)


@pytest.mark.fault("P8")
@pytest.mark.slow
@pytest.mark.parametrize("kind", soaked(["postgres"], ["postgres-async", "sqlite"]))
@run_by(in_loop)
async def test_another_member_answers_for_a_producer_paused_after_its_commit(
    broker_that_parks, bank_for, tellers, kind
):
    async def decided(scene, xid):
        await scene.until(lambda: not scene.open(), "a check to commit it")
        assert [visible_xid for _, visible_xid in scene.visible()].count(xid) == 1

    def committed(scene, target, xid, said):
        assert said == {"id": target, "state": "COMMITTED", "acknowledged": True}

    await naps(broker_that_parks, bank_for(kind), tellers, kind, "6", decided, committed)


@pytest.mark.fault("P8")
@pytest.mark.slow
@pytest.mark.parametrize("kind", soaked(["postgres-async"], ["postgres"]))
@run_by(in_loop)
async def test_a_producer_paused_at_random_points_agrees_with_the_checks(
    broker_in_haste, bank_for, tellers, kind
):
    bank, chance, tally = bank_for(kind), random.Random(), Counter()
    days = soak(1, 20)

    async def day(scene, ways, number):
        names = [f"b-{number}-{place}" for place in range(AT_ONCE)]
        await tellers.start(plan(scene, kind, ways, target=f"t-{number}", bystanders=names))
        await tellers.opened()
        while await tellers.nap(chance.uniform(0, ASLEEP_S)):
            tally["naps"] += 1
            await asyncio.sleep(chance.uniform(0, AWAKE_S))
        said = tellers.said.values()
        assert len(said) == AT_ONCE + 1
        tally.update(answer.get("raised") or answer["state"] for answer in said)

    async with on_scene(broker_in_haste, bank) as scene:
        async with wires(scene) as ways, another(scene, check_wait=0.02) as stays:
            for number in range(days):
                await day(scene, ways, number)
            await scene.until_settled()
            assert stays.tally.conflicts == 0
        scene.agree()
        assert set(tally) <= {"naps", "COMMITTED", "RolledBackByCheck"}, tally
        assert len(bank.debits) == tally["COMMITTED"]
        if days > MODEST:  # One day may be a bad one.
            assert min(tally["COMMITTED"], tally["RolledBackByCheck"]) > days, tally
        print(f"{kind}: {dict(tally)}")
