"""A greenlet that runs the functions of one session: results, errors, cancellation, and its end."""

import asyncio
import gc
from contextvars import ContextVar

import greenlet
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only

from txmq.databases.alchemy import StandingGreenlet


def standing():
    return StandingGreenlet(AsyncSession())


def wait_turns(count, result):
    async def wait():
        for _ in range(count):
            await asyncio.sleep(0)
        return result

    return await_only(wait())


def test_functions_run_in_one_greenlet_until_the_last_one():
    async def play():
        one = standing()
        first = await one.run(lambda: (wait_turns(3, "a"), greenlet.getcurrent()))
        second = await one.run(lambda: ("b", greenlet.getcurrent()))
        last = await one.run(lambda: (wait_turns(1, "c"), greenlet.getcurrent()), is_last=True)
        again = await one.run(lambda: ("d", greenlet.getcurrent()))
        return first, second, last, again

    first, second, last, again = asyncio.run(play())

    assert [found for found, _ in (first, second, last, again)] == ["a", "b", "c", "d"]
    assert first[1] is second[1] is last[1]
    assert last[1].dead
    assert again[1] is not last[1]


def test_an_error_reaches_the_caller_and_later_functions_still_run():
    def fail():
        wait_turns(1, None)
        raise LookupError("no such account")

    async def play():
        one = standing()
        with pytest.raises(LookupError, match="no such account"):
            await one.run(fail)
        return await one.run(lambda: wait_turns(1, "next"))

    assert asyncio.run(play()) == "next"


def test_a_cancellation_reaches_the_function():
    seen = []

    def wait_for_ever():
        try:
            await_only(asyncio.Event().wait())
        except asyncio.CancelledError:
            seen.append(wait_turns(2, "undone"))
            raise

    async def play():
        one = standing()
        task = asyncio.create_task(one.run(wait_for_ever))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await one.run(lambda: "usable")

    assert asyncio.run(play()) == "usable"
    assert seen == ["undone"]


def test_functions_and_their_caller_share_context_variables():
    user = ContextVar("user", default="nobody")

    async def look():
        await asyncio.sleep(0)
        return user.get()

    def hand_over():
        before, _ = await_only(look()), user.set("Wang")
        return before, await_only(look())

    async def play():
        one = standing()
        user.set("Li")
        first = await one.run(lambda: await_only(look()))
        user.set("Zhao")
        second = await one.run(hand_over)
        return first, second, user.get()

    assert asyncio.run(play()) == ("Li", ("Zhao", "Wang"), "Wang")


def test_an_abandoned_greenlet_ends():
    found = []

    async def play():
        one = standing()
        await one.run(lambda: found.append(greenlet.getcurrent()))
        del one
        gc.collect()

    asyncio.run(play())

    assert found[0].dead
