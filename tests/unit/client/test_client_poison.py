"""Unreadable messages: they become dead letters, and their queue goes on."""

import asyncio
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.client.consumer_stage import GROUP, TOPIC, acting
from txmq.client.consume import PullConsumer
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.message import Queue
from txmq.protocol import command
from txmq.protocol.codes import RequestCode, SysFlag

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
COMPRESSED = int(SysFlag.COMPRESSED)


def put_poison(stage, topic=TOPIC, text="UNIQ_KEY\x01P\x02"):
    """A message that claims to be compressed, but is not."""
    sent = SimpleNamespace(born_timestamp=1)
    stage.broker.store(topic, 0, sent, b"poison", text, 0, COMPRESSED)


@pytest.mark.fault("M12")
@pytest.mark.parametrize("settings", [{}, {"is_orderly": True}])
@acting()
async def test_a_body_that_does_not_decompress_is_dead_lettered_and_the_queue_goes_on(
    stage, settings
):
    stage.put(b"0")
    put_poison(stage)
    stage.put(b"2")
    async with stage.reading(**settings) as consumer:
        await stage.until(lambda: stage.bodies() == [b"0", b"2"])
        await stage.until(lambda: stage.asked(SEND_BACK))
        await consumer.commit()
        assert stage.committed() == 3
    (head,) = stage.asked(SEND_BACK)
    assert (head["group"], head["delayLevel"], head["originTopic"]) == (GROUP, "-1", TOPIC)
    assert "does not decompress" in head["reason"]


@acting()
async def test_a_failed_dead_letter_is_retried_while_the_queue_goes_on(stage):
    stage.cluster.replies[SEND_BACK] = lambda request: command.answer(request, 1, remark="no")
    put_poison(stage)
    stage.put(b"1")
    async with stage.reading(span_max=10, pull_batch=1) as consumer:
        await stage.until(lambda: stage.bodies() == [b"1"], within_s=1)
        await consumer.commit()
        assert stage.committed() == 0
        for number in range(2, 30):
            stage.put(b"%d" % number)
        await asyncio.sleep(60)
        assert 4 <= len(stage.asked(SEND_BACK)) <= 13
        assert 10 <= len(stage.seen) < 29  # As with any message that is not consumed.
        del stage.cluster.replies[SEND_BACK]
        await stage.until(lambda: len(stage.seen) == 29)
    assert stage.committed() == 30


@acting()
async def test_an_unreadable_message_with_other_tags_is_skipped(stage):
    put_poison(stage)
    stage.put(b"1", tags="A")
    async with stage.reading(tags="A"):
        await stage.until(lambda: stage.bodies() == [b"1"])
    assert stage.committed() == 2
    assert not stage.asked(SEND_BACK)


@acting()
async def test_an_unreadable_retry_keeps_its_original_topic(stage):
    put_poison(stage, f"%RETRY%{GROUP}", f"RETRY_TOPIC\x01{TOPIC}\x02")
    async with stage.reading():
        await stage.until(lambda: stage.asked(SEND_BACK))
    assert stage.asked(SEND_BACK)[0]["originTopic"] == TOPIC


@acting()
async def test_broadcast_consumers_drop_unreadable_messages(stage):
    put_poison(stage)
    stage.put(b"1")
    with tempfile.TemporaryDirectory() as base:
        async with stage.reading(is_broadcast=True, offsets_path=Path(base)) as consumer:
            await stage.until(lambda: stage.bodies() == [b"1"])
            assert consumer.positions()[Queue(TOPIC, "broker-a", 0)] == 2
    assert not stage.asked(SEND_BACK)


@acting()
async def test_pull_consumers_skip_unreadable_messages(stage):
    put_poison(stage)
    stage.put(b"1")
    got = []
    async with stage.client() as client:
        consumer = PullConsumer(GROUP, client, ConsumerSettings(start=StartFrom.FIRST))
        consumer.subscribe(TOPIC)
        async with consumer:
            while not got:
                got += await consumer.poll(1.0)
            await stage.until(lambda: stage.asked(SEND_BACK))
    assert [message.body for message in got] == [b"1"]


@acting()
async def test_admin_shows_an_unreadable_message_as_stored(stage):
    put_poison(stage)
    queue = Queue(TOPIC, "broker-a", 0)
    async with stage.client() as client:
        (pulled,) = (await client.admin.pull(queue, 0)).messages
        viewed = await client.admin.find(TOPIC, "P")
    for message in (pulled, viewed):
        assert message.body == b"poison"
        assert "does not decompress" in message.unreadable
