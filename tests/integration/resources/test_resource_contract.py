"""The contract of all kinds of sources: one suite, run for each of them."""

import asyncio
import contextlib

import psycopg
import pytest
from django.db.transaction import TransactionManagementError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.integration.resources.resource_stage import (
    COMMIT,
    GROUP,
    KINDS,
    ON_MARIADB,
    ON_POSTGRES,
    ROLLBACK,
    UNKNOWN,
    insert,
    now_ms,
    said,
)
from tests.running import in_loop, run_by
from txmq.databases.canary import Canary
from txmq.errors import (
    CommittedBefore,
    FenceElsewhere,
    OutcomeUnknown,
    ResourceError,
    RolledBackByCheck,
    TransactionBroken,
    TransactionExpired,
    UsageError,
)

COMMITTED, ROLLED_BACK = 1, 2
UNSURE = [kind for kind in KINDS if kind not in (*ON_POSTGRES, "sqlite-django")]
"""Their drivers do not say how a transaction stands."""
FLUSHING = [kind for kind in ON_POSTGRES if not kind.startswith("psycopg") and "django" not in kind]
"""Their sessions keep objects back until a flush."""


class Base(DeclarativeBase):
    """The base of mapped classes."""


class Kept(Base):
    __tablename__ = "orders"
    xid: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


class Refused(Exception):
    """What an application raises."""


@run_by("on_bank")
async def test_checks_confirm_a_committed_local_transaction(stage, /, bank):
    assert await stage.order("x-1") is COMMIT
    assert [await stage.check("x-1") for _ in range(3)] == [COMMIT] * 3
    assert bank.fence == {"x-1": COMMITTED}
    assert bank.orders == {"x-1"}


@run_by("on_bank")
async def test_an_exception_rolls_back_rows_and_fence_and_is_raised(stage, /, bank):
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        raise Refused

    with pytest.raises(Refused):
        await stage.run(local, work)
    assert local.state is ROLLBACK
    assert (bank.fence, bank.orders) == ({}, set())


@pytest.mark.fault("P8")
@run_by("on_bank")
async def test_a_transaction_rolled_back_by_a_check_cannot_commit_later(stage, /, bank):
    """It is paused before the fence, ahead of its first statement."""
    assert [await stage.check("x-1") for _ in range(2)] == [ROLLBACK] * 2
    late = stage.begin("x-1")
    with pytest.raises(RolledBackByCheck):
        await stage.say(late, insert("x-1"))
    assert late.state is ROLLBACK
    assert await stage.check("x-1") is ROLLBACK
    assert bank.fence == {"x-1": ROLLED_BACK}
    assert bank.orders == set()


@pytest.mark.fault("P8")
@run_by("on_bank")
async def test_a_running_transaction_is_unknown_to_checks_and_may_still_commit(stage, /, bank):
    """It is paused behind the fence, with its row inserted."""
    local, found = stage.begin("x-1"), []

    async def work(session):
        await said(session, insert("x-1"))
        found.append(await stage.outside(stage.check("x-1")))

    await stage.run(local, work)
    assert found == [UNKNOWN]
    assert local.state is COMMIT
    assert await stage.check("x-1") is COMMIT
    assert bank.orders == {"x-1"}


@run_by("on_bank")
async def test_a_second_transaction_under_a_committed_id_is_refused(stage, /, bank):
    await stage.order("x-1")
    again = stage.begin("x-1")
    with pytest.raises(CommittedBefore):
        await stage.say(again, insert("x-1"))
    assert again.state is COMMIT
    assert bank.order("SELECT count(*) FROM orders") == [(1,)]


@run_by("on_bank")
async def test_another_group_can_neither_check_nor_repeat_a_transaction(stage, /):
    await stage.order("x-1")
    assert await stage.check("x-1", group="ccb") is UNKNOWN
    other = stage.begin("x-1", group="ccb")
    with pytest.raises(UsageError, match=GROUP):
        await stage.say(other, insert("x-1"))
    assert other.state is UNKNOWN


@run_by("on_bank")
async def test_a_check_of_another_fence_is_unknown(stage, /):
    assert await stage.check("x-1", identity="another") is UNKNOWN
    assert await stage.check("x-1", identity=stage.resource.identity) is ROLLBACK


@pytest.mark.fault("D4")
@run_by("on_bank")
async def test_a_changed_fence_identity_is_refused_and_checks_are_unknown(stage, /, bank):
    """After the start: a failover, a new search path, a table made anew."""
    bank.order("UPDATE txmq_fence_mark SET identity = 'another'")
    local = stage.begin("x-1")
    with pytest.raises(FenceElsewhere):
        await stage.say(local, insert("x-1"))
    assert await stage.check("x-2") is UNKNOWN
    assert (bank.fence, bank.orders) == ({}, set())


@run_by("on_bank")
async def test_a_swallowed_database_error_cannot_look_like_a_commit(stage, /, bank):
    local = stage.begin("x-1")

    async def work(session):
        with contextlib.suppress(Exception):
            await said(session, insert("x-1", amount=-1))

    if bank.kind.startswith(("sqlite", "mysql")):
        await stage.run(local, work)  # One failed statement, and the others stand.
        assert local.state is COMMIT
    else:
        with pytest.raises(TransactionBroken):
            await stage.run(local, work)
        assert local.state is ROLLBACK
        assert bank.fence == {}
    assert bank.orders == set()


async def plainly(bank, session):
    if bank.kind.startswith("psycopg") or bank.kind.endswith("django"):
        await said(session, "COMMIT")
    elif (done := session.commit()) is not None:
        await done


async def by_statement(bank, session):
    await said(session, "COMMIT")


async def by_the_way(bank, session):
    """In MariaDB a CREATE TABLE commits its transaction."""
    await said(session, "CREATE OR REPLACE TABLE made_meanwhile (id INTEGER)")


COMMITS = [
    *((kind, plainly, False, False) for kind in KINDS),
    *((kind, by_statement, says_more, True) for kind in KINDS for says_more in (False, True)),
    *((kind, by_statement, True, False) for kind in KINDS),
    *((kind, by_the_way, True, is_sorry) for kind in ON_MARIADB for is_sorry in (False, True)),
]


@pytest.mark.parametrize(("bank", "commits", "says_more", "is_sorry"), COMMITS, indirect=["bank"])
@run_by("on_bank")
async def test_a_commit_inside_the_function_is_unknown_and_not_rolled_back(
    stage, /, bank, commits, says_more, is_sorry
):
    """OutcomeUnknown is raised, unless the function raises itself; a check knows the outcome."""
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        await commits(bank, session)
        if says_more:
            await goes_on(bank, session, insert("late"))
        if is_sorry:
            raise Refused

    told = pytest.raises(OutcomeUnknown, match="ended inside")
    with pytest.raises(Refused) if is_sorry else told:
        await stage.run(local, work)
    assert local.state is UNKNOWN
    assert await stage.check("x-1") is COMMIT
    assert bank.orders == {"x-1"}


@pytest.mark.parametrize("end", ["ROLLBACK", "ROLLBACK AND CHAIN", "ABORT; BEGIN"])
@pytest.mark.parametrize("bank", ON_POSTGRES, indirect=True)
@run_by("on_bank")
async def test_rows_after_a_rollback_inside_are_not_committed_without_a_fence_row(
    stage, /, bank, end
):
    """I2: a check would find no row, and call rolled back what is there."""
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        await said(session, end)
        await goes_on(bank, session, insert("late"))

    with pytest.raises(ResourceError):
        await stage.run(local, work)
    assert local.state is not COMMIT
    assert await stage.check("x-1") is ROLLBACK
    assert bank.orders == set()


SETTINGS = [
    "RESET ALL",
    "SET default_transaction_read_only = off",
    "SET LOCAL default_transaction_read_only = off",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("bank", ON_POSTGRES, indirect=True)
@run_by("on_bank")
async def test_changing_a_session_setting_is_not_taken_for_an_end(stage, /, bank, setting):
    """Even a setting that the end of a transaction would reset."""
    local = stage.begin("x-1")
    await stage.say(local, setting, insert("x-1"))
    assert local.state is COMMIT
    assert bank.orders == {"x-1"}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("bank", ON_POSTGRES, indirect=True)
@run_by(in_loop)
async def test_a_commit_or_rollback_inside_is_detected_behind_a_pooler(bank, end, monkeypatch):
    monkeypatch.setattr(Canary, "_now", lambda _: "off")
    async with bank.stage() as stage:
        assert await stage.order("x-0") is COMMIT
        local = stage.begin("x-1")
        with pytest.raises(OutcomeUnknown, match="ended inside"):
            await stage.say(local, insert("x-1"), f"{end} AND CHAIN", insert("late"))
        assert local.state is UNKNOWN
        assert await stage.check("x-1") is (COMMIT if end == "COMMIT" else ROLLBACK)
    assert bank.orders == ({"x-0", "x-1"} if end == "COMMIT" else {"x-0"})


@pytest.mark.parametrize("bank", ON_POSTGRES, indirect=True)
@run_by("on_bank")
async def test_a_rollback_to_a_savepoint_is_not_taken_for_an_end(stage, /, bank):
    local = stage.begin("x-1")
    await stage.say(
        local, "SAVEPOINT here", insert("late"), "ROLLBACK TO SAVEPOINT here", insert("x-1")
    )
    assert local.state is COMMIT
    assert await stage.check("x-1") is COMMIT
    assert bank.orders == {"x-1"}


async def goes_on(bank, session, statement):
    """Run a statement after an end of the transaction; Django refuses it."""
    if bank.kind.endswith("django"):
        with contextlib.suppress(TransactionManagementError):
            await said(session, statement)
    else:
        await said(session, statement)


async def breaks(session):
    with contextlib.suppress(Exception):
        await said(session, insert("late", amount=-1))


async def keeps_back(session):
    session.add(Kept(xid="late", amount=-1))


async def defers(session):
    await said(session, insert("x-1"))
    await said(session, insert("late"))


@pytest.mark.parametrize(
    ("bank", "goes_wrong"),
    [
        (kind, goes_wrong)
        for kind in ON_POSTGRES
        for goes_wrong in (breaks, keeps_back, defers)
        if goes_wrong is not keeps_back or kind in FLUSHING
    ],
    indirect=["bank"],
)
@run_by(in_loop)
async def test_an_error_after_a_commit_inside_does_not_undo_it(bank, goes_wrong):
    """A swallowed error, a failed flush, a refused commit: none undoes the first commit."""
    bank.order("ALTER TABLE orders ADD UNIQUE (xid) DEFERRABLE INITIALLY DEFERRED")
    async with bank.stage() as stage:
        local = stage.begin("x-1")

        async def work(session):
            await said(session, insert("x-1"))
            await said(session, "COMMIT")
            with contextlib.suppress(TransactionManagementError):
                await goes_wrong(session)

        problems = (ResourceError, SQLAlchemyError, psycopg.Error)
        with pytest.raises(problems):
            await stage.run(local, work)
        assert local.state is UNKNOWN
        assert await stage.check("x-1") is COMMIT
    assert bank.orders == {"x-1"}


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("bank", UNSURE, indirect=True)
@run_by("on_bank")
async def test_rows_after_a_silent_rollback_are_not_committed(stage, /, bank, is_asked):
    """The statements after it would be a transaction of their own, without a fence."""
    local = stage.begin("x-1")

    async def work(session):
        await said(session, insert("x-1"))
        await said(session, "ROLLBACK")
        if is_asked:
            bank.order("INSERT INTO txmq_fence VALUES ('x-1', 2, 'icbc', 1)")
        await said(session, insert("x-1"))

    with pytest.raises(TransactionBroken):
        await stage.run(local, work)
    assert local.state is ROLLBACK
    assert await stage.check("x-1") is ROLLBACK
    assert bank.orders == set()


@run_by("on_bank")
async def test_with_and_async_with_must_match_the_source(stage, /):
    local = stage.begin("x-1")
    if stage.resource.is_blocking:
        with pytest.raises(UsageError):
            async with local:
                pass
    else:
        with pytest.raises(UsageError):
            local.__enter__()


@run_by("on_bank")
async def test_a_local_transaction_object_cannot_be_entered_twice(stage, /):
    local = stage.begin("x-1")
    await stage.say(local, insert("x-1"))
    with pytest.raises(UsageError):
        await stage.say(local, insert("x-1"))
    assert local.state is COMMIT


@run_by("on_bank")
async def test_cleaning_removes_rows_one_call_after_announcing_them(stage, /, bank):
    for number in range(7):
        await stage.order(f"x-{number}")
    day_ms = 86_400_000
    bank.order("UPDATE txmq_fence SET created_ms = created_ms - :age", age=3 * day_ms)
    await stage.order("young")

    removed = [await stage.resource.clean(86_400, batch=3) for _ in range(3)]

    assert removed == [0, 7, 0]
    assert set(bank.fence) == {"young"}
    assert await stage.check("young") is COMMIT


@run_by("on_bank")
async def test_a_transaction_older_than_the_cleaned_fence_is_unknown(stage, /, bank):
    old_ms = now_ms() - 3 * 86_400_000
    assert await stage.check("x-1", born_ms=old_ms) is ROLLBACK
    bank.order("UPDATE txmq_fence SET created_ms = :old", old=old_ms)
    await stage.resource.clean(86_400)
    assert await stage.check("x-1", born_ms=old_ms) is ROLLBACK
    assert await stage.resource.clean(86_400) == 1

    assert await stage.check("x-1", born_ms=old_ms) is UNKNOWN
    asleep = stage.begin("x-1", born_ms=old_ms)
    with pytest.raises(TransactionExpired):
        await stage.say(asleep, insert("x-1"))
    assert asleep.state is UNKNOWN
    assert (bank.fence, bank.orders) == ({}, set())


@run_by(in_loop)
async def test_a_check_restores_the_lock_timeout_of_its_connection(bank):
    """The next user of its connection waits for locks as long as before."""
    questions = {
        "sqlite": "PRAGMA busy_timeout",
        "mysql": "SELECT @@innodb_lock_wait_timeout",
    }
    question = questions.get(bank.kind.partition("-")[0], "SELECT current_setting('lock_timeout')")

    async with bank.stage() as stage:
        found = []

        async def look(session):
            result = await said(session, question)
            row = result.fetchone()
            found.append(tuple(await row if asyncio.iscoroutine(row) else row))

        await stage.run(stage.begin("x-1"), look)
        await stage.check("x-2")
        await stage.check("x-1")
        await stage.run(stage.begin("x-3"), look)
        assert found[0] == found[1]
