"""The checkers of delivery find a broker, or a client, that is broken on purpose.

Every one of these is made from the real one by taking a single thought away.
"""

import asyncio
from dataclasses import replace

import pytest

from tests.simulation.broken import names, run_all, see_it_found
from tests.simulation.checkers import delays, forward, recovery, retries
from tests.simulation.client_mix import GroupMix
from tests.simulation.delivery_mix import DeliveryMix
from tests.simulation.delivery_runs import run_delivery_seed
from tests.simulation.mix import kib
from txmq.client.consume.concurrent_workers import ConcurrentWorkers
from txmq.client.consume.fetcher import Returns
from txmq.client.consume.orderly_workers import OrderlyWorkers
from txmq.message import DEAD_LETTER
from txmq.protocol import properties
from txmq_broker.core import retry
from txmq_broker.core.retry import RetryVerdict
from txmq_broker.core.schedule import Schedule
from txmq_broker.handlers import returns
from txmq_broker.handlers.returns import ReturnHandlers
from txmq_broker.services.deliverer import Deliverer
from txmq_broker.services.flusher import Flusher
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.due_messages import NOWHERE, DueMessages

RESTLESS = GroupMix(members=2, work_s=0.1, stay_s=5.0, stop_s=1.0, rebalance_interval=2.0)
"""Members come and go all the time."""

MIX = DeliveryMix(
    checkpoint=kib(4),
    producers=1,
    sends=25,
    think_s=0.3,
    chaos_s=10.0,
    pause_s=1.5,
    audit_chance=0.0,
    recovery_chance=0.0,
    faults=("power cut", "kill", "cut connections", "client crash"),
    consuming=(RESTLESS, replace(RESTLESS, is_orderly=True)),
    recall_chance=0.5,
)

ONE = replace(RESTLESS, members=1, work_s=0.0, stay_s=0.0)

TIGHT = MIX.but(
    queues=1,
    producers=2,
    sends=120,
    think_s=0.05,
    pause_s=0.5,
    sync_s=(0.1, 0.5),
    consuming=(ONE,),
    wishes=("at", "after"),
    plans=("well",),
    wait_s=2.0,
    recall_chance=0.0,
)
"""Much falls due while the disk is at work."""

DOUBTFUL = MIX.but(
    sends=60,
    pause_s=0.3,
    faults=("slow network", "one-way partition", "cut connections"),
    chaos_s=15.0,
    consuming=(ONE,),
    wishes=("at",),
    wait_s=15.0,
    recall_chance=1.0,
)
"""Many a message is sent twice, and recalled."""

SLOW_DISK = MIX.but(sync_s=(0.1, 0.5))
"""A power cut takes what the disk was about to keep."""


def test_the_unbroken_delivery_passes():
    run_all(run_delivery_seed, MIX)


@pytest.mark.slow
@pytest.mark.parametrize("mix", [TIGHT, DOUBTFUL, SLOW_DISK])
def test_the_unbroken_delivery_passes_with_rare_mixes(mix):
    run_all(run_delivery_seed, mix)


# Brokers that delay


def messages_come_a_second_early(patch):
    first = DelayStore.first
    patch(DelayStore, "first", lambda self, now_ms: first(self, now_ms + 1000))


def a_level_is_taken_for_the_next(patch):
    due_time = Schedule.due_time_of_level
    patch(
        Schedule, "due_time_of_level", lambda self, level, now_ms: due_time(self, level + 1, now_ms)
    )


def times_are_not_looked_at(patch):
    due_time_of = Schedule.due_time_of

    def of_level(self, special, now_ms):
        found = due_time_of(self, special, now_ms)
        return found if found is not None and found.level else None

    patch(Schedule, "due_time_of", of_level)


def what_has_left_is_forgotten_at_a_restart(patch):
    patch(DelayStore, "found", lambda self, record: None)


def what_waits_is_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        recovered(self)
        self._waiting = DueMessages()

    patch(DelayStore, "recovered", forgetful)


def a_line_is_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        self._lines.pop(0, None)
        recovered(self)

    patch(DelayStore, "recovered", forgetful)


def checkpoints_pass_over_what_waits(patch):
    states_before = DelayStore.states_before

    def hasty(self, *given):
        return [
            state._replace(first=self.line(state.number).queue.next_offset)
            for state in states_before(self, *given)
        ]

    patch(DelayStore, "states_before", hasty)
    return MIX.but(recovery_chance=1.0)


def nobody_looks_what_is_due(patch):
    async def doze(self, delay):
        await asyncio.sleep(40.0)

    patch(Deliverer, "_sleep", doze)


def recalls_are_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        recovered(self)
        self._gone.clear()

    patch(DelayStore, "recovered", forgetful)


def recalls_are_only_said_to_be_heard(patch):
    patch(DelayStore, "is_recalled", lambda self, due: True)


def a_recall_does_not_hold_while_it_is_made_safe(patch):
    recall = DelayStore.recall

    def hasty(self, *given):
        recall(self, *given)
        self._going.clear()

    patch(DelayStore, "recall", hasty)
    return TIGHT.but(recall_chance=1.0)


def only_one_of_two_attempts_is_recalled(patch):
    find = Schedule.find
    patch(Schedule, "find", lambda self, *given: find(self, *given)[:1])
    return DOUBTFUL


def what_could_not_be_written_is_forgotten(patch):
    def forget(self, staged):
        self._unsafe.pop()
        self._leaving -= len(staged.left)

    patch(DelayStore, "take_back", forget)
    return TIGHT.but(faults=("failed writes",))


def nobody_minds_that_the_clock_was_set_back(patch):
    join = DelayStore.join

    def in_the_first_line(self, due_time, now_ms):
        return self._delays.wheel_line(0), due_time.due_ms

    def carelessly(self, line, *given):
        leaving, line.leaving = line.leaving, NOWHERE
        try:
            return join(self, line, *given)
        finally:
            line.leaving = leaving

    patch(Schedule, "_line_for", in_the_first_line)
    patch(DelayStore, "join", carelessly)
    return TIGHT.but(faults=("kill", "clock jump"))


def answers_do_not_wait_for_the_disk(patch):
    def answer(self, connection, requests, answers):
        connection.send(*answers)

    patch(Flusher, "answer", answer)
    return SLOW_DISK


# Brokers that take messages back


def attempts_are_not_counted(patch):
    put = ReturnHandlers._put

    def forgetful(self, topic, number, record, *rest):
        put(self, topic, number, record._replace(attempts=record.attempts - 1), *rest)

    patch(ReturnHandlers, "_put", forgetful)


def one_attempt_is_enough(patch):
    patch(returns, "retry_maximum", lambda *_: 0)


def nothing_ever_dies(patch):
    patch(returns, "retry_maximum", lambda *_: 100)


def retries_wait_no_longer_than_the_first(patch):
    usual = retry.judge_retry

    def hasty(attempts, maximum, level, words=""):
        verdict = usual(attempts, maximum, level, words)
        return verdict if verdict.reason else RetryVerdict(retry.FIRST_LEVEL)

    patch(returns, "judge_retry", hasty)


def what_comes_back_is_stored_twice(patch):
    put = ReturnHandlers._put

    def twice(*given):
        put(*given)
        put(*given)

    patch(ReturnHandlers, "_put", twice)


def the_dead_are_dropped(patch):
    put = ReturnHandlers._put

    def drop(self, topic, number, record, text, fate, now_ms):
        if not fate.reason:
            put(self, topic, number, record, text, fate, now_ms)

    patch(ReturnHandlers, "_put", drop)


def the_dead_do_not_say_why(patch):
    marks = retry._marks

    def mute(*given):
        return {
            name: value for name, value in marks(*given).items() if name != properties.DEAD_REASON
        }

    patch(retry, "_marks", mute)


def the_dead_forget_their_topic(patch):
    marks = retry._marks
    patch(retry, "_marks", lambda topic, *rest: marks("%RETRY%", *rest))


# Clients


def a_failure_is_taken_for_a_success(patch):
    async def forget(self, intake, message, verdict):
        intake.end([message])

    patch(ConcurrentWorkers, "_try_again", forget)


def every_failure_is_deadly(patch):
    send_back = Returns.__call__

    async def harsh(self, message, level, *words):
        await send_back(self, message, DEAD_LETTER, *words)

    patch(Returns, "__call__", harsh)


def an_attempt_is_counted_twice(patch):
    failed = OrderlyWorkers._failed

    async def generous(self, *given):
        left = await failed(self, *given)
        return [replace(delivery, attempts=delivery.attempts + 1) for delivery in left]

    patch(OrderlyWorkers, "_failed", generous)


def nothing_in_order_is_given_up(patch):
    async def never(self, *given):
        return False

    patch(OrderlyWorkers, "_given_up", never)


def what_is_fetched_together_is_turned_round(patch):
    deliver = ConcurrentWorkers.deliver
    patch(
        ConcurrentWorkers, "deliver", lambda self, intake, many: deliver(self, intake, many[::-1])
    )


@pytest.mark.parametrize(
    ("breaks", "checkers"),
    [
        (messages_come_a_second_early, (delays, retries)),
        (a_level_is_taken_for_the_next, (delays,)),
        (times_are_not_looked_at, (delays,)),
        (what_has_left_is_forgotten_at_a_restart, (delays, retries)),
        (what_waits_is_forgotten_at_a_restart, (delays, retries)),
        (a_line_is_forgotten_at_a_restart, (delays,)),
        (checkpoints_pass_over_what_waits, (delays, recovery)),
        (nobody_looks_what_is_due, (delays,)),
        (recalls_are_forgotten_at_a_restart, (delays,)),
        (recalls_are_only_said_to_be_heard, (delays,)),
        (a_recall_does_not_hold_while_it_is_made_safe, (delays,)),
        (only_one_of_two_attempts_is_recalled, (delays,)),
        (what_could_not_be_written_is_forgotten, (delays,)),
        (nobody_minds_that_the_clock_was_set_back, (delays,)),
        (answers_do_not_wait_for_the_disk, (delays, retries)),
        (attempts_are_not_counted, (retries,)),
        (one_attempt_is_enough, (retries,)),
        (nothing_ever_dies, (retries,)),
        (retries_wait_no_longer_than_the_first, (retries,)),
        (what_comes_back_is_stored_twice, (retries,)),
        (the_dead_are_dropped, (retries,)),
        (the_dead_do_not_say_why, (retries,)),
        (the_dead_forget_their_topic, (retries,)),
        (a_failure_is_taken_for_a_success, (retries,)),
        (every_failure_is_deadly, (retries,)),
        (an_attempt_is_counted_twice, (retries,)),
        (nothing_in_order_is_given_up, (retries,)),
        (what_is_fetched_together_is_turned_round, (forward,)),
    ],
    ids=names,
)
def test_each_break_in_the_delivery_is_found(breaks, checkers, monkeypatch):
    mix = breaks(monkeypatch.setattr) or MIX

    see_it_found(run_delivery_seed, mix, checkers)
