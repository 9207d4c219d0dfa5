"""Runs a broker until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Callable
from typing import Final

from txmq.limits import HTTP_WAITING_MAX
from txmq.runtime.process import exempt_from_collection
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.server import monitored
from txmq_broker.monitoring.subject import LoneProcess

__all__ = ["allow_files", "run"]

log = logging.getLogger(__name__)

FILES_OF_OUR_OWN: Final = 1024 + HTTP_WAITING_MAX
"""Files open beside connections: two for each segment of the log, half-sent requests for pages
about monitoring, and a few."""


def run(
    settings: BrokerSettings,
    *,
    ready: Callable[[Broker], None],
    accept_loss: str | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the exit code of the process.

    Args:
        settings: The settings of the broker.
        ready: Called when the broker accepts requests.
        accept_loss: Why the broker shall start although a part of its log is missing.

    Raises:
        StoreError: The data directory is in use or damaged.
        OSError: An address or the directory cannot be opened.
        ConfigError: A setting is invalid.
    """
    import uvloop

    allow_files(settings.connections_max, servers=1 if settings.names else 2)
    return uvloop.run(_run(settings, ready, accept_loss))


def allow_files(connections: int, servers: int = 1) -> None:
    """Raise this process's limit on open files towards what the connections and the log need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = servers * connections + FILES_OF_OUR_OWN
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft  # macOS calls its limit endless, and refuses what is above the kernel's.
    if most < connections + FILES_OF_OUR_OWN:
        log.warning("only %d files may be open; connections_max is %d", most, connections)


async def _run(
    settings: BrokerSettings, ready: Callable[[Broker], None], accept_loss: str | None
) -> int:
    loop = asyncio.get_running_loop()
    process = LoneProcess()
    async with (
        monitored(settings, process),
        Broker(settings, accept_loss=accept_loss) as process.broker,
    ):
        broker = process.broker
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
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
