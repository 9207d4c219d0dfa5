"""``txmq names``: a name server alone, for clusters whose brokers share one."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import txmq
from txmq.cli import logs
from txmq.cli.common import (
    WRONGLY_CALLED,
    MonitoringAddress,
    fail,
    host_and_port,
    option,
    stop_at_signals,
)
from txmq.cli.output import note_lines, say_now
from txmq.cli.serve import LogForm, LogLevel, give_up
from txmq.errors import TxmqError
from txmq.metrics.http import HttpServer
from txmq.remoting.pool import split_address
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.network import SystemNetwork
from txmq.runtime.process import exempt_from_collection
from txmq.settings.extras import named_extra
from txmq.settings.loading import load

__all__ = ["names"]


class NameServerOptions(NamedTuple):
    """Where a name server listens, what it keeps, and whom it serves."""

    listen: str = option(
        "Where brokers and clients reach it.", default="127.0.0.1:9876", metavar="HOST:PORT"
    )
    data: str | None = option(
        "Where it keeps the settings of operators; without it, in memory.", metavar="DIR"
    )
    acl: str | None = option(
        "A file of accounts, as RocketMQ's plain_acl.yml, or a directory.", metavar="FILE"
    )
    trust: str = option(
        "Addresses and networks (separated by ',') whose clients may ask for routes "
        "without an account.",
        default="",
        metavar="ADDRS",
    )
    trust_brokers: str = option(
        "Addresses and networks (separated by ',') whose brokers may register without an account.",
        default="",
        metavar="ADDRS",
    )
    tls_mode: str = option(
        "Whether it speaks TLS.", default="disabled", metavar="disabled|permissive|enforcing"
    )
    tls_certificate: str = option(
        "Its certificate with the chain, in PEM form.", default="", metavar="FILE"
    )
    tls_key: str = option(
        "The key of the certificate, for its owner alone.", default="", metavar="FILE"
    )
    tls_client_ca: str = option(
        "Authorities: every peer with TLS needs a certificate.", default="", metavar="FILE"
    )
    http: MonitoringAddress = None


def names(
    *, options: NameServerOptions, log_format: LogForm = "text", log_level: LogLevel = "info"
) -> None:
    """Run a name server until it is stopped."""
    import uvloop  # Commands of a client also work on systems without it.

    logs.configure(log_format, log_level)
    data, http = options.data, options.http
    kept = Path(data).absolute() if data is not None else "in memory: routes come from brokers"
    note_lines(f"txmq {txmq.__version__}\n  names   {options.listen}\n  data    {kept}")
    if options.acl is not None and options.trust:
        fail("--acl and --trust exclude each other; leave out one", WRONGLY_CALLED)
    where = host_and_port(http)
    addresses = {"--listen": options.listen} | ({} if http is None else {"--http": http})
    try:
        uvloop.run(_serve(options, where))
    except (TxmqError, OSError) as error:
        give_up(error, started=False, addresses=addresses, data=data)


async def _serve(options: NameServerOptions, http: tuple[str, int] | None) -> None:
    from txmq_broker.access.front_door import FrontDoor
    from txmq_broker.config import SecuritySettings, ServerTlsSettings
    from txmq_broker.names.server import NameServer

    host, port = split_address(options.listen)
    network = SystemNetwork()
    tls = [
        f"{name.removeprefix('tls_')}={value}"
        for name, value in options._asdict().items()
        if name.startswith("tls_")
    ]
    door = FrontDoor(
        options.acl or "",
        SecuritySettings(trust=options.trust, trust_brokers=options.trust_brokers),
        load(ServerTlsSettings, arguments=tls),
        network,
    )
    stopped = asyncio.Event()
    with stop_at_signals(stopped):
        server = NameServer(
            network,
            SystemClock(),
            None if options.data is None else LocalDisk(options.data),
            door=door,
        )
        watches = [asyncio.create_task(files.watch()) for files in door.files]
        async with server, AsyncExitStack() as stack:
            await server.open(host, port)
            line = "ready names {}:{}".format(*server.address)
            if http is not None:
                with named_extra():
                    from txmq_broker.names.metrics import name_server_pages
                pages = HttpServer(name_server_pages(server), *http)
                await stack.enter_async_context(pages)
                line += " metrics http://{}:{}/metrics".format(*pages.address)
            exempt_from_collection()
            say_now(line)
            await stopped.wait()
        for watch in watches:
            watch.cancel()
