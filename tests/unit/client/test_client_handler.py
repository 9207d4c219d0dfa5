"""Handlers of every kind, and how their results are interpreted."""

import asyncio
import contextlib
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from tests.running import in_loop, run_by
from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.client.consume.handler import BoundHandler
from txmq.errors import UsageError
from txmq.idempotent import idempotent
from txmq.message import DEAD_LETTER, Later, ReceivedMessage
from txmq.runtime.tasks import Threads

MESSAGE = SimpleNamespace(id="m", topic="T", offset=7, attempts=0)


async def later(message):
    return Later(3)


class Object:
    async def __call__(self, message):
        return Later(3)

    def plain(self, message):
        return Later(3)

    def nothing(self):
        return None


def judged(handler, messages=(MESSAGE,), *, takes_batch=False):
    async def scenario():
        handling = BoundHandler(handler, takes_batch=takes_batch)
        with contextlib.closing(Threads("test", 1)) as threads:
            handling.open(threads)
            return await handling.judge(messages)

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "handler",
    [
        later, partial(later), Object(), Object().plain, lambda message: Later(3),
        lambda message: later(message),
    ],
)  # fmt: skip
def test_any_callable_can_be_a_handler(handler):
    assert judged(handler) == Later(3)


@pytest.mark.parametrize("takes_batch", [False, True])
def test_an_unbound_method_is_refused_with_advice_on_how_to_register_it(takes_batch):
    with pytest.raises(UsageError, match=r"Object\.plain is a method.*\(service\.handle\)"):
        BoundHandler(Object.plain, takes_batch=takes_batch)


def test_a_guarded_method_of_an_object_can_be_a_handler():
    class Desk:
        @idempotent(MemoryGuard(has_session=True), key=lambda message: message.id)
        def bill(self, session, message: ReceivedMessage):
            return Later(3)

    assert judged(Desk().bill) == Later(3)


class Order(msgspec.Struct):
    number: str
    cents: int


def order(cents):
    body = msgspec.json.encode(Order("1", cents))
    return SimpleNamespace(**vars(MESSAGE), body=body)


def bill(order: Order) -> None:
    pass


def bill_order_of(order: Order, message: ReceivedMessage) -> None:
    pass


def bill_message_of(message: ReceivedMessage, order: Order) -> None:
    pass


@pytest.mark.parametrize("plain", [bill, bill_order_of, bill_message_of])
def test_a_guard_compares_message_bodies_whatever_parameters_its_handler_has(plain):
    def key(*given):
        return next(argument.number for argument in given if isinstance(argument, Order))

    handler = idempotent(MemoryGuard(), key=key)(plain)

    assert judged(handler, [order(cents=1)]) is None
    assert judged(handler, [order(cents=1)]) is None
    assert judged(handler, [order(cents=9)]).level == DEAD_LETTER


def test_a_guarded_call_inside_a_handler_does_not_compare_the_message_body():
    inner = MemoryGuard()

    @idempotent(inner, key=lambda day: day)
    def open_day(day):
        pass

    @idempotent(MemoryGuard(), key=lambda order: order.cents)
    def open_and_bill(order: Order) -> None:
        open_day("today")

    assert judged(open_and_bill, [order(cents=1)]) is None
    assert judged(open_and_bill, [order(cents=9)]) is None
    assert {payload for _, _, payload in inner.seen} == {None}


def test_a_batch_handler_gets_all_messages_of_the_batch():
    got = []
    judged(got.extend, [MESSAGE, MESSAGE], takes_batch=True)

    assert got == [MESSAGE, MESSAGE]


def test_returning_the_class_later_means_later():
    assert judged(lambda message: Later) == Later()


@pytest.mark.parametrize(
    "handler", [3, lambda: None, lambda session, message: None, Object().nothing]
)
def test_a_handler_that_cannot_take_a_message_is_refused_at_once(handler):
    with pytest.raises(UsageError):
        BoundHandler(handler, takes_batch=False)


@pytest.mark.parametrize("said", [None, True, False, 0, "done"])
def test_return_values_other_than_later_mean_success(said):
    assert judged(lambda message: said) is None


def test_an_exception_in_a_handler_means_later():
    def fail(message):
        raise ValueError("no such account")

    assert judged(fail) == Later(reason="ValueError: no such account")


@pytest.mark.parametrize(("attempts", "said"), [(0, "at 7: "), (2, "at 7, retry 2: ")])
def test_a_failure_is_logged_with_the_number_of_the_retry(caplog, attempts, said):
    def fail(message):
        raise ValueError("no such account")

    judged(fail, [SimpleNamespace(id="m", topic="T", offset=7, attempts=attempts)])
    assert f"a handler failed with message m of T {said}ValueError: no such account" in caplog.text


@run_by(in_loop)
async def test_each_attempt_logs_one_line_and_each_new_failure_one_traceback(caplog):
    reasons = iter(["no such account\n(nor will there be)"] * 3 + ["closed"])

    async def fail(message):
        raise ValueError(next(reasons))

    handling = BoundHandler(fail, takes_batch=False)
    for attempts in range(4):
        await handling.judge([SimpleNamespace(id="m", topic="T", offset=7, attempts=attempts)])
    assert [record.getMessage().partition(" at 7")[2] for record in caplog.records] == [
        ": ValueError: no such account",
        ", retry 1: ValueError: no such account",
        ", retry 2: ValueError: no such account",
        ", retry 3: ValueError: closed",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, True]


def test_an_exception_whose_str_raises_counts_as_a_failure():
    class OddError(Exception):
        def __str__(self):
            raise ValueError

    def fail(message):
        raise OddError

    assert "OddError" in judged(fail).reason


def test_awaiting_a_cancelled_future_is_a_failure_and_not_a_cancellation():
    """A handler may await a future that other code cancels."""

    async def wait_for_the_cancelled(message):
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    assert judged(wait_for_the_cancelled) == Later(reason="the handler was cancelled")


async def sleepy(message):
    await asyncio.sleep(3600)


async def stubborn(message):
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)


@pytest.mark.parametrize("handler", [sleepy, stubborn], ids=["obeys", "suppresses it"])
@run_by(in_loop)
async def test_a_cancelled_handler_gives_no_verdict(handler):
    task = asyncio.create_task(BoundHandler(handler, takes_batch=False).judge([MESSAGE]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_plain_handler_that_raises_stop_iteration_has_failed():
    said = judged(lambda message: next(iter(())))
    assert said == Later(reason="RuntimeError: a handler raised StopIteration")


def test_a_base_exception_in_a_handler_counts_as_a_failure():
    class Odd(BaseException):
        pass

    async def fail(message):
        raise Odd

    assert judged(fail).reason.endswith("Odd")


def test_system_exit_in_a_handler_ends_the_program():
    async def end(message):
        raise SystemExit

    with pytest.raises(SystemExit):
        judged(end)
