"""The name server on the sockets of this machine."""

from tests.running import in_loop, run_by
from tests.unit.names.names_peer import (
    registration,
)
from tests.unit.names.test_names_server import BODY, ask, route
from txmq.protocol.bodies import TopicRoute
from txmq.protocol.codes import RequestCode as Code
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.network import SystemNetwork
from txmq_broker.names.server import NameServer


@run_by(in_loop)
async def test_the_name_server_registers_a_broker_over_real_sockets():
    network, clock = SystemNetwork(), SystemClock()
    async with NameServer(network, clock) as server:
        await server.open("127.0.0.1", 0)
        pool = ConnectionPool(network, clock)
        peer = await pool.connection("{}:{}".format(*server.address))
        await ask(peer, Code.REGISTER_BROKER, registration(), body=BODY)

        topic_route = TopicRoute.read((await route(peer)).body)

        assert topic_route.queue_datas[0].broker_name == "broker-a"
        await pool.close()
