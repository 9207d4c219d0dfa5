"""What a relay reads, over connections that it shares with a service."""

import asyncio
import contextlib

import pytest

from tests.one_connection import SMALL, see_it_is_prepared, small
from txmq.databases.sources import door_of
from txmq.limits import SLOTS
from txmq.outbox.ledger import Ledger

ANSWER_S = 20.0


@contextlib.asynccontextmanager
async def ledger_on(door, outbox):
    ledger = Ledger(outbox, door, "a relay", lease_s=30.0, answer_s=ANSWER_S)
    try:
        yield ledger
    finally:
        await ledger.close()


@pytest.mark.parametrize("kind", SMALL)
def test_what_a_service_has_prepared_outlives_what_a_relay_does(shop_on, kind):
    shop = shop_on("postgres-connection")

    async def story():
        async with contextlib.AsyncExitStack() as stack:
            door = door_of(await small(kind, shop.url, stack))
            ledger = await stack.enter_async_context(ledger_on(door, shop.outbox))
            async with see_it_is_prepared(door):
                slots = list(range(SLOTS))
                await ledger.beat()
                await ledger.forward(slots, 0, 10, 1000)
                await ledger.sweep(slots, 0, 10, [1], [], 10, 1000)
                await ledger.lanes([], 10, 10, 1000)
                await ledger.waiting()
                await ledger.remove([1])
                await ledger.release(slots, leaves=True)

    asyncio.run(story())
