"""The kit for testing handlers, tried on handlers and guards with known faults."""

import asyncio
import threading
from collections import Counter

import pytest

from txmq import DEAD_LETTER, Later
from txmq.errors import ConfigError, KeyConflict, KeyInProgress, UsageError, VersionGap
from txmq.idempotent.guard import Attempt, KeyState, Verdict, idempotent
from txmq.testing.deliveries import Deliveries, End, Point, received

HELD, ASKED_FOR = float("inf"), 3
"""A lease of whoever has died lasts until it was asked for so often."""


def orders(count):
    return [received("Orders", b"tea", key=f"order-{number}") for number in range(count)]


class Memory:
    """A guard without a session; it knows the held keys and the done keys."""

    is_blocking, has_session = True, False

    def __init__(self, lease=ASKED_FOR):
        self.lease = lease
        self.held, self.done = {}, set()
        self.lock = threading.Lock()

    def attempt(self, key, *, scope="", payload=None):
        return Held(self, key)


class Held(Attempt):
    session = None

    def __init__(self, memory, key):
        super().__init__()
        self.memory, self.key = memory, key

    @property
    def is_blocking(self):
        return self.memory.is_blocking

    async def begin(self):
        memory, key = self.memory, self.key
        with memory.lock:
            if key in memory.done:
                self.found = KeyState(Verdict.DONE)
            elif memory.held.get(key, 0) <= 0:
                memory.held[key] = HELD
                self.found = KeyState(Verdict.FIRST)
            else:
                memory.held[key] -= 1
        return self

    async def end(self, error):
        if self.verdict is not Verdict.FIRST:
            return
        with self.memory.lock:
            if self.is_abandoned:
                self.memory.held[self.key] = self.memory.lease
                return
            if error is None:
                self.finish()
            del self.memory.held[self.key]

    def finish(self):
        self.memory.done.add(self.key)


class Together(Memory):
    """A guard with a session: work and key are committed together or not at all."""

    has_session = True

    def __init__(self, effects):
        super().__init__()
        self.effects = effects

    def attempt(self, key, *, scope="", payload=None):
        return Joined(self, key)


class Joined(Held):
    def __init__(self, memory, key):
        super().__init__(memory, key)
        self.session = []

    def finish(self):
        super().finish()
        for message in self.session:
            self.memory.effects.one(message)


class AsyncMemory(Memory):
    is_blocking = False


class DoneFirst(Memory):
    """The pattern of half the pages on the web: SETNX, then the work."""

    def attempt(self, key, *, scope="", payload=None):
        return Marked(self, key)


class Marked(Held):
    async def begin(self):
        await super().begin()
        self.finish()
        return self


class Effects(Counter):
    """Counts effects safely from many threads, as a database does."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def handler(self, guard, key=lambda message: message.key):
        """Puts its effect in where its guard can no longer lose it."""

        @idempotent(guard, key=key)
        def handle(message):
            self.one(message)

        return handle

    def one(self, message):
        with self.lock:
            self[message.key] += 1


def test_a_handler_without_a_guard_is_caught():
    effects = Effects()

    report = Deliveries(orders(20), seed=3).run(effects.one)

    with pytest.raises(AssertionError, match="seed 3, 20 keys") as caught:
        report.see_once(effects)
    assert "20 keys did not have exactly one effect, 0 of them had none" in str(caught.value)
    assert "killed: after its handler, before the acknowledgement" in str(caught.value)
    assert len(report.ended(End.ACKNOWLEDGED)) == 100


def test_a_guarded_method_can_be_the_handler():
    effects = Effects()

    class Desk:
        @idempotent(Together(effects), key=lambda message: message.key)
        def bill(self, session, message):
            session.append(message)

    report = Deliveries(orders(20), seed=3, crashes=0.5).run(Desk().bill)

    report.see_once(effects)


def test_a_failure_lists_the_attempts_of_a_key_in_order():
    effects = Effects()
    message = received("Orders", b"tea", key="order-1")

    report = Deliveries([message], times=2, callers=1, crashes=0).run(effects.one)

    with pytest.raises(AssertionError) as caught:
        report.see_once(effects)
    assert str(caught.value).splitlines()[2:] == [
        "  'order-1' had 2 effects:",
        "    message 0, delivery 1, attempt 0, caller 1: acknowledged",
        "    message 0, delivery 2, attempt 0, caller 1: acknowledged",
    ]


def test_a_guard_that_marks_a_key_done_before_the_work_is_caught():
    effects = Effects()

    report = Deliveries(orders(50), seed=1).run(effects.handler(DoneFirst()))

    with pytest.raises(
        AssertionError, match=r"\d+ keys did not have exactly one effect, \d+ of them had none"
    ):
        report.see_once(effects)
    assert 0 in [effects[key] for key in report.keys]


def test_a_guard_without_leases_blocks_a_key_after_a_kill_and_is_caught():
    effects = Effects()
    handler = effects.handler(Memory(lease=HELD))

    report = Deliveries(orders(20), seed=1, patience_s=0.02).run(handler)

    with pytest.raises(AssertionError, match=r"\d+ deliveries never succeeded"):
        report.see_once(effects)
    assert {stuck.end for stuck in report.stuck} == {End.LATER}
    assert "KeyInProgress" in report.stuck[0].words


def test_a_kill_after_the_work_lets_it_run_twice_once_the_lease_ends():
    """A guard outside the work's transaction then lets it run twice, and the kit shows that."""
    effects, rests = Effects(), []

    def pause(seconds):
        rests.append(seconds)
        threading.Event().wait(seconds)

    report = Deliveries(orders(30), seed=2).run(effects.handler(Memory()), pause=pause)

    twice = {key for key, count in effects.items() if count > 1}
    worked = {attempt.key for attempt in report.attempts if attempt.words == Point.WORKED.value}
    assert twice
    assert twice <= worked
    assert not report.stuck
    assert all(seconds <= 0.25 for seconds in rests)


@pytest.mark.parametrize("seed", range(5))
def test_a_guard_in_one_transaction_with_the_work_passes(seed):
    effects = Effects()

    @idempotent(Together(effects), key=lambda message: message.key)
    def handle(session, message):
        session.append(message)

    report = Deliveries(orders(30), seed=seed, crashes=0.5).run(handle)

    report.see_once(effects)
    killed = {attempt.words for attempt in report.ended(End.KILLED)}
    assert killed == {point.value for point in (Point.CLAIMED, Point.WORKED, Point.ENDED)}


def test_an_async_handler_is_called_by_concurrent_tasks():
    effects = Effects()

    @idempotent(AsyncMemory(), key=lambda message: message.key)
    async def handle(message):
        await asyncio.sleep(0)
        effects.one(message)

    report = asyncio.run(Deliveries(orders(30), crashes=0).run_async(handle))

    report.see_once(effects)
    assert len({attempt.caller for attempt in report.attempts}) == 8
    assert report.ended(End.LATER)  # Several deliveries came at the same moment.


def test_one_seed_kills_at_the_same_points_and_another_seed_at_others():
    def killed(seed):
        report = Deliveries(orders(20), seed=seed).run(Effects().one)
        return sorted(
            (attempt.message, attempt.copy, attempt.attempt, attempt.words)
            for attempt in report.ended(End.KILLED)
        )

    assert killed(5) == killed(5) != killed(6)


def test_a_delivery_carries_the_number_of_earlier_attempts():
    seen = []

    def handle(message):
        seen.append(message.attempts)
        return Later(reason="not yet") if message.attempts < 2 else None

    report = Deliveries(orders(1), times=1, crashes=0).run(handle)

    assert seen == [0, 1, 2]
    assert [(attempt.end, attempt.words) for attempt in report.attempts] == [
        (End.LATER, "not yet"),
        (End.LATER, "not yet"),
        (End.ACKNOWLEDGED, ""),
    ]


@pytest.mark.parametrize("said", [Later, Later()])
def test_later_may_be_returned_as_the_class_or_an_instance(said):
    answers = [said, None]

    report = Deliveries(orders(1), times=1, crashes=0).run(lambda _: answers.pop(0))

    assert [attempt.end for attempt in report.attempts] == [End.LATER, End.ACKNOWLEDGED]


@pytest.mark.parametrize("error", [KeyConflict("another"), Later(DEAD_LETTER, reason="another")])
def test_a_dead_letter_is_not_delivered_again(error):
    def handle(message):
        if isinstance(error, Exception):
            raise error
        return error

    report = Deliveries(orders(1), times=2, crashes=0).run(handle)

    assert [attempt.end for attempt in report.attempts] == [End.REFUSED] * 2
    assert "another" in report.attempts[0].words
    assert not report.stuck


@pytest.mark.parametrize("error", [KeyInProgress("theirs"), VersionGap("2 is missing")])
def test_deliveries_that_never_succeed_are_reported(error):
    def handle(message):
        raise error

    report = Deliveries(orders(2), times=1, crashes=0, patience_s=0.02).run(handle)

    with pytest.raises(AssertionError, match="2 deliveries never succeeded"):
        report.see_once({"order-0": 1, "order-1": 1})
    assert {stuck.end for stuck in report.stuck} == {End.LATER}


def test_a_failing_delivery_is_retried_16_times():
    def handle(message):
        raise ValueError(message.attempts)

    report = Deliveries(orders(1), times=1, crashes=0).run(handle)

    assert len(report.ended(End.RAISED)) == 17
    assert report.stuck[0].words == "ValueError: 16"


def test_an_effect_without_a_message_is_reported():
    report = Deliveries(orders(1), crashes=0).run(lambda _: None)

    with pytest.raises(AssertionError, match="1 key had an effect and no message: 'order-9'"):
        report.see_once({"order-0": 1, "order-9": 1})


def test_keyboard_interrupt_and_system_exit_are_raised_to_the_caller():
    def handle(message):
        raise KeyboardInterrupt

    async def wait(message):
        raise SystemExit(3)

    with pytest.raises(KeyboardInterrupt):
        Deliveries(orders(9)).run(handle)
    with pytest.raises(SystemExit):
        asyncio.run(Deliveries(orders(9)).run_async(wait))


def test_cancelling_deliveries_cancels_their_handlers():
    async def story():
        ended = []

        async def handle(message):
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(message.key)

        running = asyncio.ensure_future(Deliveries(orders(9), crashes=0).run_async(handle))
        while not running.done() and len(asyncio.all_tasks()) < 9:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled(), len(ended)

    assert asyncio.run(story()) == (True, 8)


def test_a_cancelled_error_raised_by_a_handler_is_a_failed_attempt():
    async def handle(message):
        if not message.attempts:
            raise asyncio.CancelledError

    report = asyncio.run(Deliveries(orders(1), times=1, crashes=0).run_async(handle))

    assert [attempt.end for attempt in report.attempts] == [End.RAISED, End.ACKNOWLEDGED]


def test_any_object_can_be_delivered_with_a_key_function():
    seen = Effects()

    def handle(order):
        seen[order["id"]] += 1

    report = Deliveries(
        [{"id": 1}, {"id": 2}], times=1, crashes=0, key=lambda order: order["id"]
    ).run(handle)

    report.see_once(seen)


def test_the_key_of_the_guard_identifies_deliveries():
    effects = Effects()
    handler = effects.handler(Memory(), key=lambda message: message.body.decode())
    messages = [received("Orders", b"tea", key=key) for key in ("a", "b")]

    report = Deliveries(messages, crashes=0).run(handler)

    assert report.keys == ("tea",)
    assert effects.total() == 1


def test_run_refuses_async_handlers_and_run_async_refuses_sync_ones():
    async def handle(message):
        """Nothing."""

    with pytest.raises(UsageError, match="run_async"):
        Deliveries(orders(1)).run(handle)
    with pytest.raises(UsageError, match="run()"):
        asyncio.run(Deliveries(orders(1)).run_async(lambda _: None))


@pytest.mark.parametrize("wrong", [{"times": 0}, {"callers": 0}, {"crashes": 1.0}])
def test_invalid_settings_of_deliveries_are_refused(wrong):
    with pytest.raises(ConfigError):
        Deliveries(orders(1), **wrong)


def test_received_builds_the_message_that_a_consumer_gets():
    message = received("Orders", b"tea", key="order-1", tags="Paid", currency="EUR")

    assert (message.topic, message.body, message.key) == ("Orders", b"tea", "order-1")
    assert (message.tags, message.properties) == ("Paid", {"currency": "EUR"})
    assert len(message.id) == 32
    assert message == received("Orders", b"tea", key="order-1", tags="Paid", currency="EUR")
    assert received("Orders", b"tea").key == received("Orders", b"tea").id


def test_a_handler_with_a_declared_body_type_gets_the_decoded_body():
    seen = []

    @idempotent(Memory(), key=lambda order: order["id"])
    def handle(order: dict[str, str]):
        seen.append(order)

    messages = [received("Orders", b'{"id": "a"}'), received("Orders", b'{"id": 7}', key="bad")]
    report = Deliveries(messages, times=3, crashes=0).run(handle)

    assert seen == [{"id": "a"}]
    ends = Counter((attempt.key, attempt.end) for attempt in report.attempts)
    assert ends["bad", End.REFUSED] == 3
    assert ends["a", End.ACKNOWLEDGED] == 3
