"""Runs one broker, one follower or one member of a broker set until the process is stopped.

Each function returns the exit code of the process; SIGTERM and SIGINT end it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final

from txmq.errors import BrokerRefused, ConnectFailed, TransportError, TxmqError
from txmq.protocol.bodies import ClusterView
from txmq.protocol.codes import RequestCode
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.network import SystemNetwork
from txmq.runtime.process import exempt_from_collection
from txmq_broker.access.account_copies import AccountsCopy
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.server import monitored
from txmq_broker.monitoring.subject import LoneProcess
from txmq_broker.names.routes import MASTER
from txmq_broker.processes.file_limit import allow_files
from txmq_broker.processes.follower_server import FollowerServer
from txmq_broker.processes.member import SetMember
from txmq_broker.replication.etcd import etcd_coordinator
from txmq_broker.services.own_connections import own_connections

__all__ = ["run_broker", "run_follower", "run_member"]

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0


def _at_signal(action: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, action)


def run_broker(
    settings: BrokerSettings,
    *,
    ready: Callable[[Broker], None],
    accept_loss: str | None = None,
) -> int:
    """Run a broker; returns the exit code of the process.

    Args:
        settings: The settings of the broker.
        ready: Called when the broker accepts requests.
        accept_loss: Why the broker should start although a part of its log is missing.

    Raises:
        StoreError: The data directory is in use or damaged.
        OSError: An address or the directory cannot be opened.
        ConfigError: A setting is invalid.
    """
    import uvloop

    allow_files(settings.connections_max, servers=1 if settings.names else 2)
    return uvloop.run(_run_broker(settings, ready, accept_loss))


async def _run_broker(
    settings: BrokerSettings, ready: Callable[[Broker], None], accept_loss: str | None
) -> int:
    process = LoneProcess()
    async with (
        monitored(settings, process),
        Broker(settings, accept_loss=accept_loss) as process.broker,
    ):
        broker = process.broker
        asked = asyncio.Event()
        _at_signal(asked.set)
        exempt_from_collection()
        ready(broker)
        waits = [asyncio.create_task(event.wait()) for event in (asked, broker.stopped)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if broker.failure is not None:
            return 1
        log.info("draining")
    return 0


def run_follower(settings: BrokerSettings, *, ready: Callable[[], None]) -> int:
    """Run a follower that finds its leader at name servers; returns the exit code of the process.

    Args:
        settings: The settings; the account and TLS come from the environment.
        ready: Called when the follower listens and looks for its leader.

    Raises:
        StoreError: The data directory is in use, is damaged, or has another log.
        OSError: The disk failed, or the address to listen on cannot be opened.
        ConfigError: A setting of the environment is invalid.
    """
    import uvloop

    allow_files(settings.connections_max)
    return uvloop.run(_run_follower(settings, ready))


async def _run_follower(settings: BrokerSettings, ready: Callable[[], None]) -> int:
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
            _at_signal(serving.cancel)
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
        if broker is not None and MASTER in broker.broker_addrs:
            return broker.broker_addrs[MASTER]
    raise failure or BrokerRefused(f"no name server knows a leader of {settings.name}")


def run_member(
    settings: BrokerSettings,
    *,
    ready: Callable[[], None],
    leading: Callable[[Broker], None],
) -> int:
    """Run a member of a broker set; returns the exit code of the process.

    Args:
        settings: The settings; the account and TLS come from the environment.
        ready: Called when the store of the set was reached for the first time.
        leading: Called whenever this member begins to serve as the leader.

    Raises:
        StoreError: The data directory is in use or damaged.
        OSError: An address or the directory cannot be opened.
        ConfigError: A setting is invalid.
        ConnectFailed: No etcd can be reached.
    """
    import uvloop

    allow_files(settings.connections_max)
    return uvloop.run(_run_member(settings, ready, leading))


async def _run_member(
    settings: BrokerSettings, ready: Callable[[], None], leading: Callable[[Broker], None]
) -> int:
    address = settings.replication.coordinator
    coordinator = etcd_coordinator(address, settings.cluster, settings.name)
    try:
        await coordinator.view()
    except TransportError as error:
        raise ConnectFailed(f"the set has no coordinator: {error}") from error
    member = SetMember(settings, coordinator, on_leading=leading)
    _at_signal(member.stop)
    async with monitored(settings, member):
        ready()
        await member.run()
    return 0
