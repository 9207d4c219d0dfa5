"""Middleware around handlers and sends: its order, its errors, and every way to send."""

import asyncio
from contextvars import ContextVar
from dataclasses import replace

import pytest

from tests.unit.client.consumer_stage import TOPIC, acting
from tests.unit.client.producer_stage import message
from txmq.client.middleware import Middleware
from txmq.client.send.producer import Producer
from txmq.errors import UsageError
from txmq.message import DEAD_LETTER, Later

TENANT = ContextVar("tenant", default="")


class Noting(Middleware):
    """Notes what it sees, and adds its name to messages that are sent."""

    def __init__(self, name, notes):
        self.name = name
        self.notes = notes

    async def receive(self, message, call_next):
        self.notes.append(f"{self.name} in")
        try:
            return await call_next(message)
        except ValueError as error:
            self.notes.append(f"{self.name} saw {error}")
            raise
        finally:
            self.notes.append(f"{self.name} out")

    async def send(self, message, call_next):
        by = message.properties.get("by", "")
        result = await call_next(replace(message, properties={"by": by + self.name}))
        self.notes.append(result)
        return result


@acting()
async def test_the_first_middleware_is_outermost_and_sees_errors_of_the_handler(stage):
    notes = []
    client = stage.client()
    client.middleware(Noting("a", notes))

    @client.middleware
    async def tenant(message, call_next):
        notes.append("b in")
        TENANT.set("bank")
        return await call_next(replace(message, body=message.body + b"!"))

    async def handler(message):
        notes.append(f"handler {TENANT.get()}")
        if message.attempts == 0:
            raise ValueError("no")

    async with client, stage.reader(client, handler):
        stage.put(b"x")
        await stage.until(lambda: len(stage.seen) == 2)

    inside = ["a in", "b in", "handler bank"]
    assert notes == [*inside, "a saw no", "a out", *inside, "a out"]
    assert stage.bodies() == [b"x!", b"x!"]


@acting()
async def test_middleware_can_give_a_verdict_and_its_errors_count_as_handler_errors(stage):
    client = stage.client()

    @client.middleware
    async def judge(message, call_next):
        if message.body == b"raise":
            raise RuntimeError("broken middleware")
        return Later(DEAD_LETTER, reason="not for us")

    async with client, stage.reader(client):
        stage.put(b"dead", b"raise")
        await stage.until(lambda: len(stage.asked(36)) >= 2)
    assert not stage.seen
    assert {int(fields["delayLevel"]) for fields in stage.asked(36)} == {-1, 0}


@acting()
async def test_every_kind_of_send_passes_through_middleware(stage):
    notes = []
    client = stage.client()
    client.middleware(Noting("a", notes))
    client.middleware(Noting("b", notes))
    async with client, Producer("p", client) as producer:
        results = [
            await producer.send(message(b"0")),
            await producer.send_nowait(message(b"1")),
            *await producer.send_batch([message(b"2"), message(b"3")]),
            await producer.send_ordered(message(b"4"), "key"),
        ]
        await producer.send_oneway(message(b"5"))
        queues = (await client.admin.route(TOPIC)).readable
        await stage.until(lambda: sum(map(len, stage.broker.queues.values())) == 6)
        got = [
            (received.body, received.properties["by"])
            for queue in queues
            for received in (await client.admin.pull(queue, 0)).messages
        ]

    assert sorted(got) == [(b"%d" % number, "ab") for number in range(6)]
    assert [notes.count(result) for result in results] == [2] * 5
    assert notes.count(None) == 2


class Refusing(Middleware):
    async def send(self, message, call_next):
        if message.body == b"raise":
            raise ValueError("refused")
        if message.body == b"skip":
            return None
        return await call_next(message)


@acting()
async def test_a_batch_with_a_message_that_middleware_refuses_is_not_sent(stage):
    client = stage.client()
    client.middleware(Refusing())
    async with client, Producer("p", client) as producer:
        with pytest.raises(ValueError, match="refused"):
            await producer.send_batch([message(b"0"), message(b"raise"), message(b"2")])
        with pytest.raises(UsageError, match="return what call_next returns"):
            await producer.send_batch([message(b"0"), message(b"skip")])
        with pytest.raises(UsageError, match="return what call_next returns"):
            await producer.send(message(b"skip"))
        with pytest.raises(ValueError, match="refused"):
            await producer.send_nowait(message(b"raise"))
        (result,) = await producer.send_batch([message(b"last")])
        assert result.offset == 0


class Waiting(Middleware):
    def __init__(self):
        self.released = asyncio.Event()

    async def send(self, message, call_next):
        await self.released.wait()
        return await call_next(message)


@acting()
async def test_a_send_whose_middleware_outlasts_the_producer_is_refused(stage):
    client, waiting = stage.client(), Waiting()
    client.middleware(waiting)
    async with client:
        async with Producer("p", client) as producer:
            sends = [
                asyncio.ensure_future(producer.send(message())),
                producer.send_nowait(message()),
                asyncio.ensure_future(producer.send_oneway(message())),
                asyncio.ensure_future(producer.send_batch([message()])),
            ]
            await asyncio.sleep(0)
        waiting.released.set()
        errors = await asyncio.gather(*sends, return_exceptions=True)

    assert [type(error) for error in errors] == [UsageError] * 4
    assert all("is not open" in str(error) for error in errors)
    assert not any(map(len, stage.broker.queues.values()))


@acting()
async def test_only_middleware_is_accepted_and_only_before_the_client_opens(stage):
    client = stage.client()
    with pytest.raises(UsageError, match="not Noting; add brackets"):
        client.middleware(Noting)
    with pytest.raises(UsageError, match="an async function"):
        client.middleware(lambda message, call_next: call_next(message))
    async with client:
        with pytest.raises(UsageError, match="before the client opens"):
            client.middleware(Refusing())
