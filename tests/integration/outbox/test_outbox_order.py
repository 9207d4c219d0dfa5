"""In a lane the order of the ids is the order of the commits, with any writers."""

import contextlib
import os
import random
import threading
import time

import pytest
from sqlalchemy import create_engine, select

from tests.integration.outbox.outbox_stage import DATABASES
from txmq import Message
from txmq.databases.failures import Failure, failure

SOAK = bool(os.environ.get("TXMQ_SOAK"))
WRITERS, TRANSACTIONS = (16, 500) if SOAK else (6, 40)
WITH_LOCKS = [kind for kind in DATABASES if kind != "sqlite"]
SECONDS = 30


def message(body):
    return Message(topic="transfer", body=body.encode())


class Writer(threading.Thread):
    """A thread with a transaction of its own that adds, and commits when it is told to."""

    def __init__(self, shop, *lanes):
        super().__init__(daemon=True)
        self.shop = shop
        self.lanes = lanes
        self.steps = [threading.Event() for _ in lanes]
        self.added = [threading.Event() for _ in lanes]
        self.may_commit = threading.Event()
        self.problem = None

    def run(self):
        try:
            with self.shop.engine.begin() as connection:
                for lane, step, added in zip(self.lanes, self.steps, self.added, strict=True):
                    assert step.wait(SECONDS)
                    self.shop.outbox.add(connection, message(f"{self.name}"), lane)
                    added.set()
                assert self.may_commit.wait(SECONDS)
        except Exception as problem:
            self.problem = problem

    def go(self, nth=0):
        self.steps[nth].set()
        return self.added[nth]

    def commit(self):
        self.may_commit.set()
        self.join(SECONDS)
        assert not self.is_alive()


def waits_for_a_lock(shop):
    if shop.kind.startswith("mysql"):
        [(_, count)] = shop.order("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    else:
        [(count,)] = shop.order("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return int(count) > 0


def until(condition, *given):
    end = time.monotonic() + SECONDS
    while not condition(*given):
        assert time.monotonic() < end, "in vain"
        threading.Event().wait(0.005)


def started(shop, *lanes):
    writer = Writer(shop, *lanes)
    writer.start()
    return writer


@pytest.mark.parametrize("kind", WITH_LOCKS)
def test_an_id_is_allotted_only_after_the_lane_is_locked(shop_on, kind):
    shop = shop_on(kind)
    first, second, other = started(shop, "a"), started(shop, "a"), started(shop, "b")
    assert first.go().wait(SECONDS)
    second.go()
    until(waits_for_a_lock, shop)

    # Another lane does not wait, and takes the id that the second would have had.
    assert other.go().wait(SECONDS)
    other.commit()
    assert not second.added[0].is_set()
    first.commit()
    second.commit()

    assert [row.body.decode() for row in shop.rows] == [first.name, other.name, second.name]


@pytest.mark.parametrize("kind", WITH_LOCKS)
def test_a_rollback_releases_the_lane_to_the_next_writer(shop_on, kind):
    shop = shop_on(kind)
    connection = shop.engine.connect()
    shop.outbox.add(connection, message("gone"), "a")
    second = started(shop, "a")
    second.go()
    until(waits_for_a_lock, shop)

    connection.close()
    second.commit()

    assert [row.body.decode() for row in shop.rows] == [second.name]


@pytest.mark.parametrize("kind", WITH_LOCKS)
def test_writers_without_a_lane_do_not_wait(shop_on, kind):
    shop = shop_on(kind)
    first, second = started(shop, None), started(shop, None)

    assert first.go().wait(SECONDS)
    assert second.go().wait(SECONDS)
    second.commit()
    assert [row.body.decode() for row in shop.rows] == [second.name]
    first.commit()

    # The last commit has the lower id: without a lane there is no promise.
    assert [row.body.decode() for row in shop.rows] == [first.name, second.name]


@pytest.mark.parametrize("kind", WITH_LOCKS)
def test_a_deadlock_over_two_lanes_fails_one_writer_with_a_retryable_error(shop_on, kind):
    shop = shop_on(kind)
    first, second = started(shop, "a", "b"), started(shop, "b", "a")
    assert first.go().wait(SECONDS)
    assert second.go().wait(SECONDS)

    first.go(1)
    second.go(1)
    first.commit()
    second.commit()

    problems = [writer.problem for writer in (first, second) if writer.problem is not None]
    assert [failure(problem) for problem in problems] == [Failure.RETRY]
    assert len(shop.rows) == 2


class Watcher(threading.Thread):
    """Reads repeatedly, and notes ids that appear below those already seen in a lane."""

    def __init__(self, shop):
        super().__init__(daemon=True)
        self.shop = shop
        self.is_over = threading.Event()
        self.seen = {}
        self.late = []
        self.looks = 0

    def run(self):
        while not self.is_over.is_set():
            self.look()
        self.look()

    def look(self):
        rows = self.shop.outbox.rows.c
        with self.shop.engine.connect() as connection:
            found = connection.execute(select(rows.lane, rows.id).order_by(rows.id)).all()
        self.looks += 1
        for lane, number in found:
            seen = self.seen.setdefault(lane, [])
            if seen and number <= seen[-1]:
                if number not in seen:
                    self.late.append((lane, number, seen[-1]))
            else:
                seen.append(number)


class Aborted(Exception):
    """Raised to roll back a transaction."""


def write(shop, nth, kept):
    chance = random.Random(nth)
    engine = create_engine(shop.url)
    for count in range(TRANSACTIONS):
        lanes = sorted(chance.sample("abcd", chance.randint(1, 2)))
        with contextlib.suppress(Aborted), engine.begin() as connection:
            for lane in lanes:
                shop.outbox.add(connection, message(f"{nth}-{count}"), lane)
            threading.Event().wait(
                chance.random() * 0.004
            )  # Some transactions take longer than others.
            if chance.random() < 0.2:
                raise Aborted
            kept += [(lane, f"{nth}-{count}") for lane in lanes]
    engine.dispose()


@pytest.mark.parametrize("kind", DATABASES)
def test_no_id_appears_below_one_already_seen_in_its_lane(shop_on, kind):
    shop = shop_on(kind)
    kept = []
    watcher = Watcher(shop)
    writers = [
        threading.Thread(target=write, args=(shop, nth, kept), daemon=True)
        for nth in range(WRITERS)
    ]

    for thread in (watcher, *writers):
        thread.start()
    for writer in writers:
        writer.join()
    watcher.is_over.set()
    watcher.join(SECONDS)

    assert watcher.late == []
    assert watcher.looks > 10
    assert sorted((row.lane, row.body.decode()) for row in shop.rows) == sorted(kept)
    assert {lane: len(seen) for lane, seen in watcher.seen.items()} == {
        lane: sum(row.lane == lane for row in shop.rows) for lane in watcher.seen
    }
