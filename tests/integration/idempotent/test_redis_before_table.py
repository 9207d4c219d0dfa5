"""Redis in front of a table: accidents of Redis cause no repeated and no missing effect."""

import asyncio
import logging
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, LifoQueue

import pytest
from sqlalchemy import event

from tests.integration.idempotent.redis_stage import (
    IN_FRONT,
    KEY,
    entered,
    evict,
    flush,
    restart,
    stuck,
    until,
)
from tests.running import run_by
from txmq.errors import OutcomeUnknown
from txmq.idempotent.guard import Verdict
from txmq.runtime.clock import SystemClock

pytestmark = [
    pytest.mark.timeout(300),  # The first of these tests may have to fetch a server.
    pytest.mark.parametrize("stage", IN_FRONT, indirect=True),
]
WORKERS = 8
DELIVERIES = 5
TOGETHER = 20
KEYS = 10_000 if os.environ.get("TXMQ_SOAK") else 300


def nothing(server):
    pass


def kill(server):
    server.kill()


def pause(server):
    server.pause()


MENDED = {kill: lambda server: server.start(), pause: lambda server: server.resume()}
ACCIDENTS = [flush, restart, evict, kill, pause]


@pytest.mark.fault("D9", "D10")
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("accident", ACCIDENTS)
@run_by("in_redis")
async def test_whatever_happens_to_redis_there_is_one_effect(stage, /, accident, moment):
    def happens_at(now):
        if now == moment:
            accident(stage.server)

    clients = [stage.client(socket_timeout=0.1) for _ in range(2)]
    guard, another = (stage.guard(client, lease=0.2) for client in clients)
    is_mended = False
    try:
        happens_at("before")
        async with entered(guard.attempt(KEY)) as attempt:
            assert attempt.verdict is Verdict.FIRST
            await stage.effect(attempt, KEY)
            happens_at("during")
        happens_at("after")
        assert await stage.verdict(guard, KEY) == "DONE"
        assert await stage.verdict(another, KEY) == "DONE"
        MENDED.get(accident, nothing)(stage.server)
        is_mended = True

        async def is_done():
            return await stage.verdict(guard, KEY) == "DONE"

        await until(is_done)  # A claim that arrived late has a lease.
    finally:
        if not is_mended:
            MENDED.get(accident, nothing)(stage.server)
    assert stage.effects(KEY) == 1


@pytest.mark.fault("D11")
@run_by("in_redis")
async def test_work_that_outlasts_its_lease_is_done_once(stage, /):
    guard, another = stage.guard(lease=0.1), stage.guard(lease=0.1)

    async with entered(guard.attempt(KEY)) as slow:
        await stage.effect(slow, KEY)

        async def asks_the_table():
            before = asked(stage)
            assert await stage.verdict(another, KEY) == "IN_PROGRESS"
            return asked(stage) > before

        count_questions(stage)
        await until(asks_the_table)

    assert await stage.verdict(another, KEY) == "DONE"
    assert stage.effects(KEY) == 1


def count_questions(stage):
    """Count from now on, for every engine that guards have."""
    stage.questions = 0
    for engine in stage.sources:

        @event.listens_for(engine, "checkout")
        def taken(*_):
            stage.questions += 1


def asked(stage):
    return stage.questions


@run_by("in_redis")
async def test_a_key_that_redis_knows_as_done_needs_no_database_query(stage, /):
    guard, another = stage.guard(), stage.guard()
    await stage.deliver(guard, KEY, payload=b"two cups")
    count_questions(stage)

    said = [
        await stage.verdict(another, KEY, payload=payload)
        for payload in (b"two cups", b"three cups", None)
    ]

    assert said == ["DONE", "CONFLICT", "DONE"]
    assert asked(stage) == 0


@run_by("in_redis")
async def test_redis_learns_a_forgotten_key_again_from_the_table(stage, /):
    guard = stage.guard()
    async with entered(guard.attempt(KEY, payload=b"two cups")) as attempt:
        attempt.keep("a receipt")
    stage.server.flush()
    assert await stage.verdict(guard, KEY) == "DONE"  # By a caller without a payload to compare.
    count_questions(stage)

    again = await stage.deliver(guard, KEY, payload=b"two cups")

    assert (again.verdict, again.result) == (Verdict.DONE, "a receipt")
    assert await stage.verdict(guard, KEY, payload=b"three cups") == "CONFLICT"
    assert asked(stage) == 0


@run_by("in_redis")
async def test_a_failed_commit_is_not_recorded_as_done_in_redis(stage, /):
    stage.order("CREATE TABLE cups (number INT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    guard = stage.guard()

    try:
        for _ in range(2):
            attempt = await stage.enter(guard.attempt(KEY))
            assert attempt.verdict is Verdict.FIRST
            await stage.run(attempt, "INSERT INTO cups VALUES (1), (1)")
            with pytest.raises(Exception, match="duplicate key"):
                await stage.leave(attempt)
    finally:
        stage.order("DROP TABLE cups")

    assert await stage.verdict(guard, KEY) == "FIRST"
    assert await stage.verdict(guard, KEY) == "DONE"


@run_by("in_redis")
async def test_after_an_unknown_commit_the_table_decides_and_not_redis(stage, /):
    guard = stage.guard()

    attempt = await stage.enter(guard.attempt(KEY))
    await stage.effect(attempt, KEY)
    await stage.run(attempt, "COMMIT")
    with pytest.raises(OutcomeUnknown):
        await stage.leave(attempt)

    assert stage.server.order("DBSIZE") == 0
    assert await stage.verdict(guard, KEY) == "DONE"
    assert stage.effects(KEY) == 1


@run_by("in_redis")
async def test_a_stuck_redis_is_asked_once_a_second_and_logged_once(stage, /, caplog):
    caplog.set_level(logging.INFO, logger="txmq.idempotent.redis")
    guard = stage.guard(stage.client(socket_timeout=0.1), clock=Still())
    await stage.deliver(guard, "another")
    with stuck(stage.server):
        for number in range(30):
            assert await stage.verdict(guard, f"order-{number}") == "FIRST"

    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Hasty:
    """A fast clock, by which Redis is soon asked again."""

    def monotonic(self):
        return SystemClock().monotonic() * 50


class Still:
    """A clock that has stopped."""

    def monotonic(self):
        return 1.0


@run_by("in_redis")
async def test_a_full_redis_leaves_the_decision_to_the_table(stage, /):
    guard = stage.guard()
    with stage.server.room(1):
        said = [await stage.verdict(guard, KEY) for _ in range(2)]

    assert said == ["FIRST", "DONE"]
    assert stage.effects(KEY) == 1


@run_by("in_redis")
async def test_redis_still_reports_a_key_as_done_after_the_database_is_set_back(stage, /):
    guard = stage.guard()
    await stage.deliver(guard, KEY)

    for table in ("effects", "txmq_done"):
        stage.order(f"DELETE FROM {table}")

    assert await stage.verdict(guard, KEY) == "DONE"
    assert stage.effects(KEY) == 0
    stage.server.flush()
    assert await stage.verdict(guard, KEY) == "FIRST"


@pytest.mark.fault("D9", "D10")
def test_repeated_deliveries_during_redis_accidents_have_one_effect_each(stage):
    """Every message is delivered five times, among its neighbours, to eight consumers; some die."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    keys = [f"order-{number}" for number in range(KEYS)]
    deliveries = []
    for first in range(0, KEYS, TOGETHER):
        some = keys[first : first + TOGETHER] * DELIVERIES
        chance.shuffle(some)
        deliveries += some

    said = []
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        work = beside.submit(asyncio.run, consumed(stage, deliveries, seed, said))
        work.add_done_callback(lambda _: is_over.set())
        weather(stage.server, chance, is_over)
        work.result()

    counted = Counter(said)
    assert counted["FIRST"] == KEYS
    assert stage.questions < len(said), "Redis had nothing to say"
    assert counted["DONE"] == len(deliveries) - KEYS
    assert stage.order("SELECT count(*) FROM effects") == KEYS
    assert stage.order("SELECT count(DISTINCT effect_key) FROM effects") == KEYS


def weather(server, chance, is_over):
    """Cause accidents from this thread: servers die with the thread that starts them."""
    calm_s = 0.2
    while not is_over.wait(calm_s):
        calm_s = chance.uniform(0.05, 0.3)
        accident = chance.choice([flush, restart, kill, pause, pause])
        accident(server)
        if accident in MENDED:
            is_over.wait(chance.uniform(0.0, 0.15))
            MENDED[accident](server)


async def consumed(stage, deliveries, seed, said):
    waiting = LifoQueue()  # What is to come again comes soon, while Redis still knows of it.
    for delivery in deliveries:
        waiting.put(delivery)
    async with stage:
        guard = stage.guard(stage.client(socket_timeout=0.1), lease=0.05, clock=Hasty())
        count_questions(stage)

        async def consume(number):
            chance = random.Random(seed + number)
            while True:
                try:
                    key = waiting.get_nowait()
                except Empty:
                    return
                async with entered(guard.attempt(key)) as attempt:
                    happened = attempt.verdict.name
                    if attempt.verdict is Verdict.FIRST:
                        await stage.effect(attempt, key)
                        if chance.random() < 0.1:
                            attempt.abandon()
                            happened = "killed"
                said.append(happened)
                if happened in ("killed", "IN_PROGRESS"):
                    waiting.put(key)
                    await asyncio.sleep(0.001)

        consumers = range(WORKERS)
        if stage.is_blocking:
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(lambda number: asyncio.run(consume(number)), consumers))
        else:
            await asyncio.gather(*map(consume, consumers))
