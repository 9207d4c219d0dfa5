"""200, 201, 207, 225, 352: consumer groups and their settings."""

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import in_world, in_world_with_client, with_client
from tests.unit.handlers.transaction_stage import in_lives
from txmq.protocol.bodies import GroupConfig, GroupConfigList, GroupConfigs
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import DeleteGroup, NamedGroup

PUT, GET_ALL, DELETE, PUT_ALL, GET = 200, 201, 207, 225, 352
ERROR, NO_GROUP = 1, 26


async def config(client, name):
    answer = await client.ask(GET, NamedGroup(group=name))
    return GroupConfig.read(answer.body) if answer.code == 0 else -answer.code


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_a_group_is_created_and_changed_with_the_given_settings(client, /, kind):
    for wanted in (GroupConfig("g", retry_max_times=3), GroupConfig("g", consume_enable=False)):
        await client.ok(PUT, body=wanted.write(), kind=kind)
        assert await config(client, "g") == wanted


@run_by(with_client)
async def test_group_settings_from_rocketmq_5_are_read_and_unknown_ones_ignored(client, /):
    body = (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
    await client.ok(PUT, body=body)

    assert await config(client, "g") == GroupConfig("g", retry_max_times=5)


@run_by(with_client)
async def test_several_groups_are_created_by_one_request(client, /):
    groups = [GroupConfig("g"), GroupConfig("h", retry_max_times=1)]
    await client.ok(PUT_ALL, body=GroupConfigList(groups).write())

    assert [await config(client, group.group_name) for group in groups] == groups


@pytest.mark.parametrize("name", ["", "x" * 256])
@run_by(with_client)
async def test_an_invalid_group_name_refuses_the_whole_request(client, /, name):
    both = GroupConfigList([GroupConfig("good"), GroupConfig(name)])

    assert await client.code_of(PUT, body=GroupConfig(name).write()) == ERROR
    assert await client.code_of(PUT_ALL, body=both.write()) == ERROR
    assert await config(client, "good") == -NO_GROUP


@pytest.mark.parametrize("code", [PUT, PUT_ALL])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]"])
@run_by(in_world)
async def test_a_malformed_group_body_is_refused(stage, /, code, body):
    assert await (await stage.client()).code_of(code, body=body) == ERROR


@run_by(with_client)
async def test_all_groups_are_listed_with_their_data_version(client, /):
    before = GroupConfigs.read((await client.ok(GET_ALL)).body)
    assert "TOOLS_CONSUMER" in before.subscription_group_table
    await client.ok(PUT, body=GroupConfig("g").write())
    body = (await client.ok(GET_ALL)).body

    shown = GroupConfigs.read(body)
    assert shown.subscription_group_table["g"] == GroupConfig("g")
    assert shown.data_version.counter == before.data_version.counter + 1
    assert b'"groupName":"g","consumeEnable":true' in body


@run_by(with_client)
async def test_asking_for_an_unknown_group_does_not_create_it(client, /):
    assert await config(client, "g") == -NO_GROUP
    assert await config(client, "g") == -NO_GROUP
    assert await client.code_of(GET, NamedGroup()) == ERROR


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ({}, 5),
        ({"remove_offset": False}, 5),
        ({"remove_offset": True}, None),
        ({"clean_offset": True}, None),
        ({"remove_offset": False, "clean_offset": True}, None),
    ],
)
@run_by(in_world)
async def test_a_deleted_group_keeps_its_offsets_unless_a_flag_removes_them(stage, /, flags, left):
    client = await stage.client()
    await client.ok(PUT, body=GroupConfig("g").write())
    await client.fill("T", 5)
    await client.commit("g", "T", 0, 5)
    await client.ok(DELETE, DeleteGroup("g", **flags))

    assert await config(client, "g") == -NO_GROUP
    assert stage.broker.offsets.get("g", "T", 0) == left


@run_by(in_world)
async def test_deleting_an_unknown_group_succeeds(stage, /):
    await (await stage.client()).ok(DELETE, DeleteGroup("g"))


@run_by(in_world_with_client)
async def test_deleting_a_group_removes_its_counters(stage, client, /):
    await client.send("T")
    await client.pull("T", group="g")
    assert stage.broker.statistics.find("GROUP_GET_NUMS", "T@g")
    await client.ok(DELETE, DeleteGroup("g"))

    assert stage.broker.statistics.find("GROUP_GET_NUMS", "T@g") is None


@run_by(in_world_with_client)
async def test_a_confirmed_group_change_is_durable(stage, client, /):
    await client.ok(PUT, body=GroupConfig("g", retry_max_times=2).write())
    assert b'"retryMaxTimes": 2' in stage.disk.durable("config/groups.json")
    await client.fill("T", 5)
    await client.commit("g", "T", 0, 5)
    await client.ok(DELETE, DeleteGroup("g", remove_offset=True))

    assert b'"g"' not in stage.disk.durable("config/groups.json")
    assert b"T@g" not in stage.disk.durable("config/offsets.json")


@run_by(in_world_with_client)
async def test_a_group_change_that_cannot_be_saved_is_refused(stage, client, /):
    stage.disk.fail_writes(1)
    assert await client.code_of(PUT, body=GroupConfig("g").write()) == ERROR
    await client.ok(PUT, body=GroupConfig("g").write())


@run_by(in_lives)
async def test_groups_survive_a_restart(life, /):
    wanted = GroupConfig("g", retry_max_times=3)
    await (await life.client()).ok(PUT, body=wanted.write())
    await life.restart()

    assert await config(await life.client(), "g") == wanted
