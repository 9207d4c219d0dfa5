"""This version opens what every released version left behind; `writer.py` says what that is."""

import asyncio
import re
from pathlib import Path

from sqlalchemy import text
from typer.testing import CliRunner

from tests.compatibility.conftest import ARCHIVES
from tests.compatibility.writer import BANK, seen_by
from tests.running import run_by
from tests.waiting import run, until
from txmq import Admin, LocalTransactionState, Message, Relay, SQLResource, TransactionManager
from txmq.cli.root import app
from txmq.client import Session
from txmq.idempotent import UniqueKeyTable, idempotent
from txmq.idempotent.unique_key import create_done
from txmq.outbox.table import create_outbox
from txmq.settings.units import Duration
from txmq.transaction.resources.schema import create_fence
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings, CheckBackSettings, RetentionSettings

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
FOREVER = Duration(10**9)
"""An archive may be opened years after it was written."""


def broker_on(data, check_s=3600):
    """A broker of this version on this directory."""
    free = "127.0.0.1:0"
    return Broker(
        BrokerSettings(
            data=data,
            listen=free,
            names_listen=free,
            retention=RetentionSettings(keep=FOREVER),
            transaction=CheckBackSettings(
                timeout=Duration(check_s), check_interval=Duration(check_s)
            ),
        )
    )


def facts_of(seen):
    """The facts without what the tests themselves decide."""
    return {name: fact for name, fact in seen.items() if name not in {"xids", "result_digest"}}


def test_every_released_version_has_an_archive():
    released = re.findall(r"^## (\S+), \d{4}-\d{2}-\d{2}$", CHANGELOG.read_text(), re.MULTILINE)

    assert ARCHIVES
    kept = {path.name.removesuffix(".tar.xz") for path in ARCHIVES}
    assert set(released) - kept == set(), "run: python -m tests.compatibility.writer"
    assert [path.name for path in ARCHIVES if path.stat().st_size > 100_000] == []


def test_log_verify_finds_no_fault_in_a_released_directory(left):
    printed = CliRunner().invoke(app, ["log", "verify", "--data", left.data])

    assert printed.exit_code == 0, printed.output


@run_by(run)
async def test_a_broker_serves_the_messages_of_a_released_directory(left):
    async with broker_on(left.data) as broker, Session(broker.names) as session:
        admin = Admin(session)
        assert await seen_by(admin) == facts_of(left.facts)
        (found,) = await admin.query("Orders", "order-7")
        assert found.body == b"order 7"
        queue = found.queue
        while not (await admin.pull(await delayed_queue(admin), 0)).messages:
            await asyncio.sleep(0.05)

        end = await admin.max_offset(queue)
        sent = await admin.send(Message(topic="Orders", body=b"of today"), queue)
        assert sent.offset == end

    async with broker_on(left.data) as broker, Session(broker.names) as session:
        admin = Admin(session)
        again = await seen_by(admin)
        news = [found for found in again["messages"] if found["body"] == "of today"]
        assert [found["offset"] for found in news] == [end]
        again["messages"].remove(news[0])
        assert again == facts_of(left.facts)


async def delayed_queue(admin):
    """The queue of the only message of its topic."""
    ends = [(status.max_offset, status.queue) for status in await admin.topic_status("Later")]
    return max(ends, key=lambda pair: pair[0])[1]


@run_by(run)
async def test_open_transactions_of_a_released_version_are_decided_by_the_database(left):
    resource = SQLResource(left.engine)
    async with (
        broker_on(left.data, check_s=0.05) as broker,
        Session(broker.names) as session,
        TransactionManager(BANK, broker.names, resource),
    ):
        admin = Admin(session)
        async with asyncio.timeout(15):
            while await admin.transactions():
                await asyncio.sleep(0.02)
        visible = {
            message["keys"][0]
            for message in (await seen_by(admin))["messages"]
            if message["topic"] == "Transfers"
        }
        assert visible == {"committed", "end-lost"}
    commit, rollback = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
    states = {name: await resource.decided(xid) for name, xid in left.facts["xids"].items()}
    assert (states["committed"], states["end-lost"]) == (commit, commit)
    assert states["killed"] is rollback


def test_released_tables_need_no_migration(left):
    assert create_fence(left.engine) is False
    assert create_done(left.engine) is False
    create_outbox(left.engine)


def test_work_done_under_a_released_version_is_not_repeated(left):
    @idempotent(UniqueKeyTable(left.engine), key=lambda key: key, scope="billing")
    def bill(session, key):
        session.execute(text("INSERT INTO booking VALUES (:key)"), {"key": key})

    bill("billed")
    bill("new")

    with left.engine.connect() as connection:
        booked = connection.execute(text("SELECT id FROM booking ORDER BY id")).scalars().all()
    assert booked == ["billed", "committed", "new"]


@run_by(run)
async def test_a_relay_sends_the_outbox_rows_of_a_released_version(left):
    async with (
        broker_on(left.data) as broker,
        Session(broker.names) as session,
        Relay(left.engine, broker.names) as relay,
    ):
        await until(lambda: relay.tally.published == 2)
        statuses = await Admin(session).topic_status("Outbox")
        pulled = [await Admin(session).pull(status.queue, 0) for status in statuses]
        bodies = [message.body for batch in pulled for message in batch.messages]
        assert bodies == [b"first", b"second"]
