"""What handlers do on real sockets and in real time; unit tests cover the rest."""

import asyncio

import pytest

from tests.integration.loopback_stage import on_sockets
from tests.running import run_by
from tests.unit.handlers.handler_stage import sending
from tests.unit.handlers.transaction_stage import GROUP, prepare, quick
from txmq.protocol.bodies import TopicRoute
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import RouteQuery
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork


@run_by(on_sockets)
async def test_the_name_server_learns_of_every_topic_change(stage, /):
    client = await stage.client()
    names = ConnectionPool(SystemNetwork(), SystemClock())
    asking = await names.connection(stage.broker.names)

    async def queues(topic):
        answer = await asking.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic), timeout_s=5
        )
        if answer.code:
            return None
        (queue_data,) = TopicRoute.read(answer.body).queue_datas
        return queue_data.read_queue_nums

    async def until(wanted, topic):
        while await queues(topic) != wanted:
            continue

    assert await queues("TBW102") == 8
    await client.topic("T", 2)
    await until(2, "T")
    await client.topic("T", 3)
    await until(3, "T")
    await client.ok(RequestCode.SEND_MESSAGE, sending("made"), body=b"x")
    await until(4, "made")
    await names.close()


@pytest.mark.fault("T4")
def test_checks_stay_on_time_while_the_broker_is_busy():
    """Four clients send as fast as they can, in the same event loop as the broker's timers."""
    count, timeout_s, late_max_s = 300, 0.5, 3.0

    async def main(stage):
        clock = SystemClock()
        producer, *others = await stage.clients(5)
        asked = {}

        def note(request):
            asked.setdefault(request.field_map()["transactionId"], clock.monotonic())

        producer.replies[RequestCode.CHECK_TRANSACTION_STATE] = note
        await producer.topic("T", 4)
        await producer.beat(producers=[GROUP])
        is_over = asyncio.Event()

        async def flood(client):
            sent = 0
            while not is_over.is_set():
                await client.fill("T", 200)
                sent += 200
            return sent

        async def prepared(number):
            begun = clock.monotonic()
            half = await prepare(producer, unique=f"U{number}")
            # It was stored at some moment in between; the answer has to wait for the floods too.
            return half.unique, (begun + timeout_s, clock.monotonic() + timeout_s)

        floods = [asyncio.ensure_future(flood(client)) for client in others]
        due = dict(await asyncio.gather(*[prepared(number) for number in range(count)]))
        async with asyncio.timeout(30):
            while len(asked) < count:
                await asyncio.sleep(0.01)
        is_over.set()
        sent = sum(await asyncio.gather(*floods))
        late_s = [asked[unique] - latest for unique, (_, latest) in due.items()]
        early_s = [earliest - asked[unique] for unique, (earliest, _) in due.items()]
        print(f"{sent} sends meanwhile; checks are at most {max(late_s) * 1000:.0f} ms late")
        assert sent > count
        assert max(late_s) < late_max_s
        assert max(early_s) < 0.01

    on_sockets(main, settings=quick(timeout=timeout_s, check_interval=60.0))
