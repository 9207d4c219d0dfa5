"""What a manager refuses, and what it reports when it is cancelled, closed or interrupted."""

import asyncio
import contextlib
import threading

import pytest
from sqlalchemy import create_engine

from tests.integration.manager.manager_stage import (
    COMMITTED,
    GROUP,
    MESSAGE,
    NOT_KNOWN,
    TOPIC,
    Order,
    Refusal,
    cancelled,
    take,
    take_plainly,
    until,
)
from tests.running import run_by
from txmq import MessageTemplate, TransactionManager, blocking
from txmq.errors import (
    ConfigError,
    Effect,
    LimitExceeded,
    LocalProtocolError,
    OutcomeUnknown,
    RequestTimeout,
    TransactionConflict,
    TransactionExpired,
    UsageError,
)
from txmq.transaction.ends import EndAnswer
from txmq.transaction.state import EndReply, LocalTransactionState

ORDER = Order("o-1", 30)


def told_later(tm):
    """Hold back the ENDs of a manager; returns their states, and the event that lets them go."""
    ends, said, may_go = tm._producer._context.ends, [], asyncio.Event()
    send = ends.send

    async def waiting(half, state):
        said.append(state)
        await may_go.wait()
        return await send(half, state)

    ends.send = waiting
    return said, may_go


@run_by("on_stage")
async def test_cancelling_after_a_retry_sends_only_the_decision_of_the_last_attempt(stage, /):
    """The state between the attempts must not be sent in addition to the result of the last one."""
    resource, attempts = stage.resource(), []
    resource.may_retry = lambda problem: isinstance(problem, Refusal)

    async def at_the_second(session, order):
        attempts.append(order)
        await take(session, order)
        if len(attempts) == 1:
            raise Refusal

    async with stage.manager(resource) as tm:
        said, may_go = told_later(tm)
        running = asyncio.ensure_future(tm.transactional(topic=TOPIC)(at_the_second)(ORDER))
        await until(lambda: said)
        await cancelled(running)
        await asyncio.sleep(0)  # A second decision would have begun by now.
        may_go.set()
    assert said == [LocalTransactionState.COMMIT]
    assert stage.bank.balance == 70
    assert len(await stage.visible()) == 1


@run_by("on_stage")
async def test_cancelling_between_two_attempts_rolls_back_at_once(stage, /):
    resource, tried = stage.resource(), asyncio.Event()
    resource.may_retry = lambda problem: True

    async def never(session, order):
        await take(session, order)
        tried.set()
        raise Refusal

    async with stage.manager(resource, local_attempts=1000) as tm:
        running = asyncio.ensure_future(tm.transactional(topic=TOPIC)(never)(ORDER))
        await tried.wait()
        await cancelled(running)
    assert (tm.tally.rolled_back, tm.tally.unknown) == (1, 0)
    assert await stage.open() == []


class Forgotten:
    """A local transaction that is too old to begin: its outcome is unknown."""

    state = LocalTransactionState.UNKNOWN

    def __init__(self, *given):
        pass

    def __enter__(self):
        raise TransactionExpired("too old")

    def __exit__(self, *problem):
        pass

    async def __aenter__(self):
        self.__enter__()

    async def __aexit__(self, *problem):
        pass


@run_by("on_stage")
async def test_an_async_block_that_cannot_begin_raises_the_cause(stage, /):
    resource = stage.resource()
    async with stage.manager(resource) as tm:
        resource.local = Forgotten
        with pytest.raises(TransactionExpired, match="too old"):
            async with tm.transaction(MESSAGE):
                raise AssertionError("never gets here")
        assert tm.tally.unknown == 1


def test_a_blocking_block_that_cannot_begin_raises_the_cause(blocked):
    tm, resource = blocked
    resource.local = Forgotten
    with pytest.raises(TransactionExpired, match="too old"), tm.transaction(MESSAGE):
        raise AssertionError("never gets here")


def test_ctrl_c_just_after_a_block_has_begun_leaves_the_decision_to_a_check(blocked, bank):
    tm, _ = blocked
    wait, interrupted = tm._background.wait, []

    def interrupting(work, *more):
        result = wait(work, *more)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return result

    tm._background.wait = interrupting
    with pytest.raises(KeyboardInterrupt), tm.transaction(MESSAGE):
        raise AssertionError("never gets here")
    pause = threading.Event()
    while not tm.tally.checks_rolled_back:
        pause.wait(0.02)
    assert bank.balance == 100


@pytest.mark.parametrize("is_committed", [True, False])
@run_by("on_stage")
async def test_a_block_that_outlives_its_manager_reports_its_outcome(stage, /, is_committed):
    tm = stage.manager(stop_timeout=0.0)
    await tm.__aenter__()
    block = tm.transaction(MESSAGE)
    async with contextlib.AsyncExitStack() as at_last:
        if not is_committed:
            at_last.enter_context(pytest.raises(Refusal))
        async with block as transaction:
            await take(transaction.session, ORDER)
            await tm.__aexit__(None, None, None)
            if not is_committed:
                raise Refusal
        outcome = transaction.outcome
        assert (outcome.state, outcome.is_acknowledged) == (COMMITTED, False)
    assert stage.bank.balance == (70 if is_committed else 100)
    async with stage.manager():
        await stage.until_settled()
    assert len(await stage.visible()) == is_committed


@run_by("on_stage")
async def test_a_function_queued_when_its_manager_closes_is_reported_as_maybe_committed(stage, /):
    gate, begun, taken = threading.Event(), threading.Event(), []

    def slow(session, order):
        taken.append(order.id)
        begun.set()
        gate.wait(15)

    async with stage.manager(
        stage.resource(is_blocking=True), local_threads=1, stop_timeout=0.0
    ) as tm:
        function = tm.transactional(topic=TOPIC)(slow)
        both = [asyncio.ensure_future(function(Order(name, 30))) for name in "ab"]
        await until(begun.is_set)
        await until(lambda: len(tm._producer._context.undecided) == 2)
        await tm.__aexit__(None, None, None)
        assert (await both[0]).state is NOT_KNOWN
        with pytest.raises(OutcomeUnknown, match="closed before") as caught:
            await both[1]
        assert caught.value.effect is Effect.MAYBE
        gate.set()
        await until(
            lambda: f"txmq-{GROUP}-local-1" not in [thread.name for thread in threading.enumerate()]
        )


@run_by("on_stage")
async def test_a_conflict_keeps_the_original_exception_in_a_note(stage, /):
    async def refused(session, order):
        raise Refusal("no")

    async with stage.manager() as tm:

        async def contrary(half, state):
            return EndAnswer(EndReply.COMMITTED)

        ends = tm._producer._context.ends
        ends.send = contrary
        with pytest.raises(TransactionConflict) as raised:
            await tm.transactional(topic=TOPIC)(refused)(ORDER)
        assert "Refusal('no')" in raised.value.__notes__[0]
        with pytest.raises(TransactionConflict) as raised:
            async with tm.transaction(MESSAGE):
                raise Refusal("block")
        assert "Refusal('block')" in raised.value.__notes__[0]


@run_by("on_stage")
async def test_nested_transactions_in_child_tasks_and_threads_are_refused(stage, /):
    async with stage.manager() as tm:
        inner = tm.transactional(topic=TOPIC)(take)

        async def in_a_task(session, order):
            async with asyncio.TaskGroup() as group:
                group.create_task(inner(order))

        async def in_a_thread(session, order):
            await asyncio.to_thread(asyncio.run, inner(order))

        for outer, error in ((in_a_task, ExceptionGroup), (in_a_thread, UsageError)):
            with pytest.raises(error) as raised:
                await tm.transactional(topic=TOPIC)(outer)(ORDER)
            problem = getattr(raised.value, "exceptions", [raised.value])[0]
            assert "cannot be nested" in str(problem)
        assert tm.tally.rolled_back == 2
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


def test_nested_transactions_in_threads_of_a_blocking_function_are_refused(blocked, bank):
    tm, _ = blocked
    inner = tm.transactional(topic=TOPIC)(take_plainly)

    @tm.transactional(topic=TOPIC)
    def outer(session, order):
        asyncio.run(asyncio.to_thread(inner, order))

    with pytest.raises(UsageError, match="cannot be nested"):
        outer(ORDER)
    assert bank.balance == 100


@pytest.mark.parametrize("is_late", [False, True])
@run_by("on_stage")
async def test_a_function_that_makes_several_messages_is_refused(stage, /, is_late):
    several = [MESSAGE, MESSAGE]
    made_from = "result" if is_late else "arguments"

    async def returned(session, order):
        await take(session, order)
        return several

    async with stage.manager() as tm:
        for parts in (
            {"body": lambda _: several},
            {"body": lambda _: MESSAGE},
            {"body": lambda _: {"first": MESSAGE}},
            {"topic": lambda _: several},
            {"topic": lambda _: [TOPIC, TOPIC]},
        ):
            given = {"topic": TOPIC, "made_from": made_from, **parts}
            with pytest.raises(LocalProtocolError, match=r"holds a Message|is not a string"):
                await tm.transactional(**given)(returned)(ORDER)
        function = tm.transactional(topic=TOPIC, made_from=made_from)(returned)
        with pytest.raises(LocalProtocolError, match="holds a Message: give its parts"):
            await function(ORDER if is_late else several)
        with pytest.raises(UsageError, match="give a MessageTemplate for each"):
            tm.transactional(topic=TOPIC, made_from=made_from)(function)
        with pytest.raises(
            UsageError, match=r"give several messages as MessageTemplate\(...\) each"
        ):
            tm.transactional(topic=[TOPIC, TOPIC], made_from=made_from)(returned)
    assert stage.bank.balance == 100
    assert await stage.visible() == await stage.open() == []


@run_by("on_stage")
async def test_a_list_or_no_message_at_all_is_refused_by_a_block(stage, /):
    async with stage.manager() as tm:
        with pytest.raises(LocalProtocolError, match="sends Messages, not a list"):
            async with tm.transaction([MESSAGE, MESSAGE]):
                raise AssertionError("never gets here")
        with pytest.raises(UsageError, match="needs a message before its block begins"):
            async with tm.transaction():
                raise AssertionError("never gets here")
    assert await stage.open() == []


def test_a_list_of_messages_is_refused_by_the_blocking_manager(blocked):
    tm, _ = blocked
    with (
        pytest.raises(LocalProtocolError, match="sends Messages, not a list"),
        tm.transaction([MESSAGE, MESSAGE]),
    ):
        raise AssertionError("never gets here")
    with pytest.raises(LocalProtocolError, match="holds a Message"):
        tm.transactional(topic=TOPIC)(take_plainly)([MESSAGE])


@run_by("on_stage")
async def test_templates_and_parts_of_a_single_message_are_not_mixed(stage, /):
    tm, template = stage.manager(), MessageTemplate(topic=TOPIC)
    with pytest.raises(UsageError, match="in each MessageTemplate"):
        tm.transactional(template, topic=TOPIC)
    with pytest.raises(UsageError, match="in each MessageTemplate"):
        tm.transactional(template, keys="k")
    with pytest.raises(UsageError, match="give its topic, or MessageTemplates"):
        tm.transactional()
    with pytest.raises(UsageError, match="'transfer' is not a MessageTemplate"):
        tm.transactional(TOPIC)
    with pytest.raises(LimitExceeded, match="at most 64, not 65"):
        tm.transactional(*[template] * 65)


def test_generators_and_functions_that_return_a_coroutine_are_refused(blocked, bank):
    tm, _ = blocked

    def generated(session, order):
        yield take_plainly(session, order)

    with pytest.raises(UsageError, match="generated is a generator"):
        tm.transactional(topic=TOPIC)(generated)

    async def later():
        raise AssertionError("never gets here")

    @tm.transactional(topic=TOPIC)
    def promised(session, order):
        take_plainly(session, order)
        return later()

    with pytest.raises(UsageError, match="which nothing awaits"):
        promised(ORDER)
    assert bank.balance == 100


@run_by("on_stage")
async def test_a_function_without_a_session_parameter_is_refused(stage, /):
    async def bare():
        raise AssertionError("never gets here")

    async def named(*, order):
        raise AssertionError("never gets here")

    async def open_to_all(*given):
        return await take(*given)

    async with stage.manager() as tm:
        for function in (bare, named):
            with pytest.raises(UsageError, match="takes no session: its .* must be one"):
                tm.transactional(topic=TOPIC)(function)
        outcome = await tm.transactional(topic=TOPIC)(open_to_all)(ORDER)
    assert outcome.state is COMMITTED
    assert stage.bank.balance == 70


@run_by("on_stage")
async def test_calling_through_a_manager_that_is_not_open_is_refused(stage, /):
    tm = stage.manager()
    transfer_out = tm.transactional(topic=TOPIC)(take)
    with pytest.raises(UsageError, match="this manager is not open; use it with 'async with'"):
        await transfer_out(ORDER)
    async with tm:
        await transfer_out(ORDER)
    with pytest.raises(UsageError, match="this manager is not open"):
        await transfer_out(ORDER)


@pytest.mark.parametrize("manager", [TransactionManager, blocking.TransactionManager])
def test_an_engine_in_place_of_a_resource_is_refused(manager):
    with pytest.raises(ConfigError, match=r"a resource, such as SQLResource\(engine\), not Engine"):
        manager(GROUP, "127.0.0.1:9", create_engine("sqlite://"))


@run_by("on_stage")
async def test_a_failed_half_message_notes_whether_it_may_be_stored(stage, /):
    async with stage.manager() as tm:
        with pytest.raises(LocalProtocolError) as refused:
            await tm.transactional(topic="no topic")(take)(ORDER)

        async def lost(*_):
            raise RequestTimeout("127.0.0.1:9", 3.0)

        tm._producer._sender.send_half = lost
        with pytest.raises(RequestTimeout) as doubtful:
            await tm.transactional(topic=TOPIC)(take)(ORDER)
    (note,) = refused.value.__notes__
    assert note.endswith(": it is not stored, and nothing is committed")
    (note,) = doubtful.value.__notes__
    assert note.endswith(": if it is stored, the broker will ask; nothing is committed")
    assert stage.bank.balance == 100
