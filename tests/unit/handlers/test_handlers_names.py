"""Names of groups and clients in requests: names of stock clients are accepted, and names that
could forge a line of a terminal or of a log are refused.
"""

import json

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    batch_of,
    batching,
    consumer,
    pulling,
    queue,
    sending,
    with_client,
)
from tests.unit.handlers.transaction_stage import preparing
from txmq.protocol.bodies import GroupConfig, GroupConfigList, Heartbeat, LockRequest
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import CloneOffset, OffsetCommit

BEAT, COMMIT, LOCK, CLONE = 34, 15, 41, 314
ERROR, ILLEGAL = 1, 13
BAD = ["g\x1b]0;t\x07", "g\nh", "g\x9b31m", "g\u202eh", "g\u2028h", "g" * 256]
STOCK = ["DEFAULT_PRODUCER", "CLIENT_INNER_PRODUCER", "ns%group|1", "_INNER_TRACE-g-1", "g" * 255]
CLIENT_IDS = [
    "192.0.2.1@12345#98765432101234",
    "2001:db8::1@DEFAULT",
    "192.0.2.1@12345#1@unit%%PID_CLIENT_INNER_TRACE_PRODUCER_10.0.0.1:9876;10.0.0.2:9876",
    "客户端 1",
]


async def groups_of(client):
    """The groups that the broker has come to know, and those with offsets."""
    configs = await client.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    offsets = await client.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
    known = set(json.loads(configs.body)["subscriptionGroupTable"])
    return known | {name.partition("@")[2] for name in json.loads(offsets.body)["offsetTable"]}


@pytest.mark.parametrize("name", BAD)
@run_by(with_client, topic="T")
async def test_unprintable_consumer_group_names_are_refused_by_every_request(client, /, name):
    await client.commit("good", "T", 0, 0)
    before = await groups_of(client)

    answers = [
        await client.ask(BEAT, body=Heartbeat("c", [], [consumer(name, "T")]).write()),
        await client.ask(RequestCode.PULL_MESSAGE, pulling("T", group=name)),
        await client.ask(RequestCode.PULL_MESSAGE, pulling("T", group=name, commit=1)),
        await client.ask(COMMIT, OffsetCommit(name, "T", 0, 1)),
        await client.ask(CLONE, CloneOffset("good", name, "T")),
        await client.ask(LOCK, body=LockRequest("c", name, [queue("T")]).write()),
        await client.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig(name).write()
        ),
        await client.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            body=GroupConfigList([GroupConfig(name)]).write(),
        ),
    ]

    assert [answer.code for answer in answers] == [ERROR] * len(answers)
    for answer in answers:
        assert "group" in answer.remark
        assert answer.remark.isprintable()
    assert await groups_of(client) == before


@pytest.mark.parametrize("name", BAD)
@run_by(with_client, topic="T")
async def test_unprintable_producer_group_names_are_refused_by_every_request(client, /, name):
    def named(header):
        header.producer_group = name
        return header

    beat = await client.ask(BEAT, body=Heartbeat("c", [{"groupName": name}], []).write())
    sends = [
        await client.ask(RequestCode.SEND_MESSAGE, named(sending("T")), body=b"x"),
        await client.ask(RequestCode.SEND_BATCH_MESSAGE, named(batching("T")), body=batch_of(b"x")),
        await client.ask(RequestCode.SEND_MESSAGE, preparing("T", group=name), body=b"x"),
    ]
    half = preparing("T", PGROUP=name)
    sends.append(await client.ask(RequestCode.SEND_MESSAGE, half, body=b"x"))

    assert [answer.code for answer in (beat, *sends)] == [ERROR] + [ILLEGAL] * 4
    for answer in (beat, *sends):
        assert "producer group" in answer.remark
        assert answer.remark.isprintable()
    assert await client.max_offset("T") == 0


@pytest.mark.parametrize("name", ["c\x1b]0;t\x07", "c\nd", "c\x9b31m", "c\u202ed", "c" * 1025])
@run_by(with_client, topic="T")
async def test_unprintable_client_ids_are_refused(client, /, name):
    beat = Heartbeat(name, [{"groupName": "p"}], [consumer("g", "T")])
    answers = [
        await client.ask(BEAT, body=beat.write()),
        await client.ask(LOCK, body=LockRequest(name, "g", [queue("T")]).write()),
    ]

    assert [answer.code for answer in answers] == [ERROR, ERROR]
    for answer in answers:
        assert "client id" in answer.remark
        assert answer.remark.isprintable()
    assert "g" not in await groups_of(client)


@run_by(with_client, topic="T")
async def test_the_names_used_by_stock_clients_are_accepted(client, /):
    for client_id in CLIENT_IDS:
        for name in STOCK:
            beat = Heartbeat(client_id, [{"groupName": name}], [consumer(name[:120], "T")])
            await client.ok(BEAT, body=beat.write())
    for name in STOCK:
        header = sending("T")
        header.producer_group = name
        await client.ok(RequestCode.SEND_MESSAGE, header, body=b"x")
        await client.ok(COMMIT, OffsetCommit(name, "T", 0, 1))
