"""The broker's settings, grouped by the part of the broker that uses them.

:mod:`txmq.settings.loading` reads them from defaults, TOML, ``TXMQ_*`` variables and arguments.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from txmq.errors import ConfigError
from txmq.limits import (
    DELAY_LEVELS_MAX,
    FRAME_BYTES_MAX,
    MESSAGE_BODY_BYTES_MAX,
    SPAN_BYTES_MAX,
)
from txmq.remoting.pool import split_address
from txmq.runtime.process import memory_bytes
from txmq.settings.units import Duration, Size, parse_duration
from txmq.settings.values import Settings

__all__ = [
    "HOW_TO_ADVERTISE",
    "BrokerSettings",
    "CheckBackSettings",
    "DelaySettings",
    "FilterSettings",
    "ReplicationSettings",
    "RetentionSettings",
    "SecuritySettings",
    "ServerTlsSettings",
    "StoreSettings",
    "TopicDefaults",
]


_BODY_MAX: Final = FRAME_BYTES_MAX - 128 * 1024
"""The rest of a frame is for the header."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]+")

FlushMode = Literal["sync", "async"]
ReplicationRole = Literal["leader", "follower"]
ReplicationMode = Literal["", "sync", "async"]
TlsMode = Literal["disabled", "permissive", "enforcing"]

HOW_TO_ADVERTISE: Final = (
    "set advertise to the address clients shall use, for instance --set advertise=192.0.2.1:10911"
)
"""What an error advises if clients cannot know the address of the broker."""


class StoreSettings(Settings, kw_only=True):
    """How the log is kept.

    Raises:
        ConfigError: A value is invalid.
    """

    flush: FlushMode = "sync"
    """"sync": a send is answered when it would survive a power cut; "async": when it is written."""

    flush_interval: Duration = Duration(0.5)
    """With ``flush = "async"``, how often what was written is made durable."""

    segment_size: Annotated[Size, Meta(ge=2 * SPAN_BYTES_MAX)] = Size(1024**3)
    """The log is kept in files of this size."""

    checkpoint_every: Annotated[Size, Meta(ge=64 * 1024)] = Size(32 * 1024**2)
    """After this much log the indexes are saved; a restart after a crash reads at most about
    this.
    """

    verify_bytes_per_second: Size = Size(20 * 1000**2)
    """How fast the log is read again in the background to find what the disk has changed; 0 leaves
    damage to be found by those who read it.
    """


class RetentionSettings(Settings, kw_only=True):
    """When stored messages are deleted.

    Raises:
        ConfigError: A value is invalid.
    """

    keep: Duration = Duration(72 * 3600.0)
    """How long a message is kept at least, unless the disk runs full."""

    delete_at: str = "04"
    """The hours of the day, separated by ``;``, in which old files are deleted; none where
    empty.
    """

    delete_above: float = 0.75
    """Used part of the disk above which old files are deleted at any hour."""

    force_above: float = 0.85
    """Used part of the disk above which files are deleted before they are old."""

    refuse_halves_above: Annotated[float, Meta(gt=0, le=1)] = 0.88
    """Used part of the disk above which new half messages are refused, to leave room for the
    decisions on those that are open."""

    refuse_above: float = 0.90
    """Used part of the disk above which sends are refused; decisions are still taken, and messages
    that wait for their time still come.
    """

    def _check(self) -> None:
        for hour in self.delete_at.split(";") if self.delete_at else []:
            if not (hour.strip().isdecimal() and int(hour) < 24):
                raise ConfigError(
                    f"retention.delete_at cannot be {self.delete_at!r}; "
                    "it takes hours from 0 to 23, separated by ';', such as 04;16"
                )
        marks = (self.delete_above, self.force_above, self.refuse_above)
        if not 0 < marks[0] <= marks[1] <= marks[2] <= 1:
            raise ConfigError(
                "retention marks must rise: 0 < delete_above <= force_above <= refuse_above <= 1"
            )


class ReplicationSettings(Settings, kw_only=True):
    """The copies of the broker's log.

    Raises:
        ConfigError: A value is invalid.
    """

    coordinator: str = ""
    """The etcd that decides who leads, as "etcd://h1:2379,h2:2379", or with "etcds://" over TLS.
    Certificates and the user are in variables TXMQ_ETCD_... alone. The members of a broker set
    share it and their ``name``, and each has a directory of its own.
    """

    member: str = ""
    """The name of this member, different for each member of a broker set."""

    address: str = ""
    """Where the members of the set reach this one, if that is not where clients do."""

    role: ReplicationRole = "leader"
    """Without a coordinator: "leader" takes sends; "follower" copies the log of the leader of its
    name, and takes no sends.
    """

    mode: ReplicationMode = ""
    """When a leader answers a send: "sync", when every follower in the in-sync set has it durably
    too; "async", on its own. Empty: "sync" with a coordinator, and else "async".
    """

    min_in_sync: Annotated[int, Meta(ge=1)] = 1
    """How many copies, with the leader's, have to be in sync; with fewer, sends are refused."""

    lag_max: Annotated[Duration, Meta(gt=0)] = Duration(10.0)
    """How far behind a follower may be, in time, before it is no longer in sync."""

    wait_max: Annotated[Duration, Meta(gt=0)] = Duration(2.0)
    """How long the answer to a send waits for followers, with "sync"; those that are late are then
    no longer in sync. Stock clients wait 3 s for an answer.
    """

    reads: bool = False
    """Whether consumers may read from followers: a follower serves pulls and queries, and a leader
    sends consumers to one that are ``far_behind``; RocketMQ's ``slaveReadEnable``.
    """

    far_behind: Annotated[float, Meta(ge=0)] = 0.4
    """How far behind the end of the log a consumer is sent to a follower, as a part of the size of
    this machine's memory.
    """

    lease: Annotated[Duration, Meta(ge=2)] = Duration(5.0)
    """After how long without a sign of the leader another member leads, in whole seconds."""

    @property
    def far_behind_bytes(self) -> int:
        """How many bytes behind the end of the log a consumer is far behind."""
        return int(self.far_behind * memory_bytes())

    @property
    def is_sync(self) -> bool:
        """Whether answers wait for followers."""
        return (self.mode or ("sync" if self.coordinator else "async")) == "sync"

    def _check(self) -> None:
        if (self.coordinator or self.role == "follower") and not _NAME.fullmatch(self.member):
            raise ConfigError(
                f"replication.member cannot be {self.member!r} for a member of a broker set; it "
                "takes letters, digits, and -_.@ (RocketMQ's brokerId, from 1, sets it as well)"
            )
        if self.coordinator:
            if self.role == "follower":
                raise ConfigError(
                    "replication.role is for sets without a coordinator; leave out one of the two"
                )
            etcd_address(self.coordinator)
        if not self.lease.is_integer():
            raise ConfigError(f"replication.lease cannot be {self.lease}; it takes whole seconds")


class TopicDefaults(Settings, kw_only=True):
    """How topics and groups are created.

    Raises:
        ConfigError: A value is invalid.
    """

    auto_create: bool = True
    """Whether sending to an unknown topic makes it."""

    queues: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Queues of the template ``TBW102``; a client asks for up to as many, stock ones for 4."""

    auto_create_groups: bool = True
    """Whether a consumer group comes into being by consuming."""

    message_size_max: Annotated[Size, Meta(ge=1, le=_BODY_MAX)] = Size(MESSAGE_BODY_BYTES_MAX)
    """The largest body, as sent."""

    traces: bool = True
    """Whether the topic of traces, ``RMQ_SYS_TRACE_TOPIC``, is there from the start."""


class FilterSettings(Settings, kw_only=True):
    """By what consumers may have the broker filter."""

    sql: bool = False
    """Whether consumers may give conditions on properties (SQL92) besides tags; RocketMQ's
    ``enablePropertyFilter``.
    """


class CheckBackSettings(Settings, kw_only=True):
    """How the broker asks producers for the state of open transactions.

    Raises:
        ConfigError: A value is invalid.
    """

    timeout: Duration = Duration(60.0)
    """How long after a half message its producer is first asked, if it has not decided; 0 asks at
    once. Also ``transactionTimeout``, and RocketMQ's ``transactionTimeOut`` in milliseconds.
    """

    check_interval: Annotated[Duration, Meta(gt=0)] = Duration(60.0)
    """How long between one check of a transaction and the next; also ``transactionCheckInterval``.
    """

    check_max: Annotated[int, Meta(ge=1, le=60_000)] = 15
    """After so many checks that brought no decision a transaction is parked; also
    ``transactionCheckMax``.
    """

    pending_max: Annotated[int, Meta(ge=0)] = 1_000_000
    """Transactions open at once; further half messages are refused, decisions never. 0 refuses
    every half message."""


class DelaySettings(Settings, kw_only=True):
    """How long messages may wait that are sent for later.

    Raises:
        ConfigError: A value is invalid.
    """

    levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """How long each delay level takes, from level 1 on; retries begin with level 3. Also
    ``messageDelayLevel``.
    """

    longest: Annotated[Duration, Meta(gt=0)] = Duration(3 * 86_400.0)
    """How far away the time may be for which a message is sent; also ``timerMaxDelaySec``."""

    def _check(self) -> None:
        self.levels_ms()

    def levels_ms(self) -> tuple[int, ...]:
        """How long each level takes, in milliseconds.

        Raises:
            ConfigError: They cannot be read.
        """
        texts = self.levels.split()
        if not 1 <= len(texts) <= DELAY_LEVELS_MAX:
            raise ConfigError(f"delay.levels has from 1 to {DELAY_LEVELS_MAX} levels")
        levels: tuple[int, ...] = ()
        for text in texts:
            try:
                levels += (int(parse_duration(text) * 1000),)
            except ValueError as error:
                raise ConfigError(f"delay.levels cannot hold {text!r}; write {error}") from error
        if min(levels) <= 0:
            raise ConfigError("delay.levels are durations above 0, such as 1s 5s 10s 30s 1m")
        return levels


class SecuritySettings(Settings, kw_only=True):
    """Which peers beyond loopback are served without an account."""

    trust: str = ""
    """The addresses and networks, separated by ``,``, whose clients may send and consume although
    there is no ``acl``; ``*`` is every address. Only peers on
    loopback may do what operators do.
    """

    trust_brokers: str = ""
    """The addresses and networks, separated by ``,``, whose brokers may register with its own name
    server without an account: RocketMQ's brokers sign no registration.
    """


class ServerTlsSettings(Settings, kw_only=True):
    """How the ports of the broker and of its name server speak TLS.

    Raises:
        ConfigError: A file is missing.
    """

    mode: TlsMode = "disabled"
    """"disabled": without TLS; "permissive": with and without, by a connection's first byte;
    "enforcing": only with TLS.
    """

    certificate: str = ""
    """A PEM file with the server's certificate and its chain. It names the addresses that clients
    connect to. The three files are read again when they change; open connections stay.
    """

    key: str = ""
    """A PEM file with the key of the certificate, without a password; only its owner may read it.
    """

    client_ca: str = ""
    """A PEM file of authorities. With it, every connection with TLS needs a client certificate
    that one of them signed; ``tlsSubject`` in the file of accounts makes it an account.
    """

    def _check(self) -> None:
        if self.mode != "disabled":
            for setting in ("certificate", "key"):
                if not getattr(self, setting):
                    raise ConfigError(f"tls.mode {self.mode!r} needs tls.{setting}, a PEM file")


class BrokerSettings(Settings, kw_only=True):
    """All settings of ``txmq serve``.

    Raises:
        ConfigError: A value is invalid.
    """

    name: str = "broker-a"
    """This broker's name; brokers that share a cluster must differ in it."""

    cluster: str = "DefaultCluster"
    """The cluster it belongs to."""

    data: str = "txmq-data"
    """The directory that holds everything it keeps."""

    listen: str = "127.0.0.1:10911"
    """Where clients reach it."""

    advertise: str = ""
    """The address that clients use if it differs from ``listen``; numeric, because records need
    a number.
    """

    names_listen: str = "127.0.0.1:9876"
    """Where its own name server listens."""

    names: str = ""
    """Name servers elsewhere, separated by ``;``; with any, it runs none of its own."""

    http_listen: str = ""
    """Where it serves metrics and health over HTTP, without accounts; empty: nowhere."""

    acl: str = ""
    """A file of accounts as RocketMQ's ``plain_acl.yml``, or a directory of such files. With it,
    every request needs a signature and a permission; it is read again when it changes.
    """

    connections_max: int = 10_000
    """Connections open at once, at the broker and at its own name server; one more is closed."""

    hold_max: Duration = Duration(20.0)
    """The longest a pull is held open; stock clients give up after 30 s."""

    long_polling: bool = True
    """Whether a pull at the end of its queue waits up to ``hold_max`` for a message; where false,
    up to ``short_polling``.
    """

    short_polling: Duration = Duration(1.0)
    """The longest a pull is held open where ``long_polling`` is false; with 0 it is answered at
    once.
    """

    store: StoreSettings = StoreSettings()
    tls: ServerTlsSettings = ServerTlsSettings()
    replication: ReplicationSettings = ReplicationSettings()
    topics: TopicDefaults = TopicDefaults()
    filter: FilterSettings = FilterSettings()
    transaction: CheckBackSettings = CheckBackSettings()
    delay: DelaySettings = DelaySettings()
    retention: RetentionSettings = RetentionSettings()
    security: SecuritySettings = SecuritySettings()

    @property
    def pull_wait_max(self) -> float:
        """The longest a pull is held open, in seconds."""
        return self.hold_max if self.long_polling else self.short_polling

    def _check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name cannot be {self.name!r}; it takes letters, digits, and -_.@")
        if self.acl and self.security.trust:
            raise ConfigError(
                "security.trust is for brokers without acl; with accounts, write the addresses to "
                "globalWhiteRemoteAddresses in the file of accounts"
            )
        self._check_set()
        if self.replication.address:
            _address("replication.address", self.replication.address, port_min=1)
        _address("names_listen", self.names_listen)
        if self.http_listen:
            _address("http_listen", self.http_listen)
        host, _ = _address("listen", self.listen)
        if self.advertise:
            _check_advertise(self.advertise)
        elif _is_every_address(host):
            raise ConfigError(
                f"listen {self.listen!r} is every address of this machine; {HOW_TO_ADVERTISE}"
            )
        if self.names:
            servers = [server.strip() for server in self.names.split(";") if server.strip()]
            for server in servers or [self.names]:
                if "," in server:
                    raise ConfigError(f"names cannot be {server!r}; separate addresses with ';'")
                _address("names", server, port_min=1)

    def _check_set(self) -> None:
        copies = self.replication
        if (copies.coordinator or copies.role == "follower") and not self.names:
            raise ConfigError(
                "the members of a broker set meet at name servers; set --names HOST:PORT"
            )
        if copies.coordinator and self.store.flush != "sync":
            raise ConfigError(
                "a member under a coordinator may lead after a power cut, so it has to have what "
                'it confirmed; set store.flush to "sync"'
            )


def _address(setting: str, text: str, *, port_min: int = 0) -> tuple[str, int]:
    try:
        host, port = split_address(text)
    except ConfigError:
        port = -1
    if port < port_min:
        takes = f"it takes host:port, the port from {port_min} to 65535"
        raise ConfigError(f"{setting} cannot be {text!r}; {takes}")
    return host, port


def _check_advertise(text: str) -> None:
    host, _ = _address("advertise", text, port_min=1)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        why = "records hold numeric addresses, no names"
    else:
        if not _is_every_address(host):
            return
        why = "it is every address of this machine"
    raise ConfigError(f"advertise cannot be {text!r}: {why}; {HOW_TO_ADVERTISE}")


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # A name; what it stands for is seen when it is opened.


class EtcdAddress(NamedTuple):
    """Where an etcd is."""

    endpoints: list[tuple[str, int]]
    is_encrypted: bool


def etcd_address(text: str) -> EtcdAddress:
    """The hosts and ports in an address of etcd.

    Raises:
        ConfigError: The text is not an address of etcd.
    """
    scheme, _, rest = text.partition("://")
    if scheme in ("etcd", "etcds") and "@" not in rest:
        with suppress(ConfigError):
            endpoints = [split_address(address.strip()) for address in rest.split(",")]
            return EtcdAddress(endpoints, scheme == "etcds")
    # A password may stand before an @.
    shown = text if "@" not in text else f"...@{text.rpartition('@')[2]}"
    raise ConfigError(
        f"replication.coordinator cannot be {shown!r}; it takes etcd://HOST:PORT, or etcds:// for "
        "TLS, and further addresses of the same etcd after commas"
    )
