"""Runs the follower of a leader that name servers know, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final

from txmq.errors import BrokerRefused, TransportError, TxmqError
from txmq.protocol.bodies import ClusterView
from txmq.protocol.codes import RequestCode
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.network import SystemNetwork
from txmq_broker.access.account_copies import AccountsCopy
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.server import monitored
from txmq_broker.monitoring.subject import LoneProcess
from txmq_broker.roles.follower_server import FollowerServer
from txmq_broker.roles.running import allow_files
from txmq_broker.services.own_connections import own_connections

__all__ = ["run"]

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
_MASTER: Final = 0


def run(settings: BrokerSettings, *, ready: Callable[[], None]) -> int:
    """Run a follower until SIGTERM or SIGINT; returns the exit code of the process.

    Args:
        settings: The settings; the environment has the account and TLS.
        ready: Called when the follower listens and looks for its leader.

    Raises:
        StoreError: The data directory is in use, damaged, or of another log.
        OSError: The disk failed, or the address to listen at cannot be opened.
        ConfigError: A setting of the environment is invalid.
    """
    import uvloop

    allow_files(settings.connections_max)
    return uvloop.run(_run(settings, ready))


async def _run(settings: BrokerSettings, ready: Callable[[], None]) -> int:
    clock, network = SystemClock(), SystemNetwork()
    pool = own_connections(network, clock)

    async def find_leader() -> tuple[str, int]:
        return await _find_leader(settings, pool), 0

    server = FollowerServer(
        settings,
        find_leader,
        AccountsCopy(settings.acl, clock),
        clock=clock,
        network=network,
        disk=LocalDisk(settings.data),
        entropy=SystemEntropy(),
    )
    try:
        async with monitored(settings, LoneProcess(follower=server.follower)):
            serving = asyncio.create_task(server.run(ready), name="follower")
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, serving.cancel)
            await serving
    except asyncio.CancelledError:
        log.info("stopping")
    finally:
        await server.close(leaves=True)
        await pool.close()
    return 0


async def _find_leader(settings: BrokerSettings, pool: ConnectionPool) -> str:
    """The address of the leader, from the first name server that knows one."""
    failure: TxmqError | None = None
    for server in settings.names.split(";"):
        try:
            connection = await pool.connection(server.strip())
            found = await connection.request(
                RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=TIMEOUT_S
            )
        except (TransportError, BrokerRefused) as error:
            failure = error
            continue
        broker = ClusterView.read(found.body).broker_addr_table.get(settings.name)
        if broker is not None and _MASTER in broker.broker_addrs:
            return broker.broker_addrs[_MASTER]
    raise failure or BrokerRefused(f"no name server knows a leader of {settings.name}")
