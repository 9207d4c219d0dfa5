"""``txmq console``: a web console for a cluster."""

import asyncio
import getpass
import socket

from txmq.cli import logs
from txmq.cli.common import (
    NAMES_DEFAULT,
    WRONGLY_CALLED,
    Cluster,
    MonitoringAddress,
    Names,
    fail,
    flag,
    host_and_port,
    option,
    stop_at_signals,
)
from txmq.cli.output import say_now
from txmq.errors import ConfigError, ReconcileRefused
from txmq.remoting.pool import split_address
from txmq.runtime.background import fast_loop
from txmq.runtime.network import SystemNetwork
from txmq.security.credentials import CREDENTIALS_VARIABLES, load_credentials
from txmq.security.tls import load_tls
from txmq.settings.extras import named_extra

__all__ = ["console"]

BACKLOG = 100


def console(
    *,
    listen: str = option("The address for browsers, host:port.", default="127.0.0.1:8080"),
    origin: str | None = option("The address that browsers show, if a proxy is in between."),
    read_only: bool = flag("Show everything, and change nothing.", "--read-only"),
    http: MonitoringAddress = None,
    database: list[str] | None = option(
        "Show this outbox to administrators; may be repeated. NAME:TABLE=URL names a "
        "table other than txmq_outbox.",
        envvar="TXMQ_CONSOLE_DATABASES",
        metavar="NAME=URL",
    ),
    reports: str | None = option(
        "Show the results of reconciliations in this directory to administrators.",
        metavar="DIRECTORY",
    ),
    cluster: Cluster = None,
    names: Names = NAMES_DEFAULT,
) -> None:
    """Serve a web console, until it is stopped.

    Visitors log in with their broker accounts, which sign all their requests. If the brokers have
    no accounts, no log-in is needed, and the console serves only this machine.
    """
    logs.configure("text", "warning")
    try:
        with named_extra():
            from txmq.console.server import serve
            from txmq.console.settings import ConsoleSettings, origins_of, outbox_address
        host, port = split_address(listen)
        where = host_and_port(http)
        is_local = SystemNetwork().is_loopback(host)
        needs_login = not is_local or _has_certificate()
        with socket.create_server((host, port), backlog=BACKLOG, family=_family(host)) as listening:
            port = listening.getsockname()[1]
            settings = ConsoleSettings(
                names=names,
                cluster=cluster,
                origins=origins_of(host, port, origin, is_loopback=is_local),
                is_read_only=read_only,
                needs_login=needs_login,
                operator=_user(),
                outboxes=tuple(map(outbox_address, database or ())),
                reports=reports,
            )

            def ready(metrics: str) -> None:
                shown = " ".join(sorted(settings.origins, reverse=True))
                more = f" metrics {metrics}" if metrics else ""
                say_now(f"ready console {shown} names {names}{more}")

            async def run() -> None:
                stopped = asyncio.Event()
                with stop_at_signals(stopped):
                    try:
                        await serve(settings, listening, stopped, ready, where)
                    except OSError as error:
                        fail(f"cannot serve metrics at {http}: {error.strerror or error}")

            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                runner.run(run())
    except (ConfigError, ReconcileRefused) as error:
        fail(str(error), WRONGLY_CALLED)
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror}; name another address with --listen")


def _has_certificate() -> bool:
    """Whether the environment has a client certificate, which brokers may map to an account.

    Raises:
        ConfigError: The environment names an account: every visitor would use it.
    """
    if load_credentials() is not None:
        raise ConfigError(
            "visitors of a console log in with accounts of their own; start it without "
            f"{', '.join(CREDENTIALS_VARIABLES)}"
        )
    tls = load_tls()
    return tls is not None and tls.certificate is not None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # In a container, a user may have a number and no name.
        return "unknown"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
