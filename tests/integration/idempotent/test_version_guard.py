"""Versions of rows: in order, out of order, twice, at the same moment, and the first of them."""

import asyncio
import collections
import contextlib
import functools
import random
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.faults.one_connection import SMALL, is_prepared, small
from tests.integration.idempotent.shop_stage import SOAK, SOME, Account
from tests.integration.idempotent.test_guard_contract import until_it_is_done
from tests.integration.resources.resource_stage import ON_MARIADB, said
from tests.running import run_by
from txmq.databases.failures import Failure, failure
from txmq.databases.sources import adapter_of
from txmq.errors import ConfigError, UsageError, VersionGap
from txmq.idempotent.version import VersionGuard
from txmq.runtime.clock import SystemClock

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
LAST = 40 if SOAK else 12


class Story:
    """A guard over accounts, and a function behind it that writes down which versions it makes."""

    def __init__(self, shop, stage, **how):
        self.shop, self.stage = shop, stage
        self.guard = stage.guard = how.pop("guard", None) or stage.guard
        self.inserts = how.pop("inserts", insert)

    def function(self):
        async def works(session, key, version):
            if not await rows(session, f"SELECT 1 FROM account WHERE id = '{key}'"):
                await said(session, self.inserts(key, version))
            await said(session, f"INSERT INTO effects VALUES ('{key} {version}', 1)")

        return self.stage.behind(works, key=lambda *place: place)

    def function_of(self, key):
        function = self.function()
        if self.guard.is_blocking:
            return lambda version: function(key, version)

        async def awaited(version):
            return await function(key, version)

        return awaited

    async def comes(self, key, version):
        return await self.stage.call(self.function(), key, version)


def insert(key, version):
    return f"INSERT INTO account VALUES ('{key}', {version}, 0)"


async def rows(session, statement):
    found = (await said(session, statement)).fetchall()
    return await found if asyncio.iscoroutine(found) else found


def guarded(shop, story, kind=None, engine=None, **how):
    """Run a story with a guard made with these settings."""

    async def main():
        inserts = how.pop("inserts", insert)
        made = shop.adapter.make
        shop.adapter = shop.adapter._replace(
            make=lambda source, _: VersionGuard(source, how.pop("model", Account), **how)
        )
        try:
            async with shop.stage(kind, **(engine or {})) as stage:
                await story(Story(shop, stage, inserts=inserts))
        finally:
            shop.adapter = shop.adapter._replace(make=made)

    asyncio.run(main())


@pytest.fixture(params=SOME)
def bank(request, shop_of):
    return shop_of("version", request.param)


@pytest.fixture
def postgres_bank(shop_of):
    return shop_of("version", "postgres-async")


@pytest.fixture
def versions_on_bank(bank):
    """Runs a test with a guard made with its settings."""
    return functools.partial(guarded, bank)


@pytest.fixture
def versions_on_postgres(postgres_bank):
    """The same on PostgreSQL."""
    return functools.partial(guarded, postgres_bank)


def versions(bank):
    return dict(bank.order("SELECT id, version FROM account"))


@run_by("versions_on_bank")
async def test_versions_are_done_in_order_and_once(told, /, bank):
    for version in (1, 1, 2, 1, 2, 3, 3, 2):
        await told.comes("a", version)
    assert bank.effects == ["a 1", "a 2", "a 3"]
    assert versions(bank) == {"a": 3}


@pytest.mark.fault("M11")
@run_by("versions_on_bank", gaps="accept")
async def test_an_overtaken_version_is_dropped(told, /, bank):
    """Version 3 came, then version 2."""
    await told.comes("a", 3)
    await told.comes("a", 2)
    await told.comes("a", 5)
    assert bank.effects == ["a 3", "a 5"]
    assert versions(bank) == {"a": 5}


@run_by("versions_on_bank")
async def test_a_version_gap_raises_and_nothing_is_done(told, /, bank):
    with pytest.raises(VersionGap) as caught:
        await told.comes("a", 2)
    assert caught.value.retryable
    await told.comes("a", 1)
    with pytest.raises(VersionGap, match="is at 1"):
        await told.comes("a", 3)
    await told.comes("a", 2)
    await told.comes("a", 3)
    assert bank.effects == ["a 1", "a 2", "a 3"]


def test_waiting_for_a_version_gap_holds_no_connection(bank):
    engine = {} if bank.kind.startswith("psycopg") or "django" in bank.kind else {"pool_size": 1}

    async def story(told):
        late = [asyncio.ensure_future(told.comes("a", version)) for version in (4, 3, 2)]
        await asyncio.sleep(0.05)
        assert bank.effects == []
        await told.comes("a", 1)
        await asyncio.gather(*late)

    guarded(bank, story, gaps="wait", wait=30.0, engine=engine)

    assert versions(bank) == {"a": 4}
    assert len(bank.effects) == 4


@run_by("versions_on_bank", gaps="wait", wait=0.05)
async def test_a_version_gap_is_waited_for_only_until_the_limit(told, /, bank):
    await told.comes("a", 1)
    with pytest.raises(VersionGap):
        await told.comes("a", 3)
    assert bank.effects == ["a 1"]


@run_by("versions_on_bank")
async def test_shuffled_and_repeated_versions_are_each_done_once(told, /, bank):
    coming = [(key, version) for key in "ab" for version in range(1, LAST + 1)] * 3
    random.Random(7).shuffle(coming)
    queue = collections.deque(coming)

    async def works():
        while queue:
            place = queue.popleft()
            try:
                await until_it_is_done(told.stage, told.function(), *place)
            except VersionGap:
                queue.append(place)

    await asyncio.gather(*(works() for _ in range(8)))
    assert sorted(bank.effects) == sorted(
        f"{key} {version}" for key in "ab" for version in range(1, LAST + 1)
    )


NEW = [("postgres-async", level) for level in LEVELS]
NEW += [(kind, level) for kind in ON_MARIADB[:1] for level in LEVELS]
NEW += [("sqlite", "SERIALIZABLE"), ("postgres", "READ COMMITTED")]


@pytest.mark.parametrize(("kind", "level"), NEW)
def test_one_of_many_concurrent_first_versions_inserts_the_row(shop_of, kind, level):
    bank = shop_of("version", kind)

    async def story(told):
        for key in ("a", "b", "c"):
            callers = (until_it_is_done(told.stage, told.function_of(key), 1) for _ in range(8))
            await asyncio.gather(*callers)

    guarded(bank, story, engine={"isolation_level": level, "pool_size": 8})

    assert sorted(bank.effects) == ["a 1", "b 1", "c 1"]
    assert versions(bank) == {"a": 1, "b": 1, "c": 1}


def test_in_postgres_the_first_version_may_be_an_upsert(postgres_bank):
    """The row lock serializes the calls, where no key would collide."""

    def upsert(key, version):
        return f"{insert(key, version)} ON CONFLICT (id) DO UPDATE SET balance = 1"

    async def story(told):
        for key in ("a", "b", "c"):
            await asyncio.gather(*(told.comes(key, 1) for _ in range(8)))

    guarded(postgres_bank, story, inserts=upsert, engine={"pool_size": 8})

    assert postgres_bank.effects == ["a 1", "b 1", "c 1"]


@pytest.mark.parametrize("inserts", [lambda *_: "SELECT 1", lambda key, _: insert(key, 7)])
def test_a_function_that_does_not_insert_the_first_version_is_refused(bank, inserts):
    async def story(told):
        with pytest.raises(UsageError, match="must insert its row"):
            await told.comes("a", 1)

    guarded(bank, story, inserts=inserts)

    assert (bank.effects, versions(bank)) == ([], {})


def test_a_duplicate_of_another_row_at_the_first_version_is_raised_as_it_is(postgres_bank):
    postgres_bank.order(insert("taken", 1))
    calls = []

    def inserts(key, version):
        calls.append(key)
        return insert("taken", version)

    async def story(told):
        with pytest.raises(Exception) as caught:
            await told.comes("a", 1)
        assert failure(caught.value) is Failure.DUPLICATE

    guarded(postgres_bank, story, inserts=inserts)

    assert set(calls) == {"a"}
    assert postgres_bank.effects == []


@run_by("versions_on_bank", first=10)
async def test_new_rows_can_start_at_another_version(told, /, bank):
    for wrong in (9, 0):
        with pytest.raises(UsageError, match="from 10 on"):
            await told.comes("a", wrong)
    with pytest.raises(VersionGap):
        await told.comes("a", 11)
    await told.comes("a", 10)
    await told.comes("a", 11)
    assert versions(bank) == {"a": 11}


@run_by("versions_on_bank")
async def test_a_row_without_a_version_is_refused(told, /, bank):
    bank.order("INSERT INTO account VALUES ('a', NULL, 0)")
    with pytest.raises(UsageError, match="has no version"):
        await told.comes("a", 1)


@run_by("versions_on_postgres")
async def test_a_key_that_is_no_id_and_version_pair_is_refused(told, /):
    wrong = ["a", ("a",), ("a", "1"), ("a", 1.0), ("a", True), ("a", 0), (None, 1), ["a", 1]]
    for key in wrong:
        with pytest.raises(UsageError):
            told.guard.attempt(key)


class Base(DeclarativeBase):
    """Of other shapes of rows."""


class Hex(sa.TypeDecorator):
    """An id as a modern application may store it."""

    impl = sa.CHAR(32)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else value.hex


class Order(Base):
    """With a key of two columns, other names, and something that changes at each update."""

    __tablename__ = "orders_of_shop"
    shop: Mapped[int] = mapped_column("shop_no", primary_key=True)
    id: Mapped[uuid.UUID] = mapped_column(Hex, primary_key=True)
    revision: Mapped[int] = mapped_column("rev")
    changes: Mapped[str | None] = mapped_column(sa.String(20), onupdate=lambda: "at an update")


class Counted(Base):
    """A class whose mapper counts versions itself."""

    __tablename__ = "counted"
    id: Mapped[int] = mapped_column(primary_key=True)
    version = mapped_column(sa.Integer)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy's own way


ORDER = uuid.UUID(int=7)
SHAPES = [
    {"model": Order, "version": Order.revision},
    {"model": Order, "version": "revision", "key": ["shop", "id"]},
    {"model": Order.__table__, "version": "rev"},
    {"model": Order.__table__, "version": Order.__table__.c.rev, "key": [Order.shop, Order.id]},
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *[("postgres-async", shape) for shape in range(len(SHAPES))],
        *[(kind, 0) for kind in ["sqlite", "psycopg-pool", *ON_MARIADB[:1]]],
    ],
)
def test_rows_with_composite_keys_and_renamed_columns_are_guarded(shop_of, kind, shape):
    bank = shop_of("version", kind)
    Base.metadata.drop_all(bank.engine)
    Base.metadata.create_all(bank.engine)
    with bank.engine.begin() as connection:
        connection.execute(sa.insert(Order.__table__).values(shop_no=1, id=ORDER, rev=1))

    async def story(told):
        function = told.stage.behind(nothing, key=lambda *place: place)
        for version in (1, 2, 2, 3):
            await told.stage.call(function, (1, ORDER), version)
        with pytest.raises(VersionGap):
            await told.stage.call(function, (2, ORDER), 2)
        with pytest.raises(UsageError, match="not a key"):
            await told.stage.call(function, 1, 2)

    guarded(bank, story, **SHAPES[shape])

    assert bank.order("SELECT rev, changes FROM orders_of_shop") == [(3, None)]


async def nothing(session, *args):
    pass


WRONG = [
    ({"model": Account, "version": "revision"}, "not a column"),
    ({"model": Account, "key": "name"}, "not a column"),
    ({"model": Account, "key": Order.id}, "not a column|columns of account"),
    ({"model": object}, "neither a mapped class"),
    ({"model": 7}, "neither a mapped class"),
    ({"model": Counted}, "increments"),
    ({"model": Account, "gaps": "ignore"}, "gaps"),
    ({"model": Account, "first": 0}, "1 or more"),
    ({"model": Account, "key": []}, "key columns"),
]


@pytest.mark.parametrize(("how", "match"), WRONG)
def test_impossible_settings_are_refused_by_the_constructor(how, match):
    with pytest.raises(ConfigError, match=match):
        VersionGuard(sa.create_engine("sqlite:///unused.db"), **how)


class Hasty(SystemClock):
    """A clock that advances a second at each reading."""

    seconds = 0

    def monotonic(self):
        self.seconds += 1
        return self.seconds


@pytest.mark.parametrize("kind", SMALL)
def test_waiting_for_a_version_uses_a_prepared_statement(shop_of, kind):
    shop = shop_of("version", "postgres")

    async def story():
        async with contextlib.AsyncExitStack() as stack:
            source = await small(kind, shop.url, stack)
            guard = VersionGuard(source, Account, gaps="wait", wait=8.0, clock=Hasty())
            # It runs in this thread, where nothing else has to run.
            begun = guard.attempt(("a", 3)).begin()
            with pytest.raises(VersionGap):
                await begun
            return await stack.enter_async_context(is_prepared(adapter_of(source), "FROM account"))

    assert asyncio.run(story())
