"""Large tables of a leader are compressed and are shipped only if they changed."""

import asyncio
import zlib

from tests.unit.replication.set_stage import in_set
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import CopiedTables
from txmq.protocol.headers import TopicHeader
from txmq_broker.replication import log_shipper
from txmq_broker.services import slices as long_requests


class NotingZlib:
    """Compresses, and records the parts that it compressed."""

    def __init__(self, note, begun=lambda: None):
        self._note = note
        self._begun = begun

    def compress(self, data, level):
        self._note([data])
        return zlib.compress(data, level)

    def compressobj(self, level):
        return NotingCompressor(self._note, self._begun, zlib.compressobj(level))


class NotingCompressor:
    def __init__(self, note, begun, real):
        self._note, self._begun, self._real = note, begun, real
        self._parts = []

    def compress(self, data):
        self._begun()
        self._parts.append(data)
        return self._real.compress(data)

    def flush(self):
        self._note(self._parts)
        return self._real.flush()


def test_tables_are_compressed_and_shipped_only_when_they_change(monkeypatch):
    shipped = []

    def note(parts):
        shipped.append(CopiedTables.read(b"".join(parts)))

    monkeypatch.setattr(log_shipper, "_DEFLATED_FROM", 0)
    monkeypatch.setattr(log_shipper, "zlib", NotingZlib(note))

    async def main(stage):
        await stage.first.lead()
        stage.second.follow()
        client = await stage.first.client()
        await client.topic("T", 4)
        await client.send("T")
        await stage.caught_up(stage.second)
        tables = stage.second.follower.copy.tables
        assert "T" in tables.topics.topic_config_table
        assert sum(shipment.topics is not None for shipment in shipped) == 1
        assert sum(shipment.groups is not None for shipment in shipped) == 1

        shipped.clear()
        await client.commit("g", "T", 0, 1)
        await asyncio.sleep(3)
        assert shipped
        assert {(shipment.topics, shipment.groups) for shipment in shipped} == {(None, None)}
        copied = stage.second.follower.copy.tables
        assert "T" in copied.topics.topic_config_table
        assert copied.offsets.offset_table == {"T@g": {0: 1}}

        await client.topic("U")
        await asyncio.sleep(1)
        assert "U" in stage.second.follower.copy.tables.topics.topic_config_table
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("T"))
        await asyncio.sleep(1)
        assert "T" not in stage.second.follower.copy.tables.topics.topic_config_table
        changes = [
            shipment.topic_changes for shipment in shipped if shipment.topic_changes is not None
        ]
        assert [([*shipment.changed], shipment.deleted) for shipment in changes] == [
            (["U"], []),
            ([], ["T"]),
        ]
        assert {(shipment.topics, shipment.groups) for shipment in shipped} == {(None, None)}

    in_set(main)


def test_other_tasks_run_between_parts_of_tables_encoded_for_a_follower(monkeypatch):
    turns, turns_of_parts = 0, []

    def pass_turn():
        nonlocal turns
        turns += 1

    def begin_part():
        turns_of_parts.append(turns)
        asyncio.get_running_loop().call_soon(pass_turn)

    # Time stands still during a turn of a simulated machine, so each part is too long.
    monkeypatch.setattr(long_requests, "TURN_S", -1.0)
    monkeypatch.setattr(log_shipper, "_DEFLATED_FROM", 0)
    monkeypatch.setattr(log_shipper, "zlib", NotingZlib(lambda parts: None, begin_part))

    async def main(stage):
        await stage.first.lead()
        topics = stage.first.broker.topics
        for number in range(5_000):
            topics.put(TopicConfig(f"T{number}", 1, 1), 0)
        await (await stage.first.client()).send("T0")
        stage.second.follow()
        await stage.caught_up(stage.second)
        copied = stage.second.follower.copy.tables.topics.topic_config_table
        assert copied.keys() == topics.saved().topic_config_table.keys()

    in_set(main)
    # Three parts of topics, two around them, and more of the other tables.
    assert len(turns_of_parts) > 10
    assert len(set(turns_of_parts)) == len(turns_of_parts)
