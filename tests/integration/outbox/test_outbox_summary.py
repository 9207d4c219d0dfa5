"""How far behind an outbox is, by the database's own clock, and how long an operator waits."""

import pytest
from sqlalchemy import text

from tests.integration.outbox.outbox_stage import DATABASES
from txmq import Message
from txmq.databases.engines import engine_of
from txmq.errors import DatabaseFailed
from txmq.outbox.operator_access import OutboxOperator

ONE = Message(topic="transfer", body=b"one")


@pytest.mark.parametrize("family", DATABASES)
def test_the_summary_counts_rows_that_wait_are_blocked_or_put_aside(shop_on, family):
    shop = shop_on(f"{family}-connection")
    with shop.engine.begin() as connection:
        for lane in ("a", "a", "b", None, None):
            shop.outbox.add(connection, ONE, lane)
        first = connection.execute(text("SELECT MIN(id) FROM txmq_outbox")).scalar_one()
        for statement in (
            "UPDATE txmq_outbox SET problem = 'x'",
            "UPDATE txmq_outbox SET problem = NULL, created_ms = created_ms - 5000 WHERE id = :one",
            "UPDATE txmq_outbox SET failed_ms = 1 WHERE id = :last",
        ):
            connection.execute(text(statement), {"one": first + 1, "last": first + 4})
    engine = engine_of(shop.engine.url.render_as_string(hide_password=False), limit_s=5)
    try:
        found = OutboxOperator(shop.outbox, engine).summary()
    finally:
        engine.dispose()
    numbers = (found.waiting, found.blocked, found.blocked_lanes, found.put_aside, found.relays)
    assert numbers == (4, 3, 2, 1, 0)
    assert 5_000 <= found.oldest_ms < 60_000
    assert not found.is_cut


def test_a_summary_of_a_locked_table_ends_with_a_statement_timeout(shop_on):
    shop = shop_on("postgres-connection")
    engine = engine_of(shop.engine.url.render_as_string(hide_password=False), limit_s=1)
    try:
        with shop.engine.begin() as other:
            other.execute(text("LOCK TABLE txmq_outbox IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(DatabaseFailed, match="statement timeout"):
                OutboxOperator(shop.outbox, engine).summary()
        assert OutboxOperator(shop.outbox, engine).summary().waiting == 0
    finally:
        engine.dispose()
