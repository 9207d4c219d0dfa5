"""Serves the pages for monitoring programs while a process runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from txmq.metrics.http import HttpServer, Pages
from txmq.remoting.pool import split_address
from txmq.runtime.network import SystemNetwork
from txmq.settings.extras import named_extra
from txmq_broker.config import BrokerSettings
from txmq_broker.monitoring.subject import MonitoredProcess

__all__ = ["monitored", "serve_pages"]

log = logging.getLogger(__name__)


@asynccontextmanager
async def monitored(settings: BrokerSettings, process: MonitoredProcess) -> AsyncIterator[None]:
    """Serve the pages about a process inside this context, if the settings ask for them.

    Raises:
        ConfigError: prometheus-client is not installed.
        OSError: The address is taken, or does not belong to this machine.
    """
    if not settings.http_listen:
        yield
        return
    with named_extra():
        # Imported here, because it takes a quarter of the time in which a broker starts.
        from txmq_broker.monitoring.pages import MonitoringPages
    made = MonitoringPages(settings, process)
    async with serve_pages(made.pages(), settings.http_listen):
        try:
            yield
        finally:
            made.close()


@asynccontextmanager
async def serve_pages(pages: Pages, listen: str) -> AsyncIterator[None]:
    """Serve pages inside this context, and log who can reach them.

    Raises:
        OSError: The address is taken, or does not belong to this machine.
    """
    async with HttpServer(pages, *split_address(listen)) as server:
        host, port = server.address
        log.info("metrics and health at http://%s:%d", host, port)
        if not SystemNetwork().is_loopback(host):
            log.warning(
                "other machines may read metrics, health and settings at %s:%d without an account",
                host,
                port,
            )
        yield
