"""Handlers behind a guard, called by our consumers: a real broker in a simulated world."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from tests.unit.client.pull_stage import SOON, TOPIC, staged, until
from tests.unit.idempotent.memory_guard import MemoryGuard
from txmq.client.consume import PushConsumer
from txmq.errors import VersionGap
from txmq.idempotent import idempotent
from txmq.message import Message, Queue

QUEUE = Queue(TOPIC, "broker-a", 0)
GROUP = "readers"
KINDS = [SOON, replace(SOON, is_orderly=True)]
NAMES = ["concurrent", "orderly"]


def key_of(message):
    return message.key


async def sent(stage, *bodies, key="order-1"):
    for body in bodies:
        await stage.admin.send(Message(topic=TOPIC, body=body, keys=(key,)), QUEUE)


async def dead(stage):
    return [letter async for letter in stage.admin.dead_letters(GROUP)]


def reading(stage, handler, settings):
    consumer = PushConsumer(GROUP, stage.broker.names, settings, *stage.ports("reader"))
    consumer.on(TOPIC)(handler)
    return consumer


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
@staged
async def test_a_message_sent_twice_is_handled_once(stage, settings):
    calls = []

    @idempotent(MemoryGuard(is_blocking=False), key=key_of)
    async def handle(message):
        calls.append(message.body)

    await stage.topic()
    await sent(stage, b"tea", b"tea")
    async with reading(stage, handle, settings):
        while await stage.saved(QUEUE) != 2:
            await asyncio.sleep(0.1)
    assert calls == [b"tea"]
    assert await dead(stage) == []


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
@staged
async def test_a_different_message_with_the_same_key_is_dead_lettered_at_once(stage, settings):
    calls = []

    @idempotent(MemoryGuard(is_blocking=False), key=key_of, scope="shop")
    async def handle(message):
        calls.append(message.body)

    await stage.topic()
    await sent(stage, b"tea", b"milk")
    async with reading(stage, handle, settings):
        while not (letters := await dead(stage)):
            await asyncio.sleep(0.1)
    (letter,) = letters
    assert (calls, letter.body, letter.attempts) == ([b"tea"], b"milk", 1)
    assert "shop has used this key before" in letter.properties["DLQ_REASON"]


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
@staged
async def test_a_message_being_handled_elsewhere_is_redelivered(stage, settings, caplog):
    caplog.set_level(logging.INFO)
    calls = []
    guard = MemoryGuard(is_blocking=False)

    @idempotent(guard, key=key_of, scope="")
    async def handle(message):
        calls.append(message.body)

    await stage.topic()
    await sent(stage, b"tea")
    with contextlib.suppress(ZeroDivisionError):
        async with reading(stage, handle, settings), guard.attempt("order-1"):
            await until(lambda: len(guard.seen) > 2)
            assert calls == []
            raise ZeroDivisionError  # The other attempt has failed.
    async with reading(stage, handle, settings):
        await until(lambda: calls)
    assert calls == [b"tea"]
    said = [record for record in caplog.records if "comes again later" in record.message]
    assert said
    assert all(record.exc_info is None for record in said)


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
@staged
async def test_a_message_with_a_version_gap_is_redelivered(stage, settings):
    calls = []

    async def handle(message):
        calls.append(message.attempts)
        if len(calls) == 1:
            raise VersionGap("version 3 comes before version 2")

    await stage.topic()
    await sent(stage, b"3")
    async with reading(stage, handle, settings):
        await until(lambda: len(calls) == 2)
