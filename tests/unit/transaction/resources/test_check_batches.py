"""Checks that wait at the same time share a database transaction; a single one has its own."""

import asyncio

import pytest

from txmq.limits import FENCE_CHECKS_TOGETHER, RESOURCE_THREADS
from txmq.transaction.resources.fence import ROLLED_BACK
from txmq.transaction.resources.local import Claim, FenceRow
from txmq.transaction.resources.sql import CheckBatches


def claim(number):
    return Claim(f"x-{number}", "icbc", ROLLED_BACK, 0, "fence")


class Fence:
    """Settles checks once the gate opens, and remembers their batches."""

    def __init__(self):
        self.batches = []
        self.gate = asyncio.Event()
        self.problems = {}

    async def settle(self, theirs):
        self.batches.append([check.xid for check in theirs])
        await self.gate.wait()
        return [self.problems.get(check.xid, FenceRow(ROLLED_BACK, check.xid)) for check in theirs]

    @property
    def sizes(self):
        return [len(batch) for batch in self.batches]


def in_a_loop(scenario):
    def test():
        async def main():
            fence = Fence()
            await asyncio.wait_for(scenario(fence, CheckBatches(fence.settle)), 10)

        asyncio.run(main())

    return test


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


@in_a_loop
async def test_a_single_check_is_settled_at_once(fence, batches):
    fence.gate.set()

    assert await batches.settle(claim(1)) == FenceRow(ROLLED_BACK, "x-1")
    assert await batches.settle(claim(2)) == FenceRow(ROLLED_BACK, "x-2")

    assert fence.batches == [["x-1"], ["x-2"]]


@in_a_loop
async def test_each_check_gets_its_own_result(fence, batches):
    fence.gate.set()
    fence.problems["x-3"] = OSError("only this one")

    found = await asyncio.gather(
        *(batches.settle(claim(number)) for number in range(10)), return_exceptions=True
    )

    expected = [FenceRow(ROLLED_BACK, f"x-{number}") for number in range(10)]
    expected[3] = fence.problems["x-3"]
    assert found == expected
    assert fence.sizes == [10]


@in_a_loop
async def test_checks_that_arrive_while_all_sessions_are_busy_share_the_next_one(fence, batches):
    asked = []
    for number in range(RESOURCE_THREADS):
        asked.append(asyncio.ensure_future(batches.settle(claim(number))))
        await turns()
    asked += [asyncio.ensure_future(batches.settle(claim(later))) for later in range(100, 140)]
    await turns()
    assert fence.sizes == [1] * RESOURCE_THREADS
    fence.gate.set()
    await asyncio.gather(*asked)

    assert fence.sizes == [1] * RESOURCE_THREADS + [40]


@in_a_loop
async def test_a_batch_of_checks_is_limited_in_size(fence, batches):
    count = FENCE_CHECKS_TOGETHER * 2 + 1
    asked = [asyncio.ensure_future(batches.settle(claim(number))) for number in range(count)]
    await turns()
    fence.gate.set()
    await asyncio.gather(*asked)

    assert fence.sizes == [FENCE_CHECKS_TOGETHER, FENCE_CHECKS_TOGETHER, 1]


@in_a_loop
async def test_a_cancelled_check_does_not_affect_the_others(fence, batches):
    asked = [asyncio.ensure_future(batches.settle(claim(number))) for number in range(3)]
    await turns()
    asked[1].cancel()
    await turns()
    fence.gate.set()
    found = await asyncio.gather(*asked, return_exceptions=True)

    assert (found[0], found[2]) == (FenceRow(ROLLED_BACK, "x-0"), FenceRow(ROLLED_BACK, "x-2"))
    assert isinstance(found[1], asyncio.CancelledError)
    # It was settled anyway: the next check gets the result.
    assert fence.batches == [["x-0", "x-1", "x-2"]]


def test_checks_work_in_a_new_event_loop_after_one_that_ended_early():
    fences = []

    async def settle(theirs):
        return await fences[-1].settle(theirs)

    batches = CheckBatches(settle)

    async def left_behind():
        fences.append(Fence())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batches.settle(claim(1)), 0.01)

    async def told():
        fences.append(Fence())
        fences[-1].gate.set()
        return await batches.settle(claim(2))

    asyncio.run(left_behind())
    assert asyncio.run(told()) == FenceRow(ROLLED_BACK, "x-2")


@in_a_loop
async def test_an_unexpected_error_reaches_only_the_checks_of_its_batch(fence, batches):
    """A function that connects may raise anything; a cancellation would end the caller."""
    count = FENCE_CHECKS_TOGETHER * RESOURCE_THREADS + 3
    fence.gate.set()
    plain = fence.settle

    async def settle(theirs):
        found = await plain(theirs)
        if theirs[0].xid == "x-0":
            raise KeyError("no such password")
        return found

    batches = CheckBatches(settle)
    found = await asyncio.gather(
        *(batches.settle(claim(number)) for number in range(count)), return_exceptions=True
    )

    assert {type(answer) for answer in found[:FENCE_CHECKS_TOGETHER]} == {KeyError}
    assert {type(answer) for answer in found[FENCE_CHECKS_TOGETHER:]} == {FenceRow}


@in_a_loop
async def test_unexpected_errors_reach_all_checks_that_wait(fence, batches):
    """This includes those whose turn has not come."""

    async def settle(theirs):
        await turns()
        raise KeyError("no such password")

    batches = CheckBatches(settle)
    count = FENCE_CHECKS_TOGETHER * RESOURCE_THREADS + 3
    found = await asyncio.gather(
        *(batches.settle(claim(number)) for number in range(count)), return_exceptions=True
    )

    assert {type(answer) for answer in found} == {KeyError}
