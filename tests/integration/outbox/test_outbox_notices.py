"""Notifications to relays, and the ways to create the tables."""

import contextlib

import psycopg
import pytest
from sqlalchemy import MetaData, create_engine

from tests.integration.outbox.outbox_stage import DATABASES
from tests.servers.databases import conninfo
from txmq import Message
from txmq.errors import TableMissing
from txmq.outbox import Outbox
from txmq.outbox.table import create_outbox

ONE = Message(topic="transfer", body=b"one")
SECONDS = 30


@contextlib.contextmanager
def listening(shop):
    with psycopg.connect(conninfo(shop.url), autocommit=True) as connection:
        connection.execute("LISTEN txmq_outbox")

        def heard():
            # Notifications come in the order of the commits, so this one is the last.
            with psycopg.connect(conninfo(shop.url), autocommit=True) as other:
                other.execute("NOTIFY txmq_outbox, 'all'")
            words = []
            while "all" not in words:
                words += [
                    notice.payload for notice in connection.notifies(timeout=SECONDS, stop_after=1)
                ]
            return words[:-1]

        yield heard


def test_relays_are_notified_of_commits_only(shop_on):
    shop = shop_on("postgres")
    with listening(shop) as heard, shop.engine.connect() as connection:
        shop.outbox.add(connection, ONE)
        assert heard() == []
        connection.rollback()
        assert heard() == []
        shop.outbox.add(connection, ONE)
        shop.outbox.add(connection, ONE, "a")
        shop.outbox.add_many(connection, [ONE, ONE])
        connection.commit()
        assert heard() == [""]


def test_concurrent_commits_may_share_one_notification(shop_on):
    shop, rounds, said = shop_on("postgres"), 40, []
    with (
        listening(shop) as heard,
        shop.engine.connect() as first,
        shop.engine.connect() as second,
    ):
        for _ in range(rounds):
            shop.outbox.add(first, ONE)
            shop.outbox.add(second, ONE, "a")
            first.commit()
            second.commit()
            said.append(len(heard()))

    assert set(said) <= {1, 2}
    assert sum(said) < 2 * rounds


def test_an_outbox_with_notifies_off_sends_no_notification(shop_on):
    shop = shop_on("postgres")
    with listening(shop) as heard, shop.engine.begin() as connection:
        Outbox(notifies=False).add(connection, ONE, "a")
        connection.commit()
        assert heard() == []
    assert len(shop.rows) == 1


def test_a_transaction_without_notifications_can_be_prepared(shop_on):
    shop = shop_on("postgres")
    with psycopg.connect(conninfo(shop.url)) as connection:
        Outbox(notifies=False).add(connection, ONE, "a")
        connection.execute("PREPARE TRANSACTION 'outbox-test'")
        connection.rollback()
        assert shop.rows == []
        connection.autocommit = True
        connection.execute("COMMIT PREPARED 'outbox-test'")
    assert len(shop.rows) == 1


def test_an_outbox_honours_a_schema_translate_map(shop_on):
    shop = shop_on("postgres")
    shop.order("DROP SCHEMA IF EXISTS branch CASCADE")
    shop.order("CREATE SCHEMA branch")
    create_outbox(shop.engine, "txmq_outbox", "branch")
    with shop.engine.begin() as connection:
        there = connection.execution_options(schema_translate_map={None: "branch"})
        shop.outbox.add(there, ONE, "a")

    assert shop.rows == []
    assert shop.order("SELECT lane FROM branch.txmq_outbox") == [("a",)]
    shop.order("DROP SCHEMA branch CASCADE")


@pytest.mark.parametrize("kind", DATABASES)
def test_metadata_and_ddl_create_the_same_tables(shop_on, kind):
    shop = shop_on(kind)
    by_metadata = Outbox("mine", metadata=MetaData())
    by_statements = Outbox("yours")
    shop.drop("mine")
    shop.drop("yours")
    by_metadata.metadata.create_all(shop.engine)
    for statement in by_statements.ddl(shop.url.get_backend_name()):
        shop.order(statement)

    for outbox in (by_metadata, by_statements):
        assert not create_outbox(shop.engine, outbox.name)
        with shop.engine.begin() as connection:
            outbox.add(connection, ONE, "a")
    shop.order("DELETE FROM mine_slot WHERE slot = 7")
    with pytest.raises(TableMissing, match="mine_slot has 63 rows, not 64"):
        create_outbox(shop.engine, "mine")


def test_ids_are_never_reused(shop_on):
    shop = shop_on("sqlite")
    with create_engine(shop.url).begin() as connection:
        shop.outbox.add(connection, ONE)
        shop.outbox.add(connection, ONE)
    shop.order("DELETE FROM txmq_outbox")
    with shop.engine.begin() as connection:
        shop.outbox.add(connection, ONE)

    assert [row.id for row in shop.rows] == [3]
