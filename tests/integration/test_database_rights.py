"""The documented rights on txmq's tables are enough for each program."""

import asyncio
import secrets
import time

import pytest
from sqlalchemy import create_engine, text

from txmq import Message, Outbox, Relay, SQLResource
from txmq.idempotent import UniqueKeyTable, Verdict
from txmq.idempotent.unique_key import create_done
from txmq.outbox.table import create_outbox
from txmq.transaction import LocalTransactionState
from txmq.transaction.resources.schema import create_fence

DAY_S = 86_400
RIGHTS = {
    "serve": {
        "txmq_fence": "SELECT, INSERT",
        "txmq_fence_mark": "SELECT",
        "txmq_done": "SELECT, INSERT",
    },
    "clean": {
        "txmq_fence": "SELECT, INSERT, UPDATE, DELETE",
        "txmq_fence_mark": "SELECT, UPDATE",
        "txmq_done": "SELECT, INSERT, UPDATE, DELETE",
    },
    "relay": {
        "txmq_outbox": "SELECT, UPDATE, DELETE",
        "txmq_outbox_slot": "SELECT, UPDATE",
        "txmq_outbox_relay": "SELECT, INSERT, UPDATE, DELETE",
    },
}
"""As howto/fence.md, howto/idempotent.md and howto/outbox.md have them."""


@pytest.fixture(scope="module")
def owner(postgres):
    """An engine of the user who made the tables."""
    with postgres.database() as url:
        engine = create_engine(url)
        create_fence(engine)
        create_done(engine)
        create_outbox(engine)
        yield engine
        engine.dispose()


@pytest.fixture
def user(owner, request):
    """An engine of a user who has only these rights."""
    name = f"{request.param}_{secrets.token_hex(4)}"
    with owner.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'"))
        for table, rights in RIGHTS[request.param].items():
            connection.execute(text(f"GRANT {rights} ON {table} TO {name}"))
    engine = create_engine(owner.url.set(username=name, password=name))
    yield engine
    engine.dispose()
    with owner.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))


@pytest.mark.parametrize("user", ["serve"], indirect=True)
def test_the_documented_rights_let_a_service_commit_check_and_guard(user):
    resource, guard = SQLResource(user), UniqueKeyTable(user)
    asyncio.run(resource.verify())
    asyncio.run(guard.verify())
    born_ms = int(time.time() * 1000)

    with resource.local("t-1", "icbc", born_ms):
        pass
    answers = [asyncio.run(resource.check(xid, "icbc", born_ms)) for xid in ("t-1", "t-2")]
    with guard.attempt("t-1", scope="ccb") as attempt:
        pass

    assert answers == [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK]
    assert attempt.verdict is Verdict.FIRST
    resource.close()


@pytest.mark.parametrize("user", ["clean"], indirect=True)
def test_the_documented_rights_let_a_cleaner_clean(user):
    resource, guard = SQLResource(user), UniqueKeyTable(user)
    asyncio.run(resource.verify())

    assert asyncio.run(resource.clean(7 * DAY_S)) == 0
    assert guard.clean(7 * DAY_S) == 0
    resource.close()


@pytest.mark.parametrize("user", ["relay"], indirect=True)
def test_the_documented_rights_let_a_relay_publish(owner, user, txmq_broker):
    with owner.begin() as connection:
        Outbox().add(connection, Message(topic="Orders", body=b"tea"))

    async def publish():
        async with Relay(user, txmq_broker.names) as relay, asyncio.timeout(20):
            while not relay.tally.published:
                await asyncio.sleep(0.01)

    asyncio.run(publish())
