"""Threads that run plain listeners: started on demand, or lent by the caller."""

import asyncio
import threading

import pytest

from tests.running import run_by
from tests.waiting import run, until
from txmq.runtime.tasks import Threads
from txmq.transaction.listener import CallerThread


@run_by(run)
async def test_threads_are_started_on_demand_and_end_on_close():
    threads, gate = Threads("needed", 2), threading.Event()
    assert await threads.run(lambda: 1) == 1
    assert await threads.run(lambda: 2) == 2
    assert names("needed") == ["needed-1"]
    both = [threads.run(gate.wait) for _ in range(3)]
    await until(lambda: len(names("needed")) == 2)
    gate.set()
    assert await asyncio.gather(*both) == [True] * 3
    threads.close()
    await until(lambda: names("needed") == [])


def names(start):
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(start))


def test_a_keyboard_interrupt_reaches_the_waiting_thread_and_not_the_loop():
    here, told = CallerThread(), []

    def interrupt():
        raise KeyboardInterrupt

    async def ask():
        try:
            await here.run(interrupt)
        except RuntimeError as problem:
            told.append(str(problem))
        here.leave()

    loop = threading.Thread(target=lambda: asyncio.run(ask()))
    loop.start()
    with pytest.raises(KeyboardInterrupt):
        here.serve()
    loop.join(5)
    assert told == ["a function raised KeyboardInterrupt"]


@run_by(run)
async def test_queued_functions_run_before_the_caller_thread_leaves():
    here, ran = CallerThread(), []

    serving = threading.Thread(target=here.serve)
    asked = [here.run(lambda n=n: ran.append((n, threading.current_thread()))) for n in (1, 2)]
    here.leave()
    serving.start()
    await asyncio.gather(*asked)
    serving.join(5)
    assert ran == [(1, serving), (2, serving)]


@run_by(run)
async def test_functions_queued_for_an_abandoned_caller_thread_fail():
    here = CallerThread()
    asked = [here.run(lambda: 1)]
    here.abandon()
    asked.append(here.run(lambda: 2))
    for call in asked:
        with pytest.raises(RuntimeError, match="interrupted"):
            await call
