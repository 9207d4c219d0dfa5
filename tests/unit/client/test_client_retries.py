"""Messages that fail, from the first attempt to the dead letters: a real broker and our consumers
in a simulated world, where hours take no time.
"""

import asyncio
from functools import partial
from itertools import accumulate
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from tests.unit.client.pull_stage import GROUP, SOON, TOPIC, bodies, polled, staged, until
from txmq.client.consume import DEAD_LETTER, Later, PushConsumer
from txmq.errors import UsageError
from txmq.message import Message, Queue
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.headers import SendMessageV2

# Seed 000: the seconds between each of the sixteen retries and the one before it.
TABLE = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
QUEUE = Queue(TOPIC, "broker-a", 0)
QUIET_S = 7300.0
"""Longer than any delay."""


class Seen(list):
    """What a consumer's handler got, and when."""

    def __init__(self, stage, handler, group=GROUP, settings=SOON, name="reader"):
        super().__init__()
        self.stage, self.handler = stage, handler
        ports = stage.ports(name)
        self.consumer = PushConsumer(group, stage.broker.names, settings, *ports)
        self.consumer.on(TOPIC)(self.take)

    async def take(self, message):
        self.append((self.stage.world.now(), message))
        return await self.handler(message)

    def bodies(self):
        return bodies(message for _, message in self)


async def fail(message):
    raise ValueError(f"no account {message.body.decode()}")


async def dead(stage, group=GROUP):
    return [letter async for letter in stage.admin.dead_letters(group)]


async def died(stage, count=1, within_s=60.0):
    async with asyncio.timeout(within_s):
        while len(found := await dead(stage)) < count:
            await asyncio.sleep(0.1)
    return found


@pytest.mark.fault("M12")
@pytest.mark.slow
@patch("txmq_broker.services.housekeeping.SAVE_S", 5.0)
@patch("txmq_broker.services.registrar.RETRY_S", 30.0)
@patch("txmq_broker.services.deliverer.LOOK_S", 30.0)
@partial(staged, within_s=30_000.0)
async def test_a_message_is_retried_sixteen_times_with_stock_delays_then_dead_lettered(stage):
    await stage.topic(messages=1)
    seen = Seen(stage, fail, settings=replace(SOON, commit_interval=60.0, rebalance_interval=60.0))
    async with seen.consumer:
        while len(seen) < 17:
            await asyncio.sleep(60)
        (letter,) = await died(stage)
        assert await stage.saved(QUEUE) == 1
        await asyncio.sleep(QUIET_S)  # It is never delivered again.

    assert len(seen) == 17
    first = seen[0][0]
    assert sum(TABLE) == 4 * 3600 + 45 * 60 + 40 == 17_140
    late = [at - first - due for (at, _), due in zip(seen[1:], accumulate(TABLE), strict=True)]
    # Each retry is stored, delivered and fetched shortly after it is due, and never before.
    assert all(0 <= here - before < 0.2 for before, here in zip([0.0, *late], late, strict=False))
    assert 0 <= seen[16][0] - first - 17_140 < 2.0
    assert [message.attempts for _, message in seen] == list(range(17))
    assert {message.topic for _, message in seen} == {TOPIC}
    assert len({message.id for _, message in seen}) == 1
    assert (letter.body, letter.attempts, letter.id) == (b"0/0", 17, seen[0][1].id)
    named = letter.properties
    assert named["DLQ_REASON"] == ("16 retries failed, 16 are allowed: ValueError: no account 0/0")
    assert (named["RETRY_TOPIC"], named["ORIGIN_MESSAGE_ID"]) == (TOPIC, seen[0][1].offset_id)
    assert (named["DLQ_ORIGIN_TOPIC"], named["DLQ_ORIGIN_MESSAGE_ID"]) == (TOPIC, letter.id)


@staged
async def test_a_consumer_can_allow_fewer_retries(stage):
    await stage.topic(messages=1)
    seen = Seen(stage, fail, settings=replace(SOON, attempts_max=2))
    async with seen.consumer:
        (letter,) = await died(stage)
    assert [message.attempts for _, message in seen] == [0, 1, 2]
    assert letter.properties["DLQ_REASON"].startswith("2 retries failed, 2 are allowed")


@staged
async def test_a_handler_can_dead_letter_a_message_with_a_reason(stage):
    await stage.topic(messages=2)

    async def never(message):
        if message.body == b"0/0":
            return Later(DEAD_LETTER, reason="closed\x01account")
        return None

    seen = Seen(stage, never)
    async with seen.consumer:
        (letter,) = await died(stage)
        await until(lambda: len(seen) == 2)
    assert letter.properties["DLQ_REASON"] == "its consumer gave it up: closed account"


@pytest.mark.fault("M12")
@pytest.mark.parametrize("gives_up", [True, False])
@staged
async def test_an_orderly_consumer_retries_on_the_spot_then_dead_letters_and_goes_on(
    stage, gives_up
):
    await stage.topic(messages=3)

    async def fails(message):
        if message.body == b"0/1":
            if gives_up:
                return Later(DEAD_LETTER, reason="never")
            raise ValueError
        return None

    settings = replace(SOON, is_orderly=True, attempts_max=None if gives_up else 2)
    seen = Seen(stage, fails, settings=settings)
    async with seen.consumer:
        (letter,) = await died(stage)
        await until(lambda: seen.bodies()[-1] == b"0/2")
    tries = 1 if gives_up else 3
    assert seen.bodies() == [b"0/0", *[b"0/1"] * tries, b"0/2"]
    why = "it failed 1 time: never" if gives_up else "it failed 3 times: ValueError"
    assert letter.properties["DLQ_REASON"] == f"its consumer gave it up: {why}"


@staged
async def test_a_resent_dead_letter_starts_with_no_attempts_and_keeps_its_reason(stage):
    await stage.topic(messages=1)
    is_open = []

    async def until_open(message):
        if not is_open:
            return Later(DEAD_LETTER, reason="closed")
        return None

    seen = Seen(stage, until_open)
    async with seen.consumer:
        (letter,) = await died(stage)
        is_open.append(True)
        words = {"reason": "open again", "operator": "ann"}
        await stage.admin.resend_dead_letter(GROUP, letter, **words)
        await until(lambda: len(seen) == 2)
    again = seen[1][1]
    assert (again.topic, again.attempts, again.id) == (TOPIC, 0, letter.id)
    assert again.properties["DLQ_REASON"] == "its consumer gave it up: closed"
    assert again.properties["TXMQ_RESENT_REASON"] == "open again"
    assert len(await dead(stage)) == 1


@staged
async def test_consumers_read_dead_letters_only_with_a_setting(stage):
    await stage.topic(messages=1)
    given_up = Seen(stage, fail, settings=replace(SOON, attempts_max=1))
    async with given_up.consumer:
        (letter,) = await died(stage)
    route = await stage.operator.session.fresh_route(letter.topic)
    assert (route.readable, len(route.writable)) == ((), 1)

    pull = stage.consumer(group="others")
    refusals = [
        lambda: pull.subscribe(letter.topic),
        lambda: PushConsumer("others", stage.broker.names).on(letter.topic)(fail),
    ]
    for subscribe in refusals:
        with pytest.raises(UsageError, match=r"'txmq dlq show readers'.*reads_dead_letters=True"):
            subscribe()
    meant = stage.consumer(replace(SOON, reads_dead_letters=True), group="others")
    meant.subscribe(letter.topic)
    async with meant:
        assert bodies(await polled(meant, 1)) == [b"0/0"]
        only = await meant.pull(letter.queue, 0)
        assert bodies(only.messages) == [b"0/0"]
    async with pull:
        with pytest.raises(UsageError, match="dead letters of group readers"):
            await pull.assign([letter.queue])
        with pytest.raises(UsageError, match="dead letters of group readers"):
            await pull.pull(letter.queue, 0)


@pytest.mark.fault("M12")
@staged
async def test_an_unreadable_message_is_dead_lettered_and_can_be_viewed(stage):
    await stage.topic()
    session = stage.operator.session
    header = SendMessageV2(
        "pg", TOPIC, "TBW102", 1, 0, int(SysFlag.COMPRESSED), 1, 0, "UNIQ_KEY\x01P\x02"
    )
    address = await session.address_of(QUEUE)
    await session.request(address, RequestCode.SEND_MESSAGE_V2, header, body=b"not zlib")
    await stage.send(QUEUE, 1, first=1)

    async def take(message):
        return None

    seen = Seen(stage, take)
    async with seen.consumer:
        (letter,) = await died(stage)
        await until(lambda: seen.bodies() == [b"0/1"])
        await seen.consumer.commit()
        assert await stage.saved(QUEUE) == 2

    assert (letter.id, letter.body) == ("P", b"not zlib")
    assert "does not decompress" in letter.unreadable
    assert "does not decompress" in letter.properties["DLQ_REASON"]
    with pytest.raises(UsageError, match="die again"):
        await stage.admin.resend_dead_letter(GROUP, letter, reason="r", operator="o")


@pytest.mark.fault("N8")
@staged
async def test_a_stuck_group_caches_little_delays_no_other_group_and_shows_its_lag(stage):
    await stage.topic()
    stuck, count = asyncio.Event(), 3000
    limits = replace(SOON, cached_max=100, stop_timeout=0.0)
    slow = Seen(stage, lambda message: stuck.wait(), "slow", limits, "slow")
    quick = Seen(stage, lambda message: asyncio.sleep(0), "quick", name="quick")
    async with slow.consumer, quick.consumer:
        for first in range(0, count, 500):
            messages = [Message(topic=TOPIC, body=b"x" * 100) for _ in range(500)]
            await stage.admin.send_batch(messages, QUEUE)
            del first
        await until(lambda: len(quick) == count)
        await asyncio.sleep(60)

        assert len(slow) == limits.concurrency
        held = slow.consumer.held()[QUEUE]
        assert held.cached_msg_count < limits.cached_max + limits.pull_batch
        assert held.cached_msg_max_offset < limits.cached_max + limits.pull_batch
        lag = {
            group: sum(progress.lag for progress in await stage.admin.group_progress(group, TOPIC))
            for group in ("slow", "quick")
        }
        assert lag == {"slow": count, "quick": 0}
        before = len(quick)
        await stage.send(QUEUE, 1)
        started = stage.world.now()
        await until(lambda: len(quick) > before)
        assert stage.world.now() - started < 0.1
