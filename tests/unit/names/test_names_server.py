"""The running server, in a world where waiting takes no time."""

import asyncio
import json

import pytest

from tests.running import run_by
from tests.unit.names.names_peer import (
    LoopClock,
    MemoryDisk,
    MemoryNetwork,
    in_world,
    offer,
    registration,
)
from txmq.errors import (
    ConnectionLost,
    DamagedFile,
    InternalError,
    NotFound,
    ServiceUnavailable,
    TopicNotFound,
    UsageError,
)
from txmq.protocol.bodies import RegistrationBody, TopicRoute
from txmq.protocol.codes import RequestCode as Code
from txmq.protocol.command import encode
from txmq.remoting.pool import ConnectionPool
from txmq_broker.names import key_values
from txmq_broker.names.server import NameServer

PLACE = ("10.0.0.5", 9876)
BODY = RegistrationBody(topic_config_serialize_wrapper=offer("T")).write()


class World:
    """One name server and the ways to it."""

    def __init__(self, disk=None):
        self.network = MemoryNetwork()
        self.disk = disk
        self.clock = LoopClock()
        self.server = NameServer(self.network, self.clock, disk)
        self._pools = []

    async def __aenter__(self):
        await self.server.__aenter__()
        await self.server.open(*PLACE)
        return self

    async def __aexit__(self, *problem):
        for pool in self._pools:
            await pool.close()
        await self.server.__aexit__(*problem)

    async def peer(self):
        """A connection of its own."""
        self._pools.append(ConnectionPool(self.network, self.clock))
        return await self._pools[-1].connection(f"{PLACE[0]}:{PLACE[1]}")


def with_server(main, disk=lambda: None):
    """Run a coroutine function of a :class:`World`, on a disk of its own."""

    async def serve():
        async with World(disk()) as world:
            await main(world)

    in_world(serve)


async def ask(peer, code, header=None, **given):
    return await peer.request(code, header, timeout_s=3.0, **given)


async def route(peer):
    return await ask(peer, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})


@run_by(with_server)
async def test_a_broker_registers_and_a_client_finds_it(world, /):
    broker, client = await world.peer(), await world.peer()
    await ask(broker, Code.REGISTER_BROKER, registration(), body=BODY)

    found = TopicRoute.read((await route(client)).body)

    assert found.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}


@run_by(with_server)
async def test_a_closed_connection_unregisters_its_broker_at_once(world, /):
    broker, client = await world.peer(), await world.peer()
    await ask(broker, Code.REGISTER_BROKER, registration(), body=BODY)
    before = world.clock.monotonic()

    broker.close()
    await ask(client, Code.GET_BROKER_CLUSTER_INFO)  # the end of the other one arrives first
    with pytest.raises(TopicNotFound):
        await route(client)

    assert world.clock.monotonic() == before


@run_by(with_server)
async def test_a_silent_broker_is_removed_at_the_first_sweep_after_its_timeout(world, /):
    """Its connection stays: the broker's timeout is 20 s, that of a connection is 120 s."""
    broker, client = await world.peer(), await world.peer()
    who = registration(heartbeat_timeout_millis=20_000)
    await ask(broker, Code.REGISTER_BROKER, who, body=BODY)

    await asyncio.sleep(19.9)
    await route(client)
    await asyncio.sleep(5.2)
    with pytest.raises(TopicNotFound):
        await route(client)

    assert broker.is_open


@run_by(with_server)
async def test_a_broker_that_registers_every_30_seconds_stays(world, /):
    broker = await world.peer()
    for _ in range(20):
        await ask(broker, Code.REGISTER_BROKER, registration(), body=BODY)
        await asyncio.sleep(30.0)

    await route(broker)


ENTRY = {"namespace": "N", "key": "k", "value": "v"}


async def disk_with_a_value_and_an_option():
    disk = MemoryDisk()
    async with World(disk) as world:
        peer = await world.peer()
        await ask(peer, Code.PUT_KV_CONFIG, ENTRY)
        await ask(peer, Code.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    return disk


@run_by(in_world)
async def test_key_values_and_options_survive_a_restart():
    disk = await disk_with_a_value_and_an_option()

    async with World(disk) as world:
        peer = await world.peer()
        found = await ask(peer, Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"})
        assert found.field_map() == {"value": "v"}
        shown = await ask(peer, Code.GET_NAMESRV_CONFIG)
        assert b"orderMessageEnable=true\n" in shown.body
        assert b"listenPort=9876\n" in shown.body
    assert sorted(disk.files) == [
        "config/kv.json",
        "config/kv.json.old",
        "config/names.properties",
        "config/names.properties.old",
    ]


@pytest.mark.parametrize("path", ["config/kv.json", "config/names.properties"])
@run_by(in_world)
async def test_a_deleted_file_is_restored_from_its_predecessor(path, caplog):
    disk = await disk_with_a_value_and_an_option()
    kept = disk.files.pop(path)

    async with World(disk):
        pass

    assert f"{path}: it was deleted; its predecessor {path}.old takes its place" in caplog.text
    assert disk.files[path] == kept


@run_by(in_world)
async def test_a_change_that_cannot_be_written_to_disk_is_refused():
    disk = MemoryDisk()
    disk.broken = True

    async with World(disk) as world:
        peer = await world.peer()
        with pytest.raises(InternalError, match="No space left"):
            await ask(peer, Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"})


async def put_slowly(world, *entries):
    """Put values while the disk writes the first one; return the pending requests."""
    peer = await world.peer()
    world.disk.is_free.clear()
    asked = []
    for key, value in entries:
        header = {"namespace": "N", "key": key, "value": value}
        asked.append(asyncio.ensure_future(ask(peer, Code.PUT_KV_CONFIG, header)))
        await asyncio.sleep(0.1)
    return peer, asked


@run_by(with_server, MemoryDisk)
async def test_a_slow_disk_delays_only_the_changes_themselves(world, /):
    peer, asked = await put_slowly(world, ("a", "1"), ("b", "1"), ("a", "2"))

    with pytest.raises(NotFound):
        await ask(peer, Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert not any(request.done() for request in asked)
    world.disk.is_free.set()
    await asyncio.gather(*asked)

    found = await ask(peer, Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert json.loads(found.body) == {"table": {"a": "2", "b": "1"}}


@run_by(with_server, MemoryDisk)
async def test_changes_that_arrive_during_a_write_share_the_next_one(world, /):
    entries = [(f"k{number}", "v") for number in range(10)]
    _, asked = await put_slowly(world, *entries)
    before = world.disk.writes
    world.disk.is_free.set()
    await asyncio.gather(*asked)

    # The first change alone, then all others; each write replaces two files.
    assert world.disk.writes - before == 4


@run_by(with_server, MemoryDisk)
async def test_a_failed_write_undoes_the_changes_that_depend_on_it(world, /):
    peer, asked = await put_slowly(world, ("a", "1"), ("b", "1"))
    world.disk.broken = True
    world.disk.is_free.set()
    refused = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in refused] == [InternalError, InternalError]
    world.disk.broken = False

    await ask(peer, Code.PUT_KV_CONFIG, {"namespace": "N", "key": "c", "value": "1"})

    found = await ask(peer, Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert json.loads(found.body) == {"table": {"c": "1"}}


@run_by(in_world)
async def test_the_changes_that_wait_for_the_disk_are_limited(monkeypatch):
    monkeypatch.setattr(key_values, "POSTPONED_MAX", 2)
    disk = MemoryDisk()

    async with World(disk) as world:
        peer, asked = await put_slowly(world, ("a", "1"), ("a", "2"))

        with pytest.raises(ServiceUnavailable, match="wait for the disk"):
            await ask(peer, Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "a"})
        disk.is_free.set()
        await asyncio.gather(*asked)
        await ask(peer, Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "a"})


@run_by(in_world)
async def test_an_unused_field_can_hold_any_bytes():
    header = {"namespace": "N", "key": "k", "value": "v", "more": "xyz"}
    frame = encode(Code.PUT_KV_CONFIG, 1, header).replace(b"xyz", b"\xf1yz")

    async with World(MemoryDisk()) as world:
        peer = await world.peer()
        peer._transport.write(frame)
        await asyncio.sleep(1.0)

        found = await ask(peer, Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"})
        assert found.field_map() == {"value": "v"}
        await ask(peer, Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "k"})


@run_by(in_world)
async def test_closing_waits_for_a_running_write():
    disk = MemoryDisk()

    async with World(disk) as world:
        _, (asked,) = await put_slowly(world, ("a", "1"))
        asyncio.get_running_loop().call_later(1.0, disk.is_free.set)
    assert "config/kv.json" in disk.files
    with pytest.raises(ConnectionLost):
        await asked


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("config/kv.json", b"{"),
        ("config/names.properties", b"orderMessageEnable=perhaps"),
        ("config/names.properties", b"\xff"),
    ],
)
@run_by(in_world)
async def test_a_damaged_file_stops_the_start(path, data):
    disk = MemoryDisk()
    disk.files[path] = data

    with pytest.raises(DamagedFile, match=path):
        async with World(disk):
            pass


@run_by(in_world)
async def test_closing_stops_listening_and_cancels_every_timer():
    async with World() as world:
        peer = await world.peer()
    with pytest.raises(OSError, match="refused"):
        await world.network.connect(asyncio.Protocol, *PLACE)
    await asyncio.sleep(0)
    assert not peer.is_open
    # A timer that is left would run for ever.
    assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]


def test_opening_a_name_server_that_is_not_entered_is_refused():
    with pytest.raises(UsageError):
        in_world(lambda: NameServer(MemoryNetwork(), LoopClock()).open(*PLACE))
