"""17, 21, 215, 305, 351: topics are made, changed and deleted."""

import asyncio
import errno

import pytest

from tests.running import run_by
from tests.unit.handlers.handler_stage import (
    in_world_with_client,
    with_client,
    with_topics,
)
from tests.unit.handlers.transaction_stage import in_lives, in_lives_with_client
from txmq.protocol.bodies import TopicConfig, TopicConfigs, TopicNames
from txmq.protocol.command import BINARY, JSON
from txmq.protocol.headers import TopicHeader, TopicSettings
from txmq_broker.services.keeper import Keeper

PUT, GET_ALL, DELETE, SYSTEM, GET = 17, 21, 215, 305, 351
ERROR, UNAVAILABLE, NO_TOPIC = 1, 14, 17


async def config(client, name):
    answer = await client.ask(GET, TopicHeader(name))
    return TopicConfig.read(answer.body) if answer.code == 0 else -answer.code


@pytest.mark.parametrize("kind", [JSON, BINARY])
@run_by(with_client)
async def test_a_topic_is_created_and_changed_with_the_given_settings(client, /, kind):
    first = TopicSettings("T", "TBW102", 4, 8, 6, "MULTI_TAG", 1, order=True)
    await client.ok(PUT, first, kind=kind)
    assert await config(client, "T") == TopicConfig("T", 4, 8, 6, "MULTI_TAG", 1, order=True)
    await client.ok(PUT, TopicSettings("T", "TBW102", 2, 2, 4), kind=kind)
    assert await config(client, "T") == TopicConfig("T", 2, 2, 4)


@pytest.mark.parametrize(
    ("name", "read", "write"),
    [("a b", 4, 4), ("", 4, 4), ("T", 0, 0), ("T", -1, 4), ("T", 5000, 4), ("TBW102", 4, 4)],
)
@run_by(with_client)
async def test_a_topic_with_invalid_settings_is_refused(client, /, name, read, write):
    before = await config(client, name)

    assert await client.code_of(PUT, TopicSettings(name, "TBW102", read, write, 6)) == ERROR
    assert await config(client, name) == before


@run_by(with_client)
async def test_all_topics_are_listed_with_their_data_version(client, /):
    before = TopicConfigs.read((await client.ok(GET_ALL)).body).data_version
    await client.topic("T")
    body = (await client.ok(GET_ALL)).body

    shown = TopicConfigs.read(body)
    assert shown.topic_config_table["T"] == TopicConfig("T", 1, 1, 6)
    assert shown.data_version.counter == before.counter + 1
    assert b" " not in body


@run_by(with_client)
async def test_a_single_topic_is_shown_or_answered_unknown(client, /):
    assert await config(client, "T") == -NO_TOPIC
    assert (await config(client, "TBW102")).perm == 7


@run_by(with_client, topic="T")
async def test_system_topics_are_listed(client, /):
    names = TopicNames.read((await client.ok(SYSTEM)).body).topic_list

    assert "TBW102" in names
    assert "DefaultCluster_REPLY_TOPIC" in names
    assert "T" not in names


@run_by(in_world_with_client)
async def test_deleting_a_topic_removes_its_messages_and_offsets(stage, client, /):
    await client.send("T")
    await client.commit("g", "T", 0, 1)
    await client.ok(DELETE, TopicHeader("T"))

    assert await config(client, "T") == -NO_TOPIC
    assert (await client.pull("T")).code == NO_TOPIC
    assert stage.broker.offsets.get("g", "T", 0) is None
    await client.ok(DELETE, TopicHeader("T"))


@run_by(in_lives_with_client)
async def test_a_topic_created_again_does_not_show_deleted_messages(life, client, /):
    await client.fill("T", 3)
    await client.ok(DELETE, TopicHeader("T"))
    await life.restart()

    client = await life.client(topic="T")
    await client.send("T", b"new")

    assert (await client.pull("T", 3)).bodies == [b"new"]


def no_room(*_):
    raise OSError(errno.ENOSPC, "no room")


@run_by(in_lives_with_client)
async def test_a_topic_cannot_be_created_again_before_its_deletion_is_complete(
    life, client, /, monkeypatch
):
    await client.fill("T", 3)
    again = TopicSettings("T", "TBW102", 1, 1, 6)

    with monkeypatch.context() as refusing:
        refusing.setattr(Keeper, "save_floors", no_room)
        await client.ok(DELETE, TopicHeader("T"))
        assert await client.code_of(PUT, again) == UNAVAILABLE
    await client.ok(PUT, again)

    await life.restart()
    assert (await (await life.client()).pull("T")).bodies == []


@pytest.mark.parametrize("is_refused_again", [False, True])
@run_by(in_lives_with_client)
async def test_a_topic_whose_deletion_could_not_be_saved_keeps_its_messages(
    life, client, /, is_refused_again, monkeypatch
):
    await client.fill("T", 3)
    await client.commit("g", "T", 0, 1)

    def refuse(keeper, topics):
        if is_refused_again:
            life.disk.fail_writes(1)
        no_room()

    with monkeypatch.context() as refusing:
        refusing.setattr(Keeper, "save_topics", refuse)
        assert await client.code_of(DELETE, TopicHeader("T")) == UNAVAILABLE
    assert len((await client.pull("T")).bodies) == 3
    assert life.broker.offsets.get("g", "T", 0) == 1
    # What the disk refused as well is saved by the next round of chores.
    await asyncio.sleep(2)

    await life.restart()
    assert len((await (await life.client()).pull("T")).bodies) == 3


@run_by(with_client)
async def test_system_topics_cannot_be_deleted(client, /):
    assert await client.code_of(DELETE, TopicHeader("TBW102")) == ERROR


@run_by(in_lives)
async def test_topics_survive_a_restart(life, /):
    await (await life.client()).topic("T", 3)
    await life.restart()

    assert await config(await life.client(), "T") == TopicConfig("T", 3, 3, 6)


@run_by(with_client, with_topics(auto_create=False))
async def test_with_auto_creation_off_there_is_no_template_topic(client, /):
    assert await config(client, "TBW102") == -NO_TOPIC
