"""A function behind a guard: when it is called, with which arguments, and what its caller gets."""

import asyncio
import inspect
import runpy
import sqlite3
import typing
from functools import partial
from types import SimpleNamespace

import pytest

from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.errors import ConfigError, KeyConflict, KeyInProgress, LimitExceeded, UsageError
from txmq.idempotent import Verdict, idempotent
from txmq.limits import STORED_RESULT_BYTES_MAX
from txmq.message import Later


def order(key="order-1", body=b"tea"):
    return SimpleNamespace(key=key, body=body)


def key_of(message, *_, **__):
    return message.key


class Locked(Exception):
    """The error of a database that rolled a transaction back because of another one."""

    sqlstate = "40001"


@pytest.fixture
def guard():
    return MemoryGuard()


@pytest.fixture
def awaited():
    return MemoryGuard(is_blocking=False)


def test_a_function_is_called_once_for_a_key(guard):
    calls = []

    @idempotent(guard, key=key_of)
    def handle(message):
        calls.append(message.key)

    for name in ("a", "b", "a", "a", "b"):
        handle(order(name))

    assert calls == ["a", "b"]


def test_an_async_function_is_called_once_for_a_key(awaited):
    calls = []

    @idempotent(awaited, key=key_of)
    async def handle(message):
        calls.append(message.key)

    async def story():
        for name in ("a", "b", "a", "a", "b"):
            await handle(order(name))

    asyncio.run(story())
    assert calls == ["a", "b"]
    assert inspect.iscoroutinefunction(handle)


def test_a_repeated_call_returns_the_kept_result(guard):
    kept = idempotent(guard, key=key_of, scope="shop", keeps_result=True)(
        lambda message: {"paid": message.key}
    )

    assert [kept(order()), kept(order())] == [{"paid": "order-1"}] * 2


def test_a_repeated_call_returns_none_without_keeps_result(guard):
    plain = idempotent(guard, key=key_of, scope="shop")(lambda message: {"paid": message.key})

    assert [plain(order()), plain(order())] == [{"paid": "order-1"}, None]


@pytest.mark.parametrize("result", [object(), {1, 2}, float("nan"), {"at": b"bytes"}])
def test_a_result_that_json_cannot_carry_is_refused_and_the_work_undone(guard, result):
    handle = idempotent(guard, key=key_of, scope="shop", keeps_result=True)(lambda message: result)

    with pytest.raises(UsageError, match="JSON"):
        handle(order())

    assert not guard.rows


def test_a_result_that_is_too_large_is_refused_and_the_work_undone(guard):
    handle = idempotent(guard, key=key_of, scope="shop", keeps_result=True)(
        lambda message: "x" * STORED_RESULT_BYTES_MAX
    )

    with pytest.raises(LimitExceeded, match="stored result"):
        handle(order())

    assert not guard.rows


def test_a_different_body_with_the_same_key_is_refused(guard):
    calls = []
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: calls.append(message))
    handle(order(body=b"tea"))

    with pytest.raises(KeyConflict, match="shop has used this key before"):
        handle(order(body=b"milk"))

    assert len(calls) == 1


@pytest.mark.parametrize("body", [None, 17, ["tea"]])
def test_a_body_that_is_neither_bytes_nor_text_is_not_compared(guard, body):
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: None)
    handle(order(body=body))

    handle(order(body=["another"]))

    assert [payload for _, _, payload in guard.seen] == [None, None]


def test_a_payload_that_is_neither_bytes_nor_text_is_refused_by_name(guard):
    handle = idempotent(guard, key=key_of, payload=lambda message: message, scope="shop")

    with pytest.raises(UsageError, match="payload= of shop must return bytes or text"):
        handle(lambda message: None)(order())


def test_a_custom_payload_is_compared(guard):
    handle = idempotent(
        guard, key=lambda key, amount: key, payload=lambda key, amount: str(amount), scope="shop"
    )(lambda key, amount: None)
    handle("a", 100)

    with pytest.raises(KeyConflict):
        handle("a", amount=200)
    handle(key="a", amount=100)


def test_a_call_during_another_with_the_same_key_is_refused(guard):
    @idempotent(guard, key=key_of, scope="shop")
    def handle(message):
        with pytest.raises(KeyInProgress, match="shop is at work"):
            handle(message)

    handle(order())


def test_a_function_that_raises_leaves_the_key_free(guard):
    calls = []

    @idempotent(guard, key=key_of)
    def handle(message):
        calls.append(message)
        if len(calls) == 1:
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        handle(order())
    handle(order())
    handle(order())

    assert len(calls) == 2


def test_a_function_that_is_cancelled_leaves_the_key_free(awaited):
    begun = []

    @idempotent(awaited, key=key_of)
    async def handle(message):
        begun.append(message)
        await asyncio.sleep(0 if len(begun) > 1 else 3600)

    async def story():
        task = asyncio.create_task(handle(order()))
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await handle(order())
        await handle(order())

    asyncio.run(story())
    assert len(begun) == 2


def test_a_function_that_returns_later_leaves_the_key_free(guard):
    said = [Later(level=3), None, None]
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: said.pop(0))

    assert handle(order()) == Later(level=3)
    assert handle(order()) is None
    assert handle(order()) is None
    assert len(said) == 1


def test_a_function_that_returns_the_class_later_leaves_the_key_free(guard):
    said = [Later, None]
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: said.pop(0))

    assert handle(order()) == Later()
    assert not guard.rows
    handle(order())
    assert not said


def test_a_batch_returned_in_part_is_redelivered_whole(guard):
    handle = idempotent(guard, key=key_of, scope="shop")(lambda batch: Later(level=3, first=2))

    assert handle(order()) == Later(level=3)
    assert not guard.rows


def test_an_async_function_that_returns_later_leaves_the_key_free(awaited):
    said = [Later(level=3), None, None]

    @idempotent(awaited, key=key_of)
    async def handle(message):
        return said.pop(0)

    async def story():
        return [await handle(order()) for _ in range(3)]

    assert asyncio.run(story()) == [Later(level=3), None, None]
    assert len(said) == 1


@pytest.mark.parametrize("failures", [1, 2])
def test_a_call_rolled_back_by_a_serialization_failure_is_retried_at_once(guard, failures):
    calls = []

    @idempotent(guard, key=key_of)
    def handle(message):
        calls.append(message)
        if len(calls) <= failures:
            raise Locked

    handle(order())

    assert len(calls) == failures + 1


def test_serialization_failures_are_retried_a_limited_number_of_times(guard):
    calls = []

    @idempotent(guard, key=key_of)
    def handle(message):
        calls.append(message)
        raise Locked

    with pytest.raises(Locked):
        handle(order())

    assert len(calls) == 3
    assert not guard.rows


def test_the_session_of_the_guard_is_the_first_argument():
    guard = MemoryGuard(has_session=True)

    @idempotent(guard, key=lambda message, *, at: message.key)
    def handle(session, message, *, at):
        session.append((message.key, at))
        return session

    assert handle(order(), at=9) == [("order-1", 9)]


def test_the_signature_of_a_guarded_function_hides_the_session():
    guard = MemoryGuard(has_session=True)

    @idempotent(guard, key=key_of)
    def handle(session: list[str], message: SimpleNamespace, at: int = 0) -> str:
        """Handle it."""

    assert str(inspect.signature(handle)).startswith("(message: ")
    assert list(typing.get_type_hints(handle)) == ["message", "at", "return"]
    assert handle.__doc__ == "Handle it."
    assert handle.__idempotent__.function is inspect.unwrap(handle)


def test_a_scope_is_the_functions_own_name_unless_it_is_given(guard):
    def handle(message):
        """Nothing."""

    idempotent(guard, key=key_of)(handle)(order())
    idempotent(guard, key=key_of, scope="billing")(handle)(order())

    here = f"{__name__}.test_a_scope_is_the_functions_own_name_unless_it_is_given"
    assert [scope for scope, _, _ in guard.seen] == [f"{here}.<locals>.handle", "billing"]


class Handler:
    """An object that is called."""

    def __init__(self, *said):
        self.said = said

    def __call__(self, message):
        return message

    def handle(self, session, message):
        session.append(message.key)
        return [*session, *self.said]


class Awaited(Handler):
    async def __call__(self, message):
        return [*self.said, message.key]


def _(message):
    """Nothing."""


@pytest.mark.parametrize("function", [partial(key_of), Handler(), lambda message: None, _])
def test_a_function_without_a_name_of_its_own_needs_a_scope(guard, function):
    with pytest.raises(ConfigError, match="pass a scope"):
        idempotent(guard, key=key_of)(function)

    idempotent(guard, key=key_of, scope="billing")(function)(order())


PROGRAM = """
from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.idempotent import idempotent

@idempotent(MemoryGuard(), key=str)
def handle(message):
    pass

scope = handle.__idempotent__.scope
"""


@pytest.mark.parametrize("name", ["__main__", "__mp_main__", "billing"])
def test_the_scope_of_a_program_is_the_same_however_it_was_started(tmp_path, monkeypatch, name):
    program = tmp_path / "billing.py"
    program.write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)

    assert runpy.run_path(str(program), run_name=name)["scope"] == "billing.handle"
    assert runpy.run_module("billing", run_name=name, alter_sys=True)["scope"] == "billing.handle"


def test_a_bound_method_gets_the_session_first():
    guard, handler = MemoryGuard(has_session=True), Handler("a receipt")

    assert idempotent(guard, key=key_of)(handler.handle)(order()) == ["order-1", "a receipt"]


@pytest.mark.parametrize("has_session", [True, False])
def test_a_method_gets_its_object_and_its_key_function_does_not(has_session):
    guard, given = MemoryGuard(has_session=has_session), []

    class Desk:
        @idempotent(guard, key=key_of, payload=lambda message: message.body)
        def bill(self, *rest):
            given.append((self, *rest))

    desk, message = Desk(), order()
    desk.bill(message)
    desk.bill(message)

    assert given == [(desk, [], message) if has_session else (desk, message)]
    assert [(key, payload) for _, key, payload in guard.seen] == [("order-1", b"tea")] * 2


def test_an_async_method_gets_its_object_and_its_signature_hides_the_session(awaited):
    awaited.has_session = True

    class Desk:
        @idempotent(awaited, key=key_of)
        async def bill(self, session, message: str):
            return [self, session, message.key]

    desk = Desk()

    assert asyncio.run(desk.bill(order())) == [desk, [], "order-1"]
    assert str(inspect.signature(desk.bill)) == "(message: str)"


def test_a_method_without_a_parameter_for_the_session_is_refused():
    with pytest.raises(ConfigError, match="add a parameter after self"):
        idempotent(MemoryGuard(has_session=True), key=key_of)(Handler.__str__)


def test_an_object_with_an_async_call_can_be_guarded(awaited):
    handle = idempotent(awaited, key=key_of, scope="shop")(Awaited("a receipt"))

    assert asyncio.run(handle(order())) == ["a receipt", "order-1"]


def test_the_signature_of_a_function_with_variable_arguments_is_kept():
    handle = idempotent(MemoryGuard(has_session=True), key=key_of, scope="shop")(
        lambda *given: len(given)
    )

    assert str(inspect.signature(handle)) == "(*given)"
    assert handle(order()) == 2


def test_a_function_can_be_moved_to_another_guard(guard):
    calls = []
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: calls.append(message))
    other = MemoryGuard()

    again = handle.__idempotent__.under(other)
    again(order())
    again(order())

    assert len(calls) == 1
    assert not guard.seen
    assert other.seen[0] == ("shop", "order-1", b"tea")


async def awaits(message):
    """Nothing."""


def yields(message):
    yield message


async def yields_awaited(message):
    yield message


def takes_nothing():
    """Nothing."""


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        (awaits, {}, "an asyncio source"),
        (key_of, {"is_blocking": False}, "a blocking source"),
        (yields, {}, "generator function"),
        (yields_awaited, {"is_blocking": False}, "generator function"),
        (takes_nothing, {"has_session": True}, "takes no session"),
    ],
)
def test_a_guard_that_does_not_fit_is_refused_at_once(function, settings, words):
    with pytest.raises(ConfigError, match=words):
        idempotent(MemoryGuard(**settings), key=key_of)(function)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (lambda: "k", r"bill is called with \(message, at=None\).*its key .*takes \(\)"),
        (lambda session, order, at: order, r"but takes \(session, order, at\)"),
        (lambda *, order: order, r"but takes \(\*, order\)"),
        ("key", "the key of .*bill must be a function of its arguments, not 'key'"),
    ],
)
def test_a_key_function_that_fits_no_call_is_refused_when_it_decorates(key, words):
    def bill(session, message, at=None):
        """Never called."""

    with pytest.raises(ConfigError, match=words):
        idempotent(MemoryGuard(has_session=True), key=key)(bill)
    with pytest.raises(ConfigError, match="payload"):
        idempotent(MemoryGuard(has_session=True), key=key_of, payload=key)(bill)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        (lambda message: "k", ["m"]),
        (lambda message, at: "k", ["m", 1]),
        (lambda *given, **named: "k", ["m", 1]),
        (str, ["k"]),
    ],
)
def test_a_key_function_that_fits_some_call_is_accepted(key, given):
    def bill(session, message, at=None, *, by=None):
        return "billed"

    guard = MemoryGuard(has_session=True)

    assert idempotent(guard, key=key)(bill)(*given) == "billed"


def test_an_object_that_is_not_a_guard_is_refused():
    with pytest.raises(ConfigError, match="is not a guard"):
        idempotent(sqlite3, key=key_of)(key_of)


def test_a_plain_function_that_returns_a_coroutine_is_refused(guard):
    handle = idempotent(guard, key=key_of, scope="shop")(lambda message: awaits(message))

    with pytest.raises(UsageError, match="its work was not done"):
        handle(order())

    assert not guard.rows


def test_an_attempt_has_a_verdict_and_the_kept_result(guard):
    with guard.attempt("a") as first:
        first.keep([1])
        assert first.verdict is Verdict.FIRST
    with guard.attempt("a") as again:
        assert again.verdict is Verdict.DONE
        assert again.result == [1]
        with pytest.raises(UsageError, match="only with FIRST"):
            again.keep([2])


def test_an_attempt_entered_with_the_wrong_kind_of_with_is_refused(guard, awaited):
    async def wrongly():
        async with guard.attempt("a"):
            """Nothing."""

    with pytest.raises(UsageError, match="`with`"):
        asyncio.run(wrongly())
    with pytest.raises(UsageError, match="`async with`"), awaited.attempt("a"):
        """Nothing."""
