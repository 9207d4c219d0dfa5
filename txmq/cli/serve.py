"""``txmq serve``: a broker, with its own name server unless others are given.

Only the commands that need the broker import it, and only when they run: client commands never load
it.
"""

import asyncio
import errno
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn

import typer

import txmq
from txmq.cli import logs
from txmq.cli.common import WRONGLY_CALLED, exit_on_errors, fail, option
from txmq.cli.output import note, note_lines, say_now
from txmq.errors import ConfigError, DirectoryInUse, TxmqError
from txmq.remoting.pool import split_address
from txmq.runtime.background import fast_loop
from txmq.runtime.clock import SystemClock
from txmq.runtime.process import keep_freed_memory, shorten_time_slice
from txmq.runtime.supervisor import SupervisorEnd
from txmq.security.credentials import CREDENTIALS_VARIABLES
from txmq.security.tls import TLS_VARIABLES
from txmq.settings.extras import named_extra
from txmq.settings.loading import ForeignName, load

if TYPE_CHECKING:
    from txmq_broker.app import Broker
    from txmq_broker.config import BrokerSettings, ReplicationSettings
    from txmq_broker.processes.service import BrokersService

__all__ = [
    "LogForm",
    "LogLevel",
    "foreign_names",
    "give_up",
    "not_settings",
    "serve",
    "settings_shape",
]

log = logging.getLogger(__name__)

BROKERS_VARIABLE: Final = "TXMQ_BROKERS"
CONFIG_VARIABLE: Final = "TXMQ_CONFIG"
LOG_FORMAT_VARIABLE: Final = "TXMQ_LOG_FORMAT"
LOG_LEVEL_VARIABLE: Final = "TXMQ_LOG_LEVEL"

LogForm = Annotated[
    logs.Form,
    typer.Option("--log-format", envvar=LOG_FORMAT_VARIABLE, help="The format of log lines."),
]
LogLevel = Annotated[
    logs.Level,
    typer.Option(
        "--log-level",
        envvar=LOG_LEVEL_VARIABLE,
        case_sensitive=False,
        help="Write log lines of this level and above.",
    ),
]

DRAIN_S: Final = 30.0
"""How long one of several brokers may take to drain, before it is killed."""

_BROKER_WORDS: Final = (sys.executable, "-m", "txmq.cli.broker_process")

_KEYS: Final = {
    "flush": "store.flush",
    "trust": "security.trust",
    "trust_brokers": "security.trust_brokers",
    "coordinator": "replication.coordinator",
    "member": "replication.member",
    "http": "http_listen",
}
"""The settings whose options have other names."""

_FLUSH_MEANS: Final = {
    "sync": "a send is answered when its message survives a power cut",
    "async": "a send is answered when it is written; a power cut may take the last messages",
}

_TLS_MEANS: Final = {
    "disabled": "disabled: connections are not encrypted",
    "permissive": "permissive: connections with TLS and without",
    "enforcing": "enforcing: only connections with TLS",
}


class BrokerOptions(NamedTuple):
    """The options that are settings of the broker."""

    data: str | None = option(
        "The directory of all its data.", metavar="DIR", show_default="txmq-data"
    )
    listen: str | None = option(
        "Where clients connect.", metavar="HOST:PORT", show_default="127.0.0.1:10911"
    )
    names_listen: str | None = option(
        "Where its own name server listens.", metavar="HOST:PORT", show_default="127.0.0.1:9876"
    )
    names: str | None = option(
        "Other name servers (separated by ';') instead of its own; also TXMQ_NAMES.",
        "--names",
        "-n",
        metavar="ADDRS",
    )
    flush: str | None = option(
        "When a send is answered: once its message survives a power cut (sync), or once "
        "it is written, so that a power cut may take the last messages (async).",
        metavar="sync|async",
        show_default="sync",
    )
    config: str | None = option(
        "A file of settings: TOML, or RocketMQ's broker.conf.",
        "--config",
        "-c",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
    )
    set_: list[str] | None = option(
        "A setting, by its name here or in RocketMQ; may be repeated.", "--set", metavar="KEY=VALUE"
    )
    name: str | None = option("This broker's name.", metavar="BROKER", show_default="broker-a")
    cluster: str | None = option(
        "The cluster it belongs to.", metavar="NAME", show_default="DefaultCluster"
    )
    acl: str | None = option(
        "A file of accounts, as RocketMQ's plain_acl.yml, or a directory of them: every "
        "request then needs a signature and a permission.",
        metavar="FILE",
    )
    trust: str | None = option(
        "Without accounts: addresses and networks (separated by ',') whose clients may "
        "send and consume. Others beyond loopback are refused.",
        metavar="ADDRS",
    )
    trust_brokers: str | None = option(
        "Addresses and networks (separated by ',') whose brokers may register with its "
        "name server without an account.",
        metavar="ADDRS",
    )
    coordinator: str | None = option(
        "The etcd that decides which member of the broker set leads: etcd://h1:2379,h2:2379.",
        metavar="ADDRS",
    )
    member: str | None = option("This member of the broker set.", metavar="NAME")
    http: str | None = option(
        "Where to serve /metrics, /health/live, /health/ready and /info over HTTP, "
        "without accounts.",
        metavar="HOST:PORT",
        show_default="nowhere",
    )

    def load(self) -> "BrokerSettings":
        """The settings from the file, the environment, ``--set`` and the other options.

        Raises:
            typer.Exit: A setting is invalid, or two exclude each other.
        """
        if self.names is not None and self.names_listen is not None:
            fail("--names and --names-listen exclude each other; leave out one", WRONGLY_CALLED)
        arguments = [
            f"{_KEYS.get(name, name)}={value}"
            for name, value in self._asdict().items()
            if value is not None and name not in {"config", "set_"}
        ]
        if self.names_listen is not None:
            # With its own name server, ignore TXMQ_NAMES, which may be set for other commands.
            arguments.append("names=")
        with exit_on_errors():
            return load(
                settings_shape(),
                file=self.config,
                environ=os.environ,
                reserved=not_settings(),
                arguments=[*(self.set_ or ()), *arguments],
                aliases=foreign_names(),
                notice=log.warning,
            )


class ServePlan(NamedTuple):
    """The options that are not settings of the broker."""

    brokers: int | None = option(
        "Run this many brokers of one cluster, each in its own process and "
        "directory: one for each core. Their ports are 10 apart.",
        envvar=BROKERS_VARIABLE,
        metavar="N",
    )
    drain_timeout: float | None = option(
        "With --brokers: how long a broker may take to drain, before it is killed.",
        min=0,
        max=86_400,
        metavar="SECONDS",
        show_default=f"{DRAIN_S:.0f}",
    )
    accept_loss: str | None = option(
        "Start although a part of the log is missing, and record the reason in the log. "
        "Offsets are never used twice.",
        metavar="REASON",
    )
    log_format: LogForm = "text"
    log_level: LogLevel = "info"


def serve(*, options: BrokerOptions, plan: ServePlan) -> None:
    """Run a broker until it is stopped; SIGTERM drains it.

    Settings come from the file, TXMQ_* variables, --set and the other options; a later source
    overrides an earlier one. `txmq config reference` prints all settings, as
    docs/reference/configuration.md does.
    """
    if not __debug__:
        fail("a broker checks itself by assertions; run it without python -O", WRONGLY_CALLED)
    logs.configure(plan.log_format, plan.log_level)
    settings = options.load()
    if plan.accept_loss is not None and not plan.accept_loss.strip():
        fail("--accept-loss needs a reason, which the broker records in its log", WRONGLY_CALLED)
    if plan.brokers is not None:
        _run_several(settings, plan, plan.brokers)
        return
    if plan.drain_timeout is not None:
        fail(
            "--drain-timeout needs --brokers: a single broker has no supervisor that would end it; "
            "add --brokers, or leave out --drain-timeout",
            WRONGLY_CALLED,
        )
    with exit_on_errors():
        from txmq_broker.processes.layout import check_lone_directory

        check_lone_directory(Path(settings.data).absolute())
    note_lines(banner(settings))
    keep_freed_memory()
    shorten_time_slice()
    raise typer.Exit(_run(settings, plan.accept_loss))


def not_settings() -> tuple[str, ...]:
    """The variables of the command line that are not settings of the broker."""
    from txmq_broker.replication.etcd import ETCD_VARIABLES

    return (
        BROKERS_VARIABLE,
        CONFIG_VARIABLE,
        LOG_FORMAT_VARIABLE,
        LOG_LEVEL_VARIABLE,
        *CREDENTIALS_VARIABLES,
        *ETCD_VARIABLES,
        *TLS_VARIABLES,
    )


def settings_shape() -> "type[BrokerSettings]":
    """The settings of a broker."""
    from txmq_broker.config import BrokerSettings

    return BrokerSettings


def foreign_names() -> Mapping[str, ForeignName]:
    """RocketMQ's names for the settings of a broker."""
    from txmq_broker.core.rocketmq_settings import NAMES

    return NAMES


def banner(settings: "BrokerSettings", brokers: "Sequence[BrokerSettings]" = ()) -> str:
    """The first lines an operator reads: the version, the addresses and the data directory.

    Args:
        settings: The settings.
        brokers: The settings of each broker, if there are several.
    """
    from txmq_broker.access.protection import access_text

    several = brokers or (settings,)
    listen = ", ".join(broker.listen for broker in several)
    if settings.advertise:
        listen += f", advertised as {', '.join(broker.advertise for broker in several)}"
    names = f"{settings.names} (elsewhere)" if settings.names else settings.names_listen
    rows = {
        "broker" if len(several) == 1 else "brokers": (
            f"{', '.join(broker.name for broker in several)} in {settings.cluster}"
        ),
        "listen": listen,
        "names": names,
        "data": str(Path(settings.data).absolute()),
        "copies": _copies_text(settings.replication),
        "flush": f"{settings.store.flush}: {_FLUSH_MEANS[settings.store.flush]}",
        "tls": _TLS_MEANS[settings.tls.mode],
        "access": f"accounts in {settings.acl}"
        if settings.acl
        else access_text(has_accounts=False, trust=settings.security.trust),
    }
    lines = [f"txmq {txmq.__version__}"]
    lines += [f"  {title:7} {text}" for title, text in rows.items()]
    return "\n".join(lines)


def _copies_text(copies: "ReplicationSettings") -> str:
    waits = "wait for every follower in sync" if copies.is_sync else "do not wait for followers"
    if copies.coordinator:
        return f"member {copies.member}; {copies.coordinator} decides who leads; answers {waits}"
    if copies.role == "follower":
        reads = "consumers may read from it" if copies.reads else "consumers read from the leader"
        return f"follower {copies.member}: it copies its leader; {reads}"
    return f"leader; answers {waits}"


def give_up(
    error: Exception, *, started: bool, addresses: Mapping[str, str], data: str | None
) -> NoReturn:
    """End the program with one sentence that tells the operator what to change.

    Args:
        error: Why it ends.
        started: Whether it had started to serve.
        addresses: The addresses to listen at, by option.
        data: The directory of its data.

    Raises:
        typer.Exit: Always.
    """
    if isinstance(error, ConfigError):
        fail(str(error), WRONGLY_CALLED)
    what = str(error)
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        what = _taken(error, addresses) or what
    if isinstance(error, DirectoryInUse) and data is not None:
        what += f": {Path(data).absolute()}"
    if data is not None:
        what = what.replace("--data DIR", f"--data {shlex.quote(str(Path(data).absolute()))}")
    fail(f"{'stopped' if started else 'cannot start'}: {what}")


def _taken(error: OSError, addresses: Mapping[str, str]) -> str | None:
    # Only the text of the error has the address: "... address ('127.0.0.1', 9876): ...".
    if error.errno != errno.EADDRINUSE:
        return None
    port = re.search(r"\('[^']*', (\d+)", str(error))
    for name, address in addresses.items():
        if port is None or split_address(address)[1] == int(port[1]):
            return f"{address} is taken; choose another {name}"
    return None


# Several brokers


def _run_several(settings: "BrokerSettings", plan: ServePlan, count: int) -> None:
    """Run several brokers of one cluster, each in its own process, until SIGTERM or SIGINT."""
    from txmq_broker.processes.layout import settings_of_brokers
    from txmq_broker.processes.service import BrokersOptions, BrokersService

    options = BrokersOptions(
        count=count,
        words=_BROKER_WORDS,
        accept_loss=plan.accept_loss,
        drain_s=DRAIN_S if plan.drain_timeout is None else plan.drain_timeout,
        log_form=plan.log_format,
        log_level=plan.log_level,
    )

    def ready() -> None:
        addresses = ";".join(state.address for state in service.brokers)
        data = Path(service.settings.data).absolute()
        say_now(f"ready brokers {addresses} names {service.names_text} data {data}")

    async def run() -> SupervisorEnd:
        with _draining_at_signals(service):
            return await service.run(pages)

    try:
        note_lines(banner(settings, settings_of_brokers(settings, count)))
        service, pages = BrokersService(settings, options, ready), None
        if settings.http_listen:
            with named_extra():
                from txmq_broker.processes.pages import BrokerPages
            pages = BrokerPages(service).pages()
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            end = runner.run(run())
    except (TxmqError, OSError) as error:
        give_up(error, started=False, addresses=_addresses(settings), data=settings.data)
    if end is not SupervisorEnd.DRAINED:
        started = "stopped" if service.was_ready else "cannot start"
        fail(f"{started}: {service.reason or end.value}")
    log.info("stopped", extra={"code": 0})


@contextmanager
def _draining_at_signals(service: "BrokersService") -> Iterator[None]:
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        if service.supervisor.is_stopping:
            note("ending at once")
            service.supervisor.kill()
            return
        note("draining the brokers; a second signal ends them at once")
        service.stop()

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# One broker


def _addresses(settings: "BrokerSettings") -> dict[str, str]:
    """The addresses to listen at, by option."""
    addresses = {"--listen": settings.listen}
    if settings.http_listen:
        addresses["--http"] = settings.http_listen
    if not settings.names:
        addresses["--names-listen"] = settings.names_listen
    return addresses


def _run(settings: "BrokerSettings", accept_loss: str | None) -> int:
    from txmq_broker.processes.running import run_broker, run_follower, run_member

    clock = SystemClock()
    began = clock.monotonic()
    started = False
    name, data = settings.name, Path(settings.data).absolute()
    copy = settings.replication

    def ready(broker: "Broker") -> None:
        nonlocal started
        started = True
        log.info(
            "started",
            extra={
                "records_scanned": broker.recovery.records,
                "bytes_cut": broker.recovery.cut_bytes,
                "ms": round((clock.monotonic() - began) * 1000),
            },
        )
        say_now(f"ready {name} {broker.address} names {broker.names} data {data}")

    def leading(broker: "Broker") -> None:
        say_now(f"leading {name} {broker.address} epoch {broker.store.log.epoch}")

    def ready_as(role: str) -> Callable[[], None]:
        return lambda: say_now(f"ready {name} {role} {copy.member} data {data}")

    try:
        if copy.coordinator:
            code = run_member(settings, ready=ready_as("member"), leading=leading)
        elif copy.role == "follower":
            code = run_follower(settings, ready=ready_as("follower"))
        else:
            code = run_broker(settings, ready=ready, accept_loss=accept_loss)
    except (TxmqError, OSError) as error:
        give_up(error, started=started, addresses=_addresses(settings), data=settings.data)
    log.info("stopped", extra={"code": code})
    return code
