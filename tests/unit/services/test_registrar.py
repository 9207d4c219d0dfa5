"""Registration at several name servers, through their failures, none delaying another."""

import asyncio
import logging
from functools import wraps

import pytest

from tests.unit.core.core_log import Log
from txmq.protocol import command as commands
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.codes import RequestCode
from txmq.remoting.listener import Listener
from txmq.remoting.pool import ConnectionPool
from txmq.testing import simulate
from txmq_broker.config import BrokerSettings, TopicDefaults
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics
from txmq_broker.names.server import NameServer
from txmq_broker.services import registrar as registering
from txmq_broker.services.registrar import Registrar

PORT = 9876
PERIOD_S, RETRY_S = registering.PERIOD_S, registering.RETRY_S


def in_world(scenario):
    """Run a coroutine test in its own world."""

    @wraps(scenario)
    def test():
        simulate(scenario, 3, timeout=3600.0)

    del test.__wrapped__  # the world is not a fixture
    return test


class NamedTopics(Topics):
    """Topics of which only the names matter."""

    def __init__(self, *names):
        super().__init__(Log().store, TopicDefaults())
        self.become(*names)

    def become(self, *names):
        for name in [topic.name for topic in self if topic.name not in names]:
            self.remove(name, 1)
        for name in names:
            if name not in self.by_name:
                self.put(TopicConfig(name), 1)
        self.settle()


class Stage:
    """A registrar on one machine, name servers on others."""

    def __init__(self, world, *servers):
        self.world = world
        self.machines = {name: world.machine(name) for name in servers}
        self.servers = {}
        self.topics = NamedTopics("First")
        self.registrar, self.pool = self.broker("10.0.1.1")

    def broker(self, address, log_identity="0123456789abcdef", machine="broker"):
        """The registrar of a broker on a machine of its own, and its connections."""
        machine = self.world.machine(machine, address)
        entropy, clock = machine.entropy, machine.clock
        identity = Identity.of(BrokerSettings(), address, 10911, entropy, clock, log_identity)
        pool = ConnectionPool(machine.network, clock)
        names = [f"{name}:{PORT}" for name in self.machines]
        return Registrar(identity, self.topics, pool, names), pool

    async def serve(self, *names):
        """Start name servers; each knows nothing yet."""
        for name in names:
            machine = self.machines[name]
            server = self.servers[name] = NameServer(machine.network, machine.clock)
            await server.__aenter__()
            await server.open(machine.address, PORT)

    async def kill(self, name):
        await self.servers.pop(name).__aexit__(None, None, None)

    def knows(self, name, topic="First"):
        """Whether a name server has a route to a topic."""
        return topic in self.servers[name].routes.topics().topic_list

    async def close(self):
        await self.registrar.stop()
        await self.pool.close()
        for name in list(self.servers):
            await self.kill(name)


async def until(holds, world, within_s):
    """The virtual seconds until a condition holds."""
    began = world.now()
    while not holds():
        assert world.now() - began < within_s
        await asyncio.sleep(0.01)
    return world.now() - began


@in_world
async def test_a_started_broker_is_registered_at_every_name_server(world):
    stage = Stage(world, "n1", "n2", "n3")
    await stage.serve("n1", "n2", "n3")

    await stage.registrar.start()

    assert all(stage.knows(name) for name in stage.servers)
    await stage.close()


@in_world
async def test_topic_changes_are_registered_at_once_and_a_stop_unregisters(world):
    stage = Stage(world, "n1", "n2")
    await stage.serve("n1", "n2")
    await stage.registrar.start()

    stage.topics.become("First", "Second")
    stage.registrar.changed()
    await asyncio.sleep(0.5)
    assert stage.knows("n1", "Second")
    assert stage.knows("n2", "Second")

    await stage.registrar.stop()
    assert not stage.knows("n1")
    assert not stage.knows("n2")
    await stage.close()


@in_world
async def test_the_broker_registers_at_a_name_server_that_starts_later(world):
    stage = Stage(world, "n1", "n2")
    await stage.serve("n1")
    await stage.registrar.start()
    assert stage.knows("n1")

    await asyncio.sleep(20)
    await stage.serve("n2")

    assert await until(lambda: stage.knows("n2"), world, 10.0) <= RETRY_S + 0.5
    await stage.close()


@in_world
async def test_the_broker_registers_again_at_a_restarted_name_server(world):
    stage = Stage(world, "n1", "n2")
    await stage.serve("n1", "n2")
    await stage.registrar.start()
    await asyncio.sleep(5)

    await stage.kill("n1")
    await stage.serve("n1")

    assert await until(lambda: stage.knows("n1"), world, PERIOD_S) <= RETRY_S + 0.5
    assert stage.knows("n2")
    await stage.close()


@in_world
async def test_the_broker_registers_again_after_a_broken_connection(world):
    stage = Stage(world, "n1")
    await stage.serve("n1")
    await stage.registrar.start()
    world.network.cut("broker", "n1")
    await asyncio.sleep(0.1)
    assert not stage.knows("n1")

    assert await until(lambda: stage.knows("n1"), world, PERIOD_S) <= RETRY_S + 0.5
    await stage.close()


@in_world
async def test_a_silent_name_server_does_not_delay_the_others(world):
    stage = Stage(world, "n1", "n2")
    await stage.serve("n1", "n2")
    world.network.partition("broker", "n2")
    await stage.registrar.start()

    for number in range(20):
        stage.topics.become(f"T{number}")
        stage.registrar.changed()
        told = await until(lambda n=number: stage.knows("n1", f"T{n}"), world, 10.0)
        assert told < 0.5
        await asyncio.sleep(0.7)

    world.network.heal()
    assert await until(lambda: stage.knows("n2", "T19"), world, 30.0) <= 5.0
    await stage.close()


@in_world
async def test_a_stop_waits_for_all_silent_name_servers_at_once(world):
    names = [f"n{n}" for n in range(5)]
    stage = Stage(world, *names)
    await stage.serve(*names)
    await stage.registrar.start()
    for name in names[1:]:
        world.network.partition("broker", name)
    began = world.now()

    await stage.registrar.stop()

    assert world.now() - began <= 2 * registering.TIMEOUT_S
    assert not stage.knows("n0")
    world.network.heal()
    await stage.close()


@in_world
async def test_registrations_repeat_every_30_s_and_a_refusal_is_retried_every_second(world):
    """Every 30 seconds if all is well, and every second if a name server refuses."""
    times = {}

    def service(name, code):
        def serve(connection, request):
            if request.code == RequestCode.REGISTER_BROKER:
                times.setdefault(name, []).append(world.now())
            return commands.answer(request, code)

        return serve

    stage = Stage(world, "well", "sour")
    doors = []
    for name, code in (("well", 0), ("sour", 1)):
        machine = stage.machines[name]
        door = Listener(machine.network, machine.clock, service(name, code), connections_max=9)
        await door.open(machine.address, PORT)
        doors.append(door)
    await stage.registrar.start()
    await asyncio.sleep(301)

    assert 10 <= len(times["well"]) <= 12
    assert 280 <= len(times["sour"]) <= 303
    gaps = [b - a for a, b in zip(times["sour"], times["sour"][1:], strict=False)]
    assert min(gaps) >= RETRY_S
    await stage.close()
    for door in doors:
        door.close()


def test_an_unreachable_name_server_is_logged_once_and_so_is_its_return(caplog):
    @in_world
    async def scenario(world):
        stage = Stage(world, "n1")
        await stage.registrar.start()
        await asyncio.sleep(60)
        await stage.serve("n1")
        await asyncio.sleep(60)
        await stage.close()

    with caplog.at_level(logging.INFO, logger="txmq_broker.services.registrar"):
        scenario()

    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "txmq_broker.services.registrar"
    ]
    assert len(said) == 2
    assert "cannot register" in said[0]
    assert "knows this broker again" in said[1]


@pytest.mark.parametrize("count", [0, 1])
def test_a_registrar_can_be_stopped_before_it_started(count):
    @in_world
    async def scenario(world):
        stage = Stage(world, *["n1"][:count])
        await stage.registrar.stop()
        await stage.close()

    scenario()


@in_world
async def test_a_second_broker_with_the_same_name_waits_until_the_first_is_gone(world):
    stage = Stage(world, "n1")
    await stage.serve("n1")
    await stage.registrar.start()
    routes = stage.servers["n1"].routes

    def address():
        return routes.members("", "broker-a").broker_addrs.get(0)

    second, pool = stage.broker("10.0.1.2", "another log", machine="second")
    await second.start()
    await asyncio.sleep(5)
    assert address() == "10.0.1.1:10911"

    await stage.registrar.stop()
    await until(lambda: address() == "10.0.1.2:10911", world, RETRY_S + 0.5)
    await second.stop()
    await pool.close()
    await stage.close()


@in_world
async def test_a_broker_that_moves_to_another_address_keeps_its_name(world):
    stage = Stage(world, "n1")
    await stage.serve("n1")
    await stage.registrar.start()
    moved, pool = stage.broker("10.0.1.2", machine="other")
    await moved.start()
    members = stage.servers["n1"].routes.members("", "broker-a")
    assert members.broker_addrs == {0: "10.0.1.2:10911"}
    await moved.stop()
    await pool.close()
    await stage.close()


@in_world
async def test_many_topics_are_registered_in_parts_and_later_only_their_changes(world):
    stage = Stage(world, "n1")
    names = [f"T{number}" for number in range(3_000)]
    stage.topics.become(*names)
    await stage.serve("n1")
    await stage.registrar.start()
    assert all(stage.knows("n1", name) for name in (names[0], names[-1]))

    known = stage.servers["n1"].routes.version
    await asyncio.sleep(3 * PERIOD_S + 1)
    assert stage.knows("n1", names[-1]), "comparing versions counts as a sign of life"
    stage.topics.become(*names, "New")
    stage.registrar.changed()
    await asyncio.sleep(0.5)
    assert stage.knows("n1", "New")
    (replica,) = stage.servers["n1"].routes._replicas()
    assert known(replica.broker_name, replica.address) == stage.topics.saved().data_version

    await stage.kill("n1")
    await stage.serve("n1")
    await until(lambda: stage.knows("n1", names[0]) and stage.knows("n1", "New"), world, 10.0)
    await stage.close()
