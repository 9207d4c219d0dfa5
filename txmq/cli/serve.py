"""``txmq serve``: a broker, with its own name server unless others are given.

Only the commands that need the broker import it, and only when they run: commands of a client load
no broker.
"""

import asyncio
import errno
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn

import typer

import txmq
from txmq.cli import logs
from txmq.cli.common import FAILED, WRONGLY_CALLED, fail
from txmq.cli.output import flush, note, note_lines, say
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

_FLUSH_MEANS: Final = {
    "sync": "a send is answered when its message survives a power cut",
    "async": "a send is answered when it is written; a power cut may take the last messages",
}

_TLS_MEANS: Final = {
    "disabled": "disabled: connections are not encrypted",
    "permissive": "permissive: connections with TLS and without",
    "enforcing": "enforcing: only connections with TLS",
}


def serve(
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", show_default="txmq-data", help="The directory of all its data."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", show_default="127.0.0.1:10911", help="Where clients connect."
        ),
    ] = None,
    names_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default="127.0.0.1:9876",
            help="Where its own name server listens.",
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--names",
            "-n",
            metavar="ADDRS",
            help="Other name servers (separated by ';') instead of its own; also TXMQ_NAMES.",
        ),
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(
            metavar="sync|async",
            show_default="sync",
            help="When a send is answered: once its message survives a power cut (sync), or once "
            "it is written, so that a power cut may take the last messages (async).",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            envvar=CONFIG_VARIABLE,
            metavar="FILE",
            help="A file of settings: TOML, or RocketMQ's broker.conf.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting, by its name here or in RocketMQ; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="BROKER", show_default="broker-a", help="This broker's name."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default="DefaultCluster", help="The cluster it belongs to."
        ),
    ] = None,
    acl: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file of accounts, as RocketMQ's plain_acl.yml, or a directory of them: every "
            "request then needs a signature and a permission.",
        ),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRS",
            help="Without accounts: addresses and networks (separated by ',') whose clients may "
            "send and consume. Others beyond loopback are refused.",
        ),
    ] = None,
    trust_brokers: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRS",
            help="Addresses and networks (separated by ',') whose brokers may register with its "
            "name server without an account.",
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRS",
            help="The etcd that decides which member of the broker set leads: "
            "etcd://h1:2379,h2:2379.",
        ),
    ] = None,
    member: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This member of the broker set."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default="nowhere",
            help="Where to serve /metrics, /health/live, /health/ready and /info over HTTP, "
            "without accounts.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            envvar=BROKERS_VARIABLE,
            metavar="N",
            help="Run so many brokers of one cluster, each in a process and a directory of its "
            "own: one for each core. Their ports are 10 apart.",
        ),
    ] = None,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            show_default=f"{DRAIN_S:.0f}",
            help="With --brokers: how long a broker may take to drain, before it is killed.",
        ),
    ] = None,
    accept_loss: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Start although a part of the log is missing, and record the reason in the log. "
            "Offsets are never used twice.",
        ),
    ] = None,
    log_format: LogForm = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run a broker until it is stopped; SIGTERM drains it.

    Settings come from the file, TXMQ_* variables, --set and the other options; a later source
    overrides an earlier one. `txmq config reference` prints all settings, as
    docs/reference/configuration.md does.
    """
    if not __debug__:
        fail("a broker checks itself by assertions; run it without python -O", WRONGLY_CALLED)
    logs.configure(log_format, log_level)
    settings = _load_settings(
        config,
        set_ or [],
        {
            "data": data,
            "listen": listen,
            "names_listen": names_listen,
            "names": names,
            "store.flush": flush,
            "name": name,
            "cluster": cluster,
            "acl": acl,
            "security.trust": trust,
            "security.trust_brokers": trust_brokers,
            "replication.coordinator": coordinator,
            "replication.member": member,
            "http_listen": http,
        },
    )
    plan = ServePlan(brokers, drain_timeout, accept_loss, log_format, log_level)
    raise typer.Exit(_start(settings, plan))


class ServePlan(NamedTuple):
    """The options that are not settings of the broker."""

    brokers: int | None
    drain_s: float | None
    accept_loss: str | None
    log_form: logs.Form
    log_level: logs.Level


def _load_settings(
    file: str | None, pairs: Sequence[str], options: Mapping[str, str | None]
) -> "BrokerSettings":
    """The settings from the file, the environment, ``--set`` and the other options by key."""
    if options["names"] is not None and options["names_listen"] is not None:
        fail("--names and --names-listen exclude each other; leave out one", WRONGLY_CALLED)
    arguments = [f"{key}={value}" for key, value in options.items() if value is not None]
    if options["names_listen"] is not None:
        # A name server of its own excludes the one that other commands find in TXMQ_NAMES.
        arguments.append("names=")
    try:
        return load(
            settings_shape(),
            file=file,
            environ=os.environ,
            reserved=not_settings(),
            arguments=[*pairs, *arguments],
            aliases=foreign_names(),
            notice=log.warning,
        )
    except ConfigError as error:
        fail(str(error), WRONGLY_CALLED)


def _start(settings: "BrokerSettings", plan: ServePlan) -> int:
    """Run one broker or several until they stop; returns the exit code."""
    if plan.accept_loss is not None and not plan.accept_loss.strip():
        fail("--accept-loss needs a reason, which the broker records in its log", WRONGLY_CALLED)
    if plan.brokers is not None:
        return _run_several(settings, plan, plan.brokers)
    if plan.drain_s is not None:
        fail(
            "--drain-timeout needs --brokers: a single broker has no supervisor that would end it; "
            "add --brokers, or leave out --drain-timeout",
            WRONGLY_CALLED,
        )
    _refuse_directory_of_several(settings)
    note_lines(banner(settings))
    keep_freed_memory()
    shorten_time_slice()
    return _run(settings, plan.accept_loss)


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
    from txmq_broker.handlers.rocketmq_settings import NAMES

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
        started: Whether it has served.
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
    fail(f"{'stopped' if started else 'cannot start'}: {what}", FAILED)


def _taken(error: OSError, addresses: Mapping[str, str]) -> str | None:
    # Only the text of the error has the address: "... address ('127.0.0.1', 9876): ...".
    if error.errno != errno.EADDRINUSE:
        return None
    port = re.search(r"\('[^']*', (\d+)", str(error))
    for option, address in addresses.items():
        if port is None or split_address(address)[1] == int(port[1]):
            return f"{address} is taken; choose another {option}"
    return None


def _refuse_directory_of_several(settings: "BrokerSettings") -> None:
    from txmq_broker.processes.layout import check_lone_directory

    try:
        check_lone_directory(Path(settings.data).absolute())
    except ConfigError as error:
        fail(str(error), WRONGLY_CALLED)


# Several brokers


def _run_several(settings: "BrokerSettings", plan: ServePlan, count: int) -> int:
    from txmq_broker.processes.layout import settings_of_brokers

    try:
        note_lines(banner(settings, settings_of_brokers(settings, count)))
        reason = _run_brokers(settings, plan, count)
    except (TxmqError, OSError) as error:
        give_up(error, started=False, addresses=_addresses(settings), data=settings.data)
    if reason:
        fail(reason)
    log.info("stopped", extra={"code": 0})
    return 0


def _run_brokers(settings: "BrokerSettings", plan: ServePlan, count: int) -> str:
    """Run several brokers of one cluster, each in a process of its own, until SIGTERM or SIGINT.

    Returns:
        Why they did not drain; empty if they did.

    Raises:
        ConfigError: The brokers cannot share a setting, or the directory holds something else.
        StoreError: The directory is in use, or a file of the name server is damaged.
        OSError: An address or the directory cannot be opened.
    """
    from txmq_broker.processes.service import BrokersOptions, BrokersService

    options = BrokersOptions(
        count=count,
        words=_BROKER_WORDS,
        accept_loss=plan.accept_loss,
        drain_s=DRAIN_S if plan.drain_s is None else plan.drain_s,
        log_form=plan.log_form,
        log_level=plan.log_level,
    )
    service = BrokersService(settings, options, lambda: _say_several_ready(service))
    pages = None
    if settings.http_listen:
        with named_extra():
            from txmq_broker.processes.pages import BrokerPages
        pages = BrokerPages(service).pages()

    async def run() -> SupervisorEnd:
        with _draining_at_signals(service):
            return await service.run(pages)

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        end = runner.run(run())
    if end is SupervisorEnd.DRAINED:
        return ""
    started = "stopped" if service.was_ready else "cannot start"
    return f"{started}: {service.reason or end.value}"


def _say_several_ready(service: "BrokersService") -> None:
    addresses = ";".join(state.address for state in service.brokers)
    data = Path(service.settings.data).absolute()
    say(f"ready brokers {addresses} names {service.names_text} data {data}")
    flush()


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
        _say_ready(broker)

    try:
        if settings.replication.coordinator:
            code = run_member(settings, ready=lambda: _say_member(settings), leading=_say_leading)
        elif settings.replication.role == "follower":
            code = run_follower(settings, ready=lambda: _say_following(settings))
        else:
            code = run_broker(settings, ready=ready, accept_loss=accept_loss)
    except (TxmqError, OSError) as error:
        give_up(error, started=started, addresses=_addresses(settings), data=settings.data)
    log.info("stopped", extra={"code": code})
    return code


def _say_following(settings: "BrokerSettings") -> None:
    data = Path(settings.data).absolute()
    say(f"ready {settings.name} follower {settings.replication.member} data {data}")
    flush()


def _say_member(settings: "BrokerSettings") -> None:
    data = Path(settings.data).absolute()
    say(f"ready {settings.name} member {settings.replication.member} data {data}")
    flush()


def _say_leading(broker: "Broker") -> None:
    say(f"leading {broker.settings.name} {broker.address} epoch {broker.store.log.epoch}")
    flush()


def _say_ready(broker: "Broker") -> None:
    settings = broker.settings
    data = Path(settings.data).absolute()
    say(f"ready {settings.name} {broker.address} names {broker.names} data {data}")
    flush()
