"""The connections of a client: one per address, shared by all callers, and reopened when lost."""

import asyncio

import pytest

from tests.unit.remoting.remoting_stage import ADDRESS, Stage, echo, failure, in_world
from txmq.errors import ConfigError, ConnectFailed
from txmq.remoting.pool import CONNECT_TIMEOUT_S, ConnectionPool, split_address

CODE = 10


def pool_of(stage, service=echo):
    return ConnectionPool(stage.client.network, stage.client.clock, service)


@in_world
async def test_concurrent_callers_share_one_connection(world):
    async with Stage(world, echo) as stage:
        pool = pool_of(stage)

        found = await asyncio.gather(*[pool.connection(ADDRESS) for _ in range(50)])
        found.append(await pool.connection(ADDRESS))
        await asyncio.sleep(1)

        assert len({id(connection) for connection in found}) == 1
        assert stage.listener.connections == 1
        assert pool.opened() == [found[0]]
        await pool.close()


@in_world
async def test_a_lost_connection_is_opened_again_when_needed(world):
    async with Stage(world, echo) as stage:
        pool = pool_of(stage)
        first = await pool.connection(ADDRESS)
        world.network.cut("server", "client")
        await asyncio.sleep(1)
        assert pool.opened() == []
        assert stage.listener.connections == 0

        second = await pool.connection(ADDRESS)

        assert second is not first
        assert (await second.ask(CODE, body=b"y", timeout_s=5.0)).body == b"y"
        await pool.close()


@in_world
async def test_a_refused_connect_fails_at_once_and_is_tried_again_next_time(world):
    stage = Stage(world, echo)
    pool = pool_of(stage)
    began = world.now()
    problems = await asyncio.gather(
        *[pool.connection(ADDRESS) for _ in range(5)], return_exceptions=True
    )
    assert [type(problem) for problem in problems] == [ConnectFailed] * 5
    assert ADDRESS in str(problems[0])
    assert world.now() - began < 1.0

    async with stage:
        assert (await pool.connection(ADDRESS)).is_open
        await pool.close()


@in_world
async def test_connecting_to_a_silent_host_times_out(world):
    async with Stage(world, echo) as stage:
        pool = pool_of(stage)
        world.network.partition("server", "client")
        began = world.now()

        assert isinstance(await failure(pool.connection(ADDRESS)), ConnectFailed)

        assert world.now() - began == pytest.approx(CONNECT_TIMEOUT_S)
        world.network.heal()
        assert (await pool.connection(ADDRESS)).is_open
        await pool.close()


@in_world
async def test_a_cancelled_caller_does_not_cancel_the_connect_of_others(world):
    async with Stage(world, echo) as stage:
        world.network.slow("server", "client", 0.5)
        pool = pool_of(stage)
        impatient = asyncio.ensure_future(pool.connection(ADDRESS))
        patient = asyncio.ensure_future(pool.connection(ADDRESS))
        await asyncio.sleep(0.1)

        impatient.cancel()

        assert (await patient).is_open
        assert impatient.cancelled()
        await pool.close()


@in_world
async def test_a_failed_connect_without_callers_leaves_no_unseen_error(world):
    async with Stage(world, echo) as stage:
        world.network.partition("server", "client")
        pool = pool_of(stage)
        caller = asyncio.ensure_future(pool.connection(ADDRESS))
        await asyncio.sleep(0.1)
        caller.cancel()
        await asyncio.sleep(CONNECT_TIMEOUT_S + 1)  # the world fails if an error goes unseen

        assert pool._opening == {}


@in_world
async def test_closing_a_pool_closes_open_and_opening_connections(world):
    async with Stage(world, echo) as stage:
        pool = pool_of(stage)
        opened = await pool.connection(ADDRESS)
        opening = asyncio.ensure_future(pool.connection("10.0.0.1:9001"))
        world.network.partition("server", "client")
        await asyncio.sleep(0.1)

        await pool.close()
        await asyncio.gather(opening, return_exceptions=True)
        world.network.heal()
        await asyncio.sleep(30)

        assert not opened.is_open
        assert pool.opened() == []
        assert pool._opening == {}
        assert stage.listener.connections == 0


@in_world
async def test_each_address_has_a_connection_of_its_own(world):
    async with Stage(world, echo) as stage:
        pool = pool_of(stage)
        by_address, by_name = await pool.connection(ADDRESS), await pool.connection("server:9000")

        assert by_address is not by_name
        by_address.close()
        await asyncio.sleep(1)
        assert pool.opened() == [by_name]
        await pool.close()


@in_world
async def test_an_invalid_host_name_is_a_failed_connect(world):
    """The system's resolver has an error of its own for invalid names."""

    class Resolver:
        async def connect(self, factory, host, port):
            host.encode("idna")
            raise AssertionError("it has no such host")

    pool = ConnectionPool(Resolver(), world.machine("client").clock)

    for host in ("x" * 64, "a..b"):
        assert isinstance(await failure(pool.connection(f"{host}:80")), ConnectFailed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        ("  host.example:1 ", ("host.example", 1)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_addresses_are_split_into_host_and_port(text, expected):
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:-1", "host:65536"])
def test_a_malformed_address_is_refused(text):
    with pytest.raises(ConfigError, match="host:port"):
        split_address(text)
