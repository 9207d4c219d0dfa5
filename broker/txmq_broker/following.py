"""Runs a follower until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from txmq.credentials import load_credentials
from txmq.remoting.pool import ConnectionPool
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.entropy import SystemEntropy
from txmq.runtime.network import SystemNetwork
from txmq.tls import client_context, load_tls
from txmq_broker.config import BrokerSettings
from txmq_broker.services.follower import Follower

__all__ = ["run"]

log = logging.getLogger(__name__)


def run(settings: BrokerSettings, *, ready: Callable[[], None]) -> int:
    """Run a follower until SIGTERM or SIGINT; returns the exit code of the process.

    Args:
        settings: The settings; the environment has the account and TLS.
        ready: Called when the follower looks for its leader.

    Raises:
        StoreError: The data directory is in use, damaged, or of another log.
        OSError: The disk failed.
        ConfigError: A setting of the environment is invalid.
    """
    import uvloop

    return uvloop.run(_run(settings, ready))


async def _run(settings: BrokerSettings, ready: Callable[[], None]) -> int:
    clock = SystemClock()
    pool = ConnectionPool(
        SystemNetwork(), clock, credentials=load_credentials(), tls=client_context(load_tls())
    )

    async def find() -> tuple[str, int]:
        from txmq.errors import BrokerRefused
        from txmq.protocol.bodies import ClusterView
        from txmq.protocol.codes import RequestCode

        for server in settings.names.split(";"):
            connection = await pool.connection(server.strip())
            found = await connection.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=5)
            broker = ClusterView.read(found.body).broker_addr_table.get(settings.name)
            if broker is not None and 0 in broker.broker_addrs:
                return broker.broker_addrs[0], 0
        raise BrokerRefused("no")

    follower = Follower(settings, pool, LocalDisk(settings.data), clock, SystemEntropy(), find)
    following = asyncio.create_task(follower.run(), name="follower")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, following.cancel)
    ready()
    try:
        await following
    except asyncio.CancelledError:
        log.info("stopping")
    finally:
        await pool.close()
    return 0
