"""``txmq names``: a name server alone, for clusters whose brokers share one."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

import txmq
from txmq.cli import logs
from txmq.cli.common import WRONGLY_CALLED, MonitoringAddress, fail, host_and_port, stop_at_signals
from txmq.cli.output import flush, note_lines, say
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


def names(
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where brokers and clients reach it.")
    ] = "127.0.0.1:9876",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Where it keeps the settings of operators; without it, in memory."
        ),
    ] = None,
    acl: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A file of accounts, as RocketMQ's plain_acl.yml, or a directory."
        ),
    ] = None,
    trust: Annotated[
        str,
        typer.Option(
            metavar="ADDRS",
            help="Addresses and networks (separated by ',') whose clients may ask for routes "
            "without an account.",
        ),
    ] = "",
    trust_brokers: Annotated[
        str,
        typer.Option(
            metavar="ADDRS",
            help="Addresses and networks (separated by ',') whose brokers may register without an "
            "account.",
        ),
    ] = "",
    tls_mode: Annotated[
        str, typer.Option(metavar="disabled|permissive|enforcing", help="Whether it speaks TLS.")
    ] = "disabled",
    tls_certificate: Annotated[
        str, typer.Option(metavar="FILE", help="Its certificate with the chain, in PEM form.")
    ] = "",
    tls_key: Annotated[
        str, typer.Option(metavar="FILE", help="The key of the certificate, for its owner alone.")
    ] = "",
    tls_client_ca: Annotated[
        str,
        typer.Option(metavar="FILE", help="Authorities: every peer with TLS needs a certificate."),
    ] = "",
    http: MonitoringAddress = None,
    log_format: LogForm = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run a name server until it is stopped."""
    import uvloop  # Commands of a client also work on systems without it.

    logs.configure(log_format, log_level)
    tls = {
        "mode": tls_mode,
        "certificate": tls_certificate,
        "key": tls_key,
        "client_ca": tls_client_ca,
    }
    kept = Path(data).absolute() if data is not None else "in memory: routes come from brokers"
    note_lines(f"txmq {txmq.__version__}\n  names   {listen}\n  data    {kept}")
    if acl is not None and trust:
        fail("--acl and --trust exclude each other; leave out one", WRONGLY_CALLED)
    where = None if http is None else host_and_port(http)
    addresses = {"--listen": listen} | ({} if http is None else {"--http": http})
    try:
        uvloop.run(_serve(listen, data, acl, (trust, trust_brokers), tls, where))
    except (TxmqError, OSError) as error:
        give_up(error, started=False, addresses=addresses, data=data)


async def _serve(
    listen: str,
    data: str | None,
    acl: str | None,
    trusted: tuple[str, str],
    tls: Mapping[str, str],
    http: tuple[str, int] | None,
) -> None:
    from txmq_broker.access.front_door import FrontDoor
    from txmq_broker.config import SecuritySettings, ServerTlsSettings
    from txmq_broker.names.server import NameServer

    host, port = split_address(listen)
    stopped = asyncio.Event()
    disk = None if data is None else LocalDisk(data)
    trust, trust_brokers = trusted
    arguments = [f"{key}={value}" for key, value in tls.items()]
    network = SystemNetwork()
    door = FrontDoor(
        acl or "",
        SecuritySettings(trust=trust, trust_brokers=trust_brokers),
        load(ServerTlsSettings, arguments=arguments),
        network,
    )
    with stop_at_signals(stopped):
        server = NameServer(
            network,
            SystemClock(),
            disk,
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
            say(line)
            flush()
            await stopped.wait()
        for watch in watches:
            watch.cancel()
