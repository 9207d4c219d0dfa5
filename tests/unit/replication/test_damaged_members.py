"""Members of a set with a coordinator and damaged logs: who leads, and what is lost."""

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import force_setattr, replace

from tests.running import run_by
from tests.unit.handlers.handler_stage import STEADY, Client, Inbox
from tests.unit.replication.copy_stage import log_of
from tests.unit.replication.test_log_repair import flip, place_of, until
from txmq.remoting.pool import ConnectionPool
from txmq.testing import MachineCrashedError, World
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.access.audit import read_audit
from txmq_broker.config import BrokerSettings, ReplicationSettings, StoreSettings
from txmq_broker.names.server import NameServer
from txmq_broker.processes.member import SetMember
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.identity import known_log

PORT = 10911
NAMES = ("m1", "m2", "m3")


class Node:
    """One machine of the set."""

    def __init__(self, stage, store, name):
        self.machine = stage.world.machine(name)
        self._stage = stage
        self.name = name
        self._store = store
        self.member = self._running = None

    @property
    def disk(self):
        return self.machine.disk

    @property
    def broker(self):
        return None if self.member is None else self.member.broker

    @property
    def follower(self):
        return None if self.member is None else self.member.follower

    def start(self):
        machine = self.machine
        sizes = StoreSettings(
            checkpoint_every=64 * 1024,
            verify_bytes_per_second=self._stage.verify_bytes_per_second,
        )
        force_setattr(sizes, "segment_size", 64 * 1024)
        settings = BrokerSettings(
            name="a",
            listen=f"{machine.address}:{PORT}",
            names="names:9876",
            store=sizes,
            replication=ReplicationSettings(
                coordinator="etcd://store:2379", member=self.name, mode="sync", lease=5
            ),
        )
        self.member = SetMember(
            settings,
            self._store.coordinator(self.name),
            clock=machine.clock,
            network=machine.network,
            disk=machine.disk,
            entropy=machine.entropy,
        )
        self._running = machine.run(self.member.run(), name="member")

    async def stop(self):
        if self.member is not None:
            self.member.stop()
            await self._running
            self.member = None

    async def kill(self):
        self.machine.kill()
        with suppress(MachineCrashedError):
            await self._running
        self.member = None

    def log_files(self):
        return log_of(self.disk)


class MemberStage:
    """Three members, a store of the set, and a client of the leader."""

    def __init__(self, world):
        self.world = world
        store = SimulatedCoordination(world.machine("store").entropy)
        self.nodes = {name: Node(self, store, name) for name in NAMES}
        self.verify_bytes_per_second = 20_000_000
        self.clients = 0

    @property
    def leader(self):
        return next((node for node in self.nodes.values() if node.broker is not None), None)

    @property
    def followers(self):
        return [node for node in self.nodes.values() if node.follower is not None]

    async def started(self, *names):
        for name in names or NAMES:
            self.nodes[name].start()
        await self.in_sync(len(names or NAMES) - 1)

    async def in_sync(self, count=2, within=60):
        """Wait until a leader has this many followers in sync."""

        def has():
            leader = self.leader
            return (
                leader is not None
                and hasattr(leader.broker, "parts")
                and leader.broker.parts.figures()["followers_in_sync"] == count
            )

        await until(has, within)

    async def client(self):
        inbox = Inbox()
        self.clients += 1
        machine = self.world.machine(f"client-{self.clients}")
        pool = ConnectionPool(machine.network, machine.clock, inbox.serve)
        address = f"{self.leader.machine.address}:{PORT}"
        return Client(await machine.run(pool.connection(address)), inbox, f"client-{self.clients}")

    async def filled(self, count=120):
        """Send messages; all files but the newest are indexed then."""
        client = await self.client()
        await client.topic("T", 1)
        for number in range(count):
            await client.send("T", b"%d " % number + b"." * 2000)

    async def numbers(self):
        """The numbers of all messages, from the leader."""
        client, found, offset = await self.client(), [], 0
        while (pulled := await client.pull("T", offset)).records:
            found += [int(body.split()[0]) for body in pulled.bodies]
            offset = pulled.next
        return found

    async def all_whole(self):
        """Wait until every member is in sync and knows no damage, and all logs are the same."""

        def is_whole():
            nodes = list(self.nodes.values())
            logs = [node.log_files() for node in nodes]
            return all(log == logs[0] for log in logs) and not any(
                Keeper(node.disk).copy_state().damaged for node in nodes
            )

        await self.in_sync()
        await until(is_whole)


def with_members(main):
    world = World(1, scenario=main.__qualname__, conditions=STEADY)

    async def scenario():
        machine = world.machine("names")
        names = NameServer(machine.network, machine.clock, machine.disk)

        async def serve():
            async with names:
                await names.open("names", 9876)
                await asyncio.Event().wait()

        serving = machine.run(serve(), name="names")
        stage = MemberStage(world)
        await main(stage)
        for node in stage.nodes.values():
            await node.stop()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    world.run(scenario(), timeout=3600.0)


def test_a_damaged_leader_hands_over_and_is_repaired_from_the_next_one(caplog):
    warnings = []

    async def main(stage):
        await stage.started()
        await stage.filled()
        first = stage.leader
        position = flip(first, 0)
        await until(lambda: stage.leader not in {first, None})
        await stage.all_whole()
        assert stage.leader is not first
        assert await stage.numbers() == list(range(120))
        entries = [*read_audit(first.disk, warnings.append)]
        assert [entry.fields["start"] for entry in entries if entry.request == "REPAIR_LOG"] == [
            str(position)
        ]

    with_members(main)
    assert warnings == []
    assert any("handing over" in line and "its log is damaged" in line for line in caplog.messages)


@run_by(with_members)
async def test_bits_flipped_in_all_members_under_load_lose_no_message(stage, /):
    await stage.started()
    await stage.filled()
    client = await stage.client()

    async def load():
        for number in range(120, 200):
            await client.send("T", b"%d " % number + b"." * 2000)

    loading = asyncio.create_task(load())
    for span, node in enumerate(stage.nodes.values()):
        for file in range(3):
            flip(node, file, span + 1 + file, (3, 20, 70)[file])
    with suppress(Exception):  # The leader hands over, and the connection is lost.
        await loading
    await asyncio.sleep(1)
    await stage.all_whole()
    assert (await stage.numbers())[:120] == list(range(120))


@run_by(with_members)
async def test_members_damaged_in_different_places_while_stopped_repair_each_other(stage, /):
    await stage.started()
    await stage.filled()
    for node in stage.nodes.values():
        await node.stop()
    for span, node in enumerate(stage.nodes.values()):
        flip(node, 0, span + 1)
        flip(node, 1, span + 1, 20)
    await stage.started()
    await asyncio.sleep(1)
    await stage.all_whole()
    assert await stage.numbers() == list(range(120))


@run_by(with_members)
async def test_a_part_that_is_damaged_in_two_members_is_repaired_from_the_third(stage, /):
    await stage.started()
    await stage.filled()
    whole = stage.followers[0]
    for node in stage.nodes.values():
        if node is not whole:
            flip(node, 1, 2)
    await until(lambda: stage.leader is whole)
    await stage.all_whole()
    assert await stage.numbers() == list(range(120))


@run_by(with_members)
async def test_a_wiped_member_copies_the_log_from_the_undamaged_follower(stage, /):
    await stage.started()
    await stage.filled()
    first, wiped = stage.leader, stage.followers[0]
    await wiped.stop()
    for folder in ("log", "index", "config", "."):
        for name in wiped.disk.names(folder):
            with suppress(OSError):
                wiped.disk.remove(name if folder == "." else f"{folder}/{name}")
    flip(first, 1, 3)
    wiped.start()
    await until(lambda: stage.leader not in {first, None})
    await stage.all_whole()
    assert await stage.numbers() == list(range(120))


@pytest.mark.parametrize("has_another", [True, False])
def test_a_member_with_known_damage_leads_only_if_no_other_member_does(has_another, caplog):
    async def main(stage):
        await stage.started()
        await stage.filled()
        damaged, other, _ = stage.nodes.values()
        for node in stage.nodes.values():
            await node.stop()
        start = flip(damaged, 0, 2)
        keeper = Keeper(damaged.disk)
        state = keeper.copy_state()
        keeper.owner = f"{known_log(damaged.disk)[0]:016x}"
        keeper.save_copy_state(replace(state, damaged=[(start, start + 2000)]))
        damaged.start()
        await asyncio.sleep(9)
        assert damaged.broker is None
        if has_another:
            other.start()
            await until(lambda: other.broker is not None)
            await stage.in_sync(1)
            assert damaged.log_files() == other.log_files()
        else:
            await until(lambda: damaged.broker is not None)
            await asyncio.sleep(2)
            assert damaged.broker.parts.verifier.damaged

    with_members(main)
    assert any("does not lead: its log is damaged in 1 part" in line for line in caplog.messages)


@run_by(with_members)
async def test_damage_found_by_a_pull_is_repaired_without_verification_rounds(stage, /):
    """With ``verify_bytes_per_second = 0`` the reader finds the damage."""
    stage.verify_bytes_per_second = 0
    await stage.started()
    await stage.filled()
    first = stage.leader
    flip(first, 0, 3)
    await asyncio.sleep(60)
    assert stage.leader is first

    await stage.numbers()
    await until(lambda: stage.leader not in {first, None})
    await stage.in_sync()
    assert await stage.numbers() == list(range(120))
    await stage.all_whole()


@run_by(with_members)
async def test_a_leader_with_a_damaged_span_head_does_not_make_followers_cut_their_logs(stage, /):
    stage.verify_bytes_per_second = 0
    await stage.started()
    await stage.filled()
    first = stage.leader
    for node in stage.followers:
        await node.stop()
    first.disk.flip_bit(*place_of(first, -1, -1, 20))
    for node in stage.nodes.values():
        if node is not first:
            node.start()
    await asyncio.sleep(20)
    assert not any(node.disk.names("cut") for node in stage.nodes.values() if node is not first)
    await first.kill()
    first.start()
    await stage.all_whole()
    assert await stage.numbers() == list(range(120))
