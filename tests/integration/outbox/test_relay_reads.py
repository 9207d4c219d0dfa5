"""What a relay reads, over connections that it shares with a service."""

import contextlib

import pytest

from tests.faults.one_connection import SMALL, see_it_is_prepared, small
from tests.running import in_loop, run_by
from txmq.databases.sources import adapter_of
from txmq.limits import SLOTS
from txmq.outbox.store import OutboxStore

ANSWER_S = 20.0


@contextlib.asynccontextmanager
async def store_on(adapter, outbox):
    store = OutboxStore(outbox, adapter, "a relay", lease_s=30.0, answer_s=ANSWER_S)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("kind", SMALL)
@run_by(in_loop)
async def test_prepared_statements_of_a_service_outlive_the_work_of_a_relay(shop_on, kind):
    shop = shop_on("postgres-connection")

    async with contextlib.AsyncExitStack() as stack:
        adapter = adapter_of(await small(kind, shop.url, stack))
        store = await stack.enter_async_context(store_on(adapter, shop.outbox))
        async with see_it_is_prepared(adapter):
            slots = list(range(SLOTS))
            await store.beat()
            await store.forward(slots, 0, 10, 1000)
            await store.sweep(slots, 0, 10, [1], [], 10, 1000)
            await store.lanes([], 10, 10, 1000)
            await store.waiting()
            await store.remove([1])
            await store.release(slots[:1])
            await store.leave()
