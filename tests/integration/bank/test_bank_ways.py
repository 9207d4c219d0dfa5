"""Transfers from bank to bank over a real broker, by the API: every refusal, every return,
repeated orders, and unknown outcomes.
"""

import asyncio
import logging
import os

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank_transfer.booking import debit
from examples.bank_transfer.books import CLEARING, Kind, State
from examples.bank_transfer.ccb import GROUP as CREDITS
from examples.bank_transfer.databases import create_books
from examples.bank_transfer.icbc import GROUP as SETTLES
from examples.bank_transfer.orders import (
    ADVICES,
    AMOUNT_MAX,
    DAY_MAX,
    TRANSFERS,
    Advice,
    Outcome,
)
from examples.bank_transfer.steps import NINE
from tests.integration.bank.books_stage import DAY_MS, sqlite_in
from tests.integration.bank.ways_stage import (
    BALANCE,
    PATIENCE_S,
    Banks,
    broker_settings,
    order,
    stage,
)
from tests.running import run_by
from tests.servers.serving import BrokerProcess
from txmq.runtime.clock import SystemClock

SOAK = bool(os.environ.get("TXMQ_SOAK"))
AT_ONCE = 64 if SOAK else 8
RACES = 30 if SOAK else 2
FIRST_START_SECONDS = 300

AT_COMMIT = """
CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {} RETURN NEW; END';
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION at_commit()
"""
DIE = "PERFORM pg_terminate_backend(pg_backend_pid());"
FAIL = "RAISE EXCEPTION ''who knows'' USING ERRCODE = ''XX000'';"

on_both = pytest.mark.parametrize("kind", ["sqlite", "postgres"])
on_postgres = pytest.mark.parametrize("kind", ["postgres"])
pytestmark = [] if SOAK else [pytest.mark.timeout(FIRST_START_SECONDS)]


@pytest.fixture
def kind():
    """Which databases, unless a test says so."""
    return "sqlite"


@pytest.fixture(scope="module")
def postgres_urls(postgres):
    """Two databases for all tests, which empty them."""
    with postgres.database() as icbc, postgres.database() as ccb:
        urls = [url.render_as_string(hide_password=False) for url in (icbc, ccb)]
        for url in urls:
            create_books(url)
        yield urls


@pytest.fixture
def urls(kind, tmp_path, request):
    """Two databases with empty books."""
    if kind == "sqlite":
        return [sqlite_in(tmp_path, name) for name in ("icbc", "ccb")]
    return request.getfixturevalue("postgres_urls")


@pytest.fixture
def play(urls):
    """Runs what a test does with two banks, and sees afterwards that all books are right."""

    def play(work, settings=None):
        async def played():
            async with stage(urls, settings) as banks:
                await work(banks)
                assert banks.faults() == []

        asyncio.run(played())

    return play


def ways(kind):
    return ["half", "outbox", *(["xa"] if kind == "postgres" else [])]


# Refused, and sent back

REFUSED = [
    ({"payer": "A-9"}, "there is no such account: A-9"),
    ({"payer": "A-4"}, "the account is closed: A-4"),
    ({"payer": "A-3"}, "the account has another currency: A-3 is in EUR"),
    ({"currency": "EUR"}, "the account has another currency: A-1 is in CNY"),
    ({"amount": "10,000.01"}, "too little money: A-1 has less than 10,000.01 CNY"),
    ({"payer": "A-5"}, "over the limit: A-5 sends 20,000,000.00 CNY a day at most"),
]
SENT_BACK = [
    ({"payee": "B-9"}, "there is no such account: B-9"),
    ({"payee": "B-4"}, "the account is closed: B-4"),
    ({"payee": "B-3"}, "the account has another currency: B-3 is in EUR"),
]


@on_both
@run_by("play")
async def test_a_transfer_refused_by_icbc_stays_refused(banks, /, kind):
    tomorrow = SystemClock().wall_ms() // DAY_MS + 1
    banks.books["icbc"].change("A-5", sent_on=tomorrow, sent_today=DAY_MAX)
    before = banks.books["icbc"].balances()
    for way in ways(kind):
        for number, (change, words) in enumerate(REFUSED):
            asked = {"of": f"{way}-{number}", "way": way, **change}
            first = await banks.ask(**asked)
            assert first.status_code == 409, first.text
            assert first.json()["state"] == "refused"
            assert first.json()["reason"] == words
            assert (await banks.shown("icbc", asked["of"]))["reason"] == words
            # Even if it could be made by now.
            banks.books["icbc"].change("A-1", balance=BALANCE * 10)
            again = await banks.ask(**asked)
            banks.books["icbc"].change("A-1", balance=BALANCE)
            assert (again.status_code, again.json()) == (409, first.json())
    assert banks.books["icbc"].balances() == before
    assert set(banks.states("icbc").values()) == {State.REFUSED}
    assert banks.states("ccb") == {}


@run_by("play")
async def test_an_invalid_order_is_not_booked_and_its_id_stays_free(banks, /):
    for change in (
        {"amount": "0"},
        {"amount": "-1"},
        {"amount": "1e5"},
        {"amount": str(AMOUNT_MAX)},
        {"currency": "GBP"},
        {"payee": "b"},
        {"way": "xa"},
        {"way": "outbox", "drill": "TAGB"},
        {"way": "pigeon"},
        {"more": 1},
    ):
        answer = await banks.ask(**change)
        assert answer.status_code == 422, change
        assert answer.json()["problem"]
    assert banks.states("icbc") == {}

    assert (await banks.ask()).status_code == 201
    await banks.ended("t-1", "settled")


@on_both
@run_by("play")
async def test_a_transfer_that_ccb_cannot_credit_is_returned(banks, /, kind):
    for way in ("half", "outbox"):
        for number, (change, words) in enumerate(SENT_BACK):
            of = f"{way}-{number}"
            assert (await banks.ask(of, way=way, **change)).status_code == 201
            found = await banks.ended(of, "returned")
            assert found["reason"] == words
            assert (await banks.shown("ccb", of))["state"] == "returned"
            assert banks.balance("A-1") == BALANCE
            assert banks.journal("icbc", of) == {
                (Kind.DEBIT, "A-1"): -100_00, (Kind.DEBIT, CLEARING): 100_00,
                (Kind.RETURN, "A-1"): 100_00, (Kind.RETURN, CLEARING): -100_00,
            }  # fmt: skip
            assert banks.journal("ccb", of) == {}
            again = await banks.ask(of, way=way, **change)
            assert (again.status_code, again.json()["state"]) == (201, "returned")
    if kind == "postgres":
        for number, (change, words) in enumerate(SENT_BACK):
            answer = await banks.ask(f"xa-{number}", way="xa", **change)
            assert answer.status_code == 409
            assert answer.json()["reason"] == words


@run_by("play")
async def test_a_return_to_a_closed_payer_goes_to_the_unclaimed_account(banks, /, caplog):
    await banks.ask(payee="B-9", drill="TAGC")
    banks.books["icbc"].change("A-1", is_open=False)
    await banks.ended("t-1", "returned")

    assert banks.balance("A-1") == BALANCE - 100_00
    assert banks.journal("icbc", "t-1")[Kind.RETURN, "unclaimed"] == 100_00


# Twice


@on_both
@run_by("play")
async def test_repeated_orders_with_one_id_make_one_transfer(banks, /, kind):
    for way in ways(kind):
        of = f"{way}-1"
        first = await banks.ask(of, way=way)
        again = await banks.ask(of, way=way)
        assert first.status_code == again.status_code == 201
        assert first.json()["xid"] == again.json()["xid"]
        await banks.ended(of, "settled")
        for other in ({"amount": "100.01"}, {"payee": "B-2"}, {"payer": "A-2"}):
            answer = await banks.ask(of, way=way, **other)
            assert answer.status_code == 409
            assert answer.json() == {"problem": f"another transfer has this id: {of}"}
        assert banks.journal("icbc", of) == {
            (Kind.DEBIT, "A-1"): -100_00, (Kind.DEBIT, CLEARING): 100_00,
        }  # fmt: skip
        assert banks.journal("ccb", of) == {
            (Kind.CREDIT, "B-1"): 100_00, (Kind.CREDIT, CLEARING): -100_00,
        }  # fmt: skip
    assert banks.balance("A-1") == BALANCE - len(ways(kind)) * 100_00
    assert banks.balance("B-1") == BALANCE + len(ways(kind)) * 100_00


@on_both
@run_by("play")
async def test_concurrent_orders_with_one_id_make_one_debit_and_one_credit(banks, /, kind):
    for race in range(RACES):
        mixed = (ways(kind) * AT_ONCE)[race : race + AT_ONCE]
        answers = await asyncio.gather(*(banks.ask(f"t-{race}", way=way) for way in mixed))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["xid"] for answer in answers}) == 1
        await banks.ended(f"t-{race}", "settled")
        assert banks.balance("A-1") == BALANCE - (race + 1) * 100_00
        assert banks.balance("B-1") == BALANCE + (race + 1) * 100_00


@on_both
@run_by("play")
async def test_different_concurrent_orders_with_one_id_make_one_transfer(banks, /, kind):
    for race in range(RACES):
        payers = ["A-1", "A-2"] * (AT_ONCE // 2)
        asked = (
            banks.ask(f"t-{race}", payer, way=way)
            for payer, way in zip(payers, ways(kind) * AT_ONCE, strict=False)
        )
        answers = await asyncio.gather(*asked)
        told = {payer: set() for payer in payers}
        for payer, answer in zip(payers, answers, strict=True):
            told[payer].add(answer.status_code)
        assert sorted(told.values(), key=str) == [{201}, {409}]
        await banks.ended(f"t-{race}", "settled")
    left = banks.balance("A-1") + banks.balance("A-2")
    assert left == 2 * BALANCE - RACES * 100_00


@on_both
@run_by("play")
async def test_concurrent_orders_never_overdraw_an_account(banks, /, kind):
    asked = [
        banks.ask(f"t-{n}", amount="4,000.00", way=way)
        for n, way in zip(range(AT_ONCE), ways(kind) * AT_ONCE, strict=False)
    ]
    answers = await asyncio.gather(*asked)

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [201, 201, *[409] * (AT_ONCE - 2)]
    assert banks.balance("A-1") == 2_000_00
    for answer in answers:
        if answer.status_code == 201:
            await banks.ended(answer.json()["id"], "settled")
    assert banks.balance("B-1") == BALANCE + 8_000_00


@run_by("play")
async def test_forged_messages_change_nothing(banks, /):
    await banks.ask()
    await banks.ended("t-1", "settled")
    body = msgspec.json.encode(order())

    for _ in range(3):
        await banks.send(TRANSFERS, body, key="t-1")
    await banks.send_order(order(amount=999_00))
    forged = await banks.dead(CREDITS, 1)
    await banks.send_order(order(payee="B-2"), key="t-2")
    await banks.send(TRANSFERS, b"[" * 100_000, key="t-3")
    await banks.send_order(order("t-4", amount=10**30))
    await banks.send_order(order("t-5", payer="a\x00"))
    await banks.dead(CREDITS, 5)

    assert forged[0].body == msgspec.json.encode(order(amount=999_00))
    assert banks.balance("B-1") == BALANCE + 100_00
    assert banks.balance("B-2") == BALANCE
    assert banks.states("ccb") == {"t-1": State.CREDITED}


@run_by("play")
async def test_an_advice_about_an_unsent_transfer_changes_nothing(banks, /):
    assert (await banks.ask("t-1", amount="99,999")).status_code == 409
    advices = [
        Advice("t-9", Outcome.RETURNED),
        Advice("t-1", Outcome.RETURNED),
        Advice("t\x00", Outcome.CREDITED),
    ]
    for number, message in enumerate(advices):
        await banks.send(ADVICES, msgspec.json.encode(message), key=f"k-{number}", tags="RETURNED")
    await banks.send(ADVICES, b'{"id":' * 100_000, key="k-9", tags="CREDITED")

    dead = await banks.dead(SETTLES, len(advices) + 1)

    assert {message.keys[0] for message in dead} == {"k-0", "k-1", "k-2", "k-9"}
    assert banks.balance("A-1") == BALANCE
    assert banks.states("icbc") == {"t-1": State.REFUSED}


# Steps and drills


DRILLS = [("TAGA", 201, "COMMIT"), ("TAGB", 409, "ROLLBACK"), ("TAGC", 202, "UNKNOWN")]
STEPS = {"TAGA": 9, "TAGB": 10, "TAGC": 11}
"""With what happens within them: a problem of the local transaction, an answer to a check."""


def told(caplog, xid):
    """The numbers of the steps in the log."""
    return [
        record.step
        for record in caplog.records
        if getattr(record, "xid", "") == xid and hasattr(record, "step")
    ]


async def steps_of(banks, of):
    return (await banks.http["icbc"].get(f"/api/transfers/{of}/steps")).json()


@on_both
@run_by("play")
async def test_each_drill_shows_its_nine_steps(banks, /, caplog):
    caplog.set_level(logging.DEBUG, "txmq.transaction.story")
    for drill, status, said in DRILLS:
        answer = await banks.ask(drill, drill=drill)
        assert answer.status_code == status
        if drill == "TAGB":
            assert answer.json()["reason"] == (
                "the drill says so: the debit is written, and fails all the same"
            )
        else:
            await banks.ended(drill, "settled")
            assert told(caplog, answer.json()["xid"]) == list(range(1, 10))
        async with asyncio.timeout(PATIENCE_S):
            while len(steps := await steps_of(banks, drill)) < STEPS[drill]:
                await asyncio.sleep(0.01)
        nine = [step for step in steps if step["number"]]
        assert [step["number"] for step in nine] == list(range(1, len(NINE) + 1))
        assert all(said in step["text"] for step in nine[5:7])
        if drill == "TAGC":
            assert "will ask" in nine[7]["text"]
            assert steps[-1]["text"].endswith("was answered with COMMIT")
        else:
            assert said in nine[7]["text"]
    assert banks.balance("A-1") == BALANCE - 200_00
    assert banks.balance("B-1") == BALANCE + 200_00
    assert set(banks.states("ccb")) == {"TAGA", "TAGC"}


@run_by("play", broker_settings(asks_after_s=3600))
async def test_asking_again_does_not_hide_the_steps_taken(banks, /):
    await banks.ask()
    first = await steps_of(banks, "t-1")

    await banks.ask()
    await banks.ask(amount="5")

    assert len(first) == 9
    assert await steps_of(banks, "t-1") == first


# Nobody knows


@run_by("play", broker_settings(asks_after_s=3600))
async def test_asking_before_the_check_returns_the_state_in_the_books(banks, /):
    first = await banks.ask(drill="TAGC")
    assert (first.status_code, first.json()["state"]) == (202, "unknown")

    again = await banks.ask()

    assert (again.status_code, again.json()["state"]) == (201, "sent")
    assert again.json()["xid"] == first.json()["xid"]
    assert banks.balance("A-1") == BALANCE - 100_00
    assert banks.states("ccb") == {}
    # The books know it, and the broker does not: its check is still to come.
    assert (await banks.shown("icbc", "t-1"))["state"] == "sent"


@pytest.mark.parametrize("way", ["half", "outbox"])
@pytest.mark.parametrize("commit", [DIE, FAIL], ids=["lost", "strange"])
@on_postgres
@run_by("play")
async def test_a_commit_without_a_reply_is_unknown_until_the_order_is_repeated(
    banks, /, way, commit
):
    with banks.books["icbc"].looking.begin() as connection:
        connection.execute(text(AT_COMMIT.format(commit)))
    first = await banks.ask(way=way)
    assert first.status_code == 202, first.text
    assert (await banks.http["icbc"].get("/api/transfers/t-1")).status_code == 404
    with banks.books["icbc"].looking.begin() as connection:
        connection.execute(text("DROP FUNCTION at_commit CASCADE"))

    again = await banks.ask(way=way)

    assert again.status_code == 201, again.text
    await banks.ended("t-1", "settled")
    assert banks.balance("A-1") == BALANCE - 100_00
    assert banks.balance("B-1") == BALANCE + 100_00


@run_by("play")
async def test_a_request_cancelled_during_the_debit_is_not_booked(banks, /):
    asking = asyncio.create_task(banks.ask(drill="SLOW"))
    async with asyncio.timeout(PATIENCE_S):
        while not await steps_of(banks, "t-1"):
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    assert banks.states("icbc") == {}
    assert (await banks.ask()).status_code == 201
    await banks.ended("t-1", "settled")
    assert banks.balance("A-1") == BALANCE - 100_00


# No broker


@on_both
def test_without_a_broker_half_messages_are_refused_and_the_outbox_waits(kind, urls, tmp_path):
    broker = BrokerProcess(tmp_path / "broker", settings=["transaction.timeout=0.3s"])
    broker.start()

    async def work():
        async with Banks(*urls, broker.names) as banks:
            assert (await banks.ask("t-0")).status_code == 201
            await banks.ended("t-0", "settled")
            broker.kill()

            new = await banks.ask("t-1")
            known = await banks.ask("t-0")
            posted = await banks.ask("t-2", way="outbox")

            assert new.status_code == 503
            assert new.headers["retry-after"] == "1"
            assert "ask again with the same id" in new.json()["problem"]
            assert (known.status_code, known.json()["state"]) == (201, "settled")
            assert (posted.status_code, posted.json()["state"]) == (201, "sent")
            assert set(banks.states("icbc")) == {"t-0", "t-2"}
            assert banks.balance("A-1") == BALANCE - 200_00
            if kind == "postgres":
                assert (await banks.ask("t-3", way="xa")).status_code == 503
                assert set(banks.states("icbc")) == {"t-0", "t-2"}

            await asyncio.to_thread(broker.start)
            await banks.ended("t-2", "settled")
            async with asyncio.timeout(PATIENCE_S):
                while (again := await banks.ask("t-1")).status_code == 503:
                    await asyncio.sleep(0.05)
            assert again.status_code == 201
            await banks.ended("t-1", "settled")
            assert banks.balance("B-1") == BALANCE + 300_00
            assert banks.faults() == []

    try:
        asyncio.run(work())
    finally:
        broker.close()


# Locks


@on_postgres
@run_by("play")
async def test_asking_again_does_not_lock_the_account_while_the_transfer_ends(banks, /):
    """Otherwise the two would deadlock: one holds the transfer, the other the account."""
    books = banks.books["icbc"]
    await banks.ask(payee="B-9")
    await banks.ended("t-1", "returned")
    how = {"way": "half", "xid": "X", "state": State.SENT}

    async def ask_again(engine):
        async with AsyncSession(engine) as session:
            await debit(session, order(), 0, **how)

    async with books.engine() as engine, AsyncSession(engine) as ending:
        await ending.execute(text("UPDATE transfers SET reason = 'ending' WHERE id = 't-1'"))
        asking = asyncio.create_task(ask_again(engine))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not books.waiting():
                    await asyncio.sleep(0.01)
            await ending.execute(
                text("SELECT 1 FROM accounts WHERE number = 'A-1' FOR UPDATE NOWAIT")
            )
        finally:
            await ending.rollback()
            (said,) = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(said, IntegrityError)


@on_postgres
@run_by("play")
async def test_a_path_with_a_null_character_is_not_found(banks, /):
    for bank in ("icbc", "ccb"):
        for path in ("accounts/%00", "transfers/a%00"):
            assert (await banks.http[bank].get(f"/api/{path}")).status_code == 404
