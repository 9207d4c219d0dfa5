"""Tables of a leader that are large: compressed, and shipped only when they have changed."""

import asyncio

from tests.unit.set_stage import in_set
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import CopiedTables
from txmq.protocol.headers import TopicHeader
from txmq_broker.services import log_shipper


def test_tables_are_compressed_and_shipped_only_when_they_change(monkeypatch):
    shipped = []
    deflate = log_shipper.zlib.compress

    def noting(data, level):
        shipped.append(CopiedTables.read(data))
        return deflate(data, level)

    monkeypatch.setattr(log_shipper, "_DEFLATED_FROM", 0)
    monkeypatch.setattr(log_shipper.zlib, "compress", noting)

    async def main(stage):
        await stage.first.lead()
        stage.second.follow()
        client = await stage.first.client()
        await client.topic("T", 4)
        await client.send("T")
        await stage.caught_up(stage.second)
        tables = stage.second.follower.copy.tables
        assert "T" in tables.topics.topic_config_table
        assert sum(one.topics is not None for one in shipped) == 1
        assert sum(one.groups is not None for one in shipped) == 1

        shipped.clear()
        await client.commit("g", "T", 0, 1)
        await asyncio.sleep(3)
        assert shipped
        assert {(one.topics, one.groups) for one in shipped} == {(None, None)}
        copied = stage.second.follower.copy.tables
        assert "T" in copied.topics.topic_config_table
        assert copied.offsets.offset_table == {"T@g": {0: 1}}

        await client.topic("U")
        await asyncio.sleep(1)
        assert "U" in stage.second.follower.copy.tables.topics.topic_config_table
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
        await asyncio.sleep(1)
        assert "T" not in stage.second.follower.copy.tables.topics.topic_config_table
        changes = [one.topic_changes for one in shipped if one.topic_changes is not None]
        assert [([*one.changed], one.deleted) for one in changes] == [(["U"], []), ([], ["T"])]
        assert {(one.topics, one.groups) for one in shipped} == {(None, None)}

    in_set(main)
