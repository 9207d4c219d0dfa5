"""12, 33: messages by key and by id."""

from hashlib import md5
from itertools import islice

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world, in_world_with_client, with_client
from txmq.protocol import record as records
from txmq.protocol.command import BINARY, JSON, fields_of
from txmq.protocol.headers import MessagePosition, MessageQuery, QueryAnswer, SendAnswer
from txmq_broker.store.queue_store import key_hash, topic_seed

BY_KEY, BY_ID = 12, 33
ERROR, NO_TOPIC, NOT_FOUND = 1, 17, 22
EVER = 2**62


async def found(client, topic, key, *, count=64, begin=0, end=EVER, unique=False, **given):
    header = MessageQuery(topic, key, count, begin, end)
    fields = {**fields_of(header), "_UNIQUE_KEY_QUERY": "true"} if unique else header
    answer = await client.ask(BY_KEY, fields, **given)
    if answer.code:
        return -answer.code
    assert answer.read(QueryAnswer).index_last_update_phyoffset > 0
    return [record.body for record in records.unpack_all(answer.body)]


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_messages_are_found_by_each_of_their_keys_newest_first(client, /, kind):
    await client.send("T", b"1", KEYS="a b")
    await client.send("T", b"2", KEYS="b")

    assert await found(client, "T", "a", kind=kind) == [b"1"]
    assert await found(client, "T", "b", kind=kind) == [b"2", b"1"]
    assert await found(client, "T", "b", count=1, kind=kind) == [b"2"]


@run_by(with_client)
async def test_a_message_is_found_by_its_unique_key(client, /):
    await client.send("T", b"1", UNIQ_KEY="u", KEYS="k")
    await client.send("T", b"2", UNIQ_KEY="v", KEYS="u")

    assert await found(client, "T", "u", unique=True) == [b"1"]
    assert await found(client, "T", "u") == [b"2", b"1"]
    assert await found(client, "T", "k", unique=True) == -NOT_FOUND


@run_by(with_client)
async def test_a_key_is_found_only_in_its_own_topic(client, /):
    await client.send("T", b"1", KEYS="k")
    await client.topic("U")

    assert await found(client, "U", "k") == -NOT_FOUND
    assert await found(client, "no such", "k") == -NO_TOPIC


@run_by(in_world)
async def test_keys_whose_hashes_collide_are_told_apart(stage, /):
    keys = (md5(b"%d" % number).hexdigest() for number in range(1_000_000))
    seen = {key_hash(topic_seed("T"), key): key for key in islice(keys, 100_000)}
    other = next(key for key in keys if key_hash(topic_seed("U"), key) in seen)
    alike = seen[key_hash(topic_seed("U"), other)]

    client = await stage.client()
    await client.send("U", b"2", KEYS=other)
    await client.topic("T")
    assert await found(client, "T", alike) == -NOT_FOUND
    await client.send("T", b"1", KEYS=alike)
    assert await found(client, "T", alike) == [b"1"]


@run_by(in_world_with_client)
async def test_a_query_by_key_returns_only_messages_in_the_time_range(stage, client, /):
    times = []
    for body in (b"1", b"2", b"3"):
        await client.send("T", body, KEYS="k")
        times.append(stage.clock.wall_ms())
        await stage.passes(1.0)

    assert await found(client, "T", "k", begin=times[0] + 500) == [b"3", b"2"]
    assert await found(client, "T", "k", end=times[1] + 500) == [b"2", b"1"]
    assert await found(client, "T", "k", begin=times[2] + 500) == -NOT_FOUND


@run_by(with_client)
async def test_a_query_by_key_returns_a_limited_number_of_messages(client, /):
    await client.fill("T", 70, KEYS="k", UNIQ_KEY="u")

    assert len(await found(client, "T", "k", count=1000)) == 64
    assert len(await found(client, "T", "u", count=1, unique=True)) == 32
    assert len(await found(client, "T", "k", count=0)) == 1


@run_by(with_client)
async def test_a_query_by_key_returns_a_limited_number_of_bytes(client, /):
    for _ in range(3):
        await client.send("T", b"x" * 200_000, KEYS="k")

    assert len(await found(client, "T", "k")) == 2


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_a_message_is_shown_by_its_position(client, /, kind):
    sent = (await client.send("T", b"here")).read(SendAnswer)
    position = int(sent.msg_id[16:], 16)
    answer = await client.ok(BY_ID, MessagePosition(position), kind=kind)

    (record,) = records.unpack_all(answer.body)
    assert (record.body, record.position, record.offset_id) == (b"here", position, sent.msg_id)


@pytest.mark.parametrize("position", [-1, 0, 1, 10**15])
@run_by(with_client)
async def test_a_position_where_no_message_begins_is_an_error(client, /, position):
    await client.send("T")

    assert await client.code_of(BY_ID, MessagePosition(position)) == ERROR
