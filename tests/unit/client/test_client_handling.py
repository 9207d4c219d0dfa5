"""Handlers of every shape, and what they are taken to have said."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from txmq.client.consumer.handling import Handling, Later

MESSAGE = SimpleNamespace(id="m", topic="T", offset=0)


async def later(message):
    return Later(3)


class Object:
    async def __call__(self, message):
        return Later(3)

    def plain(self, message):
        return Later(3)


def judged(handler, messages=(MESSAGE,), *, takes_batch=False):
    async def scenario():
        handling = Handling(handler, takes_batch=takes_batch)
        with ThreadPoolExecutor(1) as threads:
            handling.open(threads)
            return await handling.judge(messages)

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "handler",
    [
        later,
        partial(later),
        Object(),
        Object().plain,
        lambda message: Later(3),
        lambda message: later(message),
    ],
)
def test_any_callable_can_be_a_handler(handler):
    assert judged(handler) == Later(3)


def test_a_handler_of_batches_gets_all_of_them():
    got = []
    judged(got.extend, [MESSAGE, MESSAGE], takes_batch=True)

    assert got == [MESSAGE, MESSAGE]


@pytest.mark.parametrize("said", [None, True, False, 0, "done"])
def test_only_later_means_later(said):
    assert judged(lambda message: said) is None


def test_a_failure_means_later():
    def fail(message):
        raise ValueError

    assert judged(fail) == Later()


def test_only_the_own_end_is_an_end():
    """A handler may await something that others cancel."""

    async def wait_for_the_cancelled(message):
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    assert judged(wait_for_the_cancelled) == Later()


def test_a_handler_that_is_cancelled_says_nothing():
    async def scenario():
        async def sleep(message):
            await asyncio.sleep(3600)

        task = asyncio.create_task(Handling(sleep, takes_batch=False).judge([MESSAGE]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
