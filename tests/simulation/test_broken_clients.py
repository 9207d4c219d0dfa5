"""The checkers of clients find a client that is broken on purpose, each by what it breaks.

Every one of these clients is made from the real one by taking a single thought away.
"""

import asyncio
from dataclasses import replace

import pytest

from tests.simulation.broken import names, run_all, see_it_found
from tests.simulation.checkers import commits, consumed, farewell, in_turn
from tests.simulation.client_mix import ClientMix, GroupMix
from tests.simulation.client_runs import run_client_seed
from tests.soak import only_in_soak
from txmq.client.client import Client
from txmq.client.consume.assignment import QueueAssignment
from txmq.client.consume.concurrent_workers import ConcurrentWorkers
from txmq.client.consume.consume_window import ConsumeWindow
from txmq.client.consume.fetcher import QueueFetcher
from txmq.client.consume.offset_store import BrokerOffsets
from txmq.client.consume.orderly_workers import HeldLocks, OrderlyWorkers

RESTLESS = GroupMix(
    members=3, work_s=0.5, fail_chance=0.1, stay_s=3.0, stop_s=1.0, rebalance_interval=2.0
)
"""Members come and go all the time, and handlers fail."""

SETTLED = GroupMix(members=2, work_s=0.1, fail_chance=0.1)
"""Members stay, so that what one of them forgets comes to nobody else."""

MIX = ClientMix(
    queues=2,
    producers=1,
    sends=60,
    think_s=0.2,
    chaos_s=12.0,
    pause_s=1.0,
    audit_chance=0.0,
    recovery_chance=0.0,
    faults=("client crash", "cut connections", "isolation"),
    consuming=(RESTLESS, replace(RESTLESS, is_orderly=True)),
)

QUIET = MIX.but(faults=("cut connections",), consuming=(SETTLED,))


def test_the_unbroken_client_passes():
    for mix in (MIX, QUIET):
        run_all(run_client_seed, mix)


def what_was_fetched_is_committed(patch):
    patch(ConsumeWindow, "safe_offset", property(lambda self: self.next_offset))


def locks_are_ignored(patch):
    async def take(self, queue):
        return True

    patch(HeldLocks, "take", take)
    patch(HeldLocks, "has", lambda self, queue: True)


def the_handler_at_work_is_not_waited_for(patch):
    async def let_go(self, intake):
        self._lines.pop(intake.queue, None)

    patch(OrderlyWorkers, "let_go", let_go)


def where_the_group_stands_is_asked_only_once(patch):
    load, known = BrokerOffsets.load, {}

    async def remember(self, queue):
        key = id(self), queue
        if key not in known:
            known[key] = await load(self, queue)
        return known[key]

    patch(BrokerOffsets, "load", remember)


def a_failure_is_taken_for_a_success(patch):
    async def forget(self, intake, message, level):
        intake.end([message])

    patch(ConcurrentWorkers, "_try_again", forget)


def what_could_not_be_sent_back_is_forgotten(patch):
    patch(ConcurrentWorkers, "_try_here", lambda self, intake, message: None)
    return QUIET.but(faults=("kill",), consuming=(replace(SETTLED, fail_chance=0.5),))


def a_queue_that_fails_once_is_fetched_no_more(patch):
    run = QueueFetcher.run

    async def give_up(self):
        self._backoff.next_pause = lambda: 1e6
        return await run(self)

    patch(QueueFetcher, "run", give_up)
    return QUIET


def a_stop_leaves_fetching_to_itself(patch):
    async def nothing(self):
        pass

    patch(QueueAssignment, "stop_fetching", nothing)
    patch(QueueAssignment, "close", nothing)
    patch(QueueAssignment, "abandon", nothing)


def a_client_leaves_its_connections_open(patch):
    async def leave(self, *problem):
        await self.tasks.stop()

    patch(Client, "__aexit__", leave)


def a_stop_waits_for_ever(patch):
    finish = ConcurrentWorkers.finish

    async def dawdle(self):
        await finish(self)
        await asyncio.sleep(50)

    patch(ConcurrentWorkers, "finish", dawdle)


@pytest.mark.parametrize(
    ("breaks", "checkers"),
    [
        (locks_are_ignored, (in_turn,)),
        (the_handler_at_work_is_not_waited_for, (in_turn,)),
        (where_the_group_stands_is_asked_only_once, (in_turn,)),
        (what_could_not_be_sent_back_is_forgotten, (consumed,)),
        (a_queue_that_fails_once_is_fetched_no_more, (consumed,)),
        (a_stop_leaves_fetching_to_itself, (farewell,)),
        (a_client_leaves_its_connections_open, (farewell,)),
        (a_stop_waits_for_ever, (farewell,)),
        *only_in_soak(  # They take the most seeds.
            (what_was_fetched_is_committed, (commits, consumed)),
            (a_failure_is_taken_for_a_success, (consumed,)),
        ),
    ],
    ids=names,
)
def test_each_break_in_the_client_is_found(breaks, checkers, monkeypatch):
    mix = breaks(monkeypatch.setattr) or MIX

    see_it_found(run_client_seed, mix, checkers)
