"""What a server checks before it serves a request: accounts or protected mode, and TLS."""

from __future__ import annotations

import ssl
from hmac import compare_digest
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from txmq.errors import NoPermission
from txmq.limits import TOPICS_MAX
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.headers import SignedSend
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Authorize
from txmq.remoting.handshake import ServerTls
from txmq.runtime.network import Network
from txmq.security.signatures import ACCESS_KEY
from txmq.security.tls import server_context
from txmq.security.watched_files import WatchedFiles
from txmq_broker.access.accounts import AccessRules, Account, Permission
from txmq_broker.access.acl_files import AclFiles
from txmq_broker.access.addresses import NO_ADDRESSES, AddressPattern
from txmq_broker.access.audit import AuditLog
from txmq_broker.access.protection import Protection, Refusals, access_text
from txmq_broker.access.requirements import (
    NO_MESSAGES,
    REGISTRATIONS,
    REQUIREMENTS,
    MessageTopics,
    Need,
    Requirement,
    is_met,
)
from txmq_broker.config import SecuritySettings, ServerTlsSettings

__all__ = ["Authorizer", "FrontDoor", "ServerCertificates"]


_NAME_CHARS_SHOWN: Final = 100
"""The maximum number of characters from an unknown client that a refusal quotes."""


class RulesSource(Protocol):
    """The source of the current rules."""

    @property
    def value(self) -> AccessRules:
        """The current rules."""
        ...


class Authorizer:
    """Checks each request against the current rules.

    Args:
        source: Has the current rules, which may change while the server runs.
        topics: Finds the topics of messages that requests name by their position.
        refusals: Notes refused requests.
        trust_brokers: The addresses whose brokers may register without an account.
    """

    def __init__(
        self,
        source: RulesSource,
        topics: MessageTopics = NO_MESSAGES,
        *,
        refusals: Refusals | None = None,
        trust_brokers: AddressPattern = NO_ADDRESSES,
    ) -> None:
        self._source = source
        self._refusals = refusals or Refusals()
        self._trust_brokers = trust_brokers
        self._names: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        """The accounts of connections that have sent a heartbeat."""
        self._topics = topics

    def check(self, connection: Connection, request: Command) -> None:
        """Check whether a request may be served.

        Raises:
            NoPermission: The sender is unknown, the signature is wrong, or a permission is missing.
        """
        rules = self._source.value
        send = request.ext
        if type(send) is SignedSend:  # A fast path; a send that fails here gets its reason below.
            account = rules.without_addresses.get(send.access_key)
            if (
                account is not None
                and (send.topic in account.publishes or _may_publish(account, send.topic))
                and (content := send.content()) is not None
                and compare_digest(send.signature, account.key.digest(content, request.body))
            ):
                return
        host = connection.host
        requirement = REQUIREMENTS.get(request.code)
        if requirement is None:
            raise NoPermission(f"request {request.code} is in no table of permissions")
        if rules.is_trusted(host):
            return
        if request.code in REGISTRATIONS and self._trust_brokers.matches(host):
            return
        try:
            account = self._sender(rules, connection, request)
            self._check_needs(account, requirement, request)
        except NoPermission as error:
            is_known = request.field_map().get(ACCESS_KEY) in rules.accounts
            kind = "" if is_known else "of a stranger"
            self._refusals.note(connection, request, str(error), kind=kind)
            raise
        if request.code == RequestCode.HEART_BEAT:
            self._names[connection] = account.name

    def may_publish(self, connection: Connection, topic: str) -> bool:
        """Whether the account that sends a connection's heartbeats may publish to a topic now."""
        rules = self._source.value
        account = rules.accounts.get(self._names.get(connection, ""))
        if account is None:
            return rules.is_trusted(connection.host)
        return is_met(Need("topic", topic, Permission.PUB), account)

    def _sender(self, rules: AccessRules, connection: Connection, request: Command) -> Account:
        fields = request.field_map()
        name = fields.get(ACCESS_KEY)
        if name is None:
            return _certified(rules, connection)
        account = rules.accounts.get(name)
        if account is None:
            raise NoPermission(f"no account has the accessKey {name[:_NAME_CHARS_SHOWN]!r}")
        if account.addresses.matches(connection.host):
            return account
        if not account.key.has_signed(fields, request.body):
            raise NoPermission(
                f"check signature failed for accessKey={name}: the secret key is wrong"
            )
        return account

    def _check_needs(self, account: Account, requirement: Requirement, request: Command) -> None:
        for need in requirement(request, self._topics):
            if not is_met(need, account):
                name = RequestCode(request.code).name
                raise NoPermission(f"account {account.name} needs {need} for {name}")


def _certified(rules: AccessRules, connection: Connection) -> Account:
    """The account of a request without a signature: that of the client's certificate."""
    subject = connection.subject
    if subject is None:
        raise NoPermission("no accessKey is configured: this server serves only known accounts")
    account = rules.of_subject(subject)
    if account is None:
        text = subject.text[:_NAME_CHARS_SHOWN]
        raise NoPermission(
            f"no accessKey is configured, and no account has the tlsSubject {text!r}"
        )
    return account


def _may_publish(account: Account, topic: str) -> bool:
    if not is_met(Need("topic", topic, Permission.PUB), account):
        return False
    if len(account.publishes) < TOPICS_MAX:
        account.publishes.add(topic)
    return True


class ServerCertificates(WatchedFiles[ssl.SSLContext]):
    """The TLS context for new connections.

    Raises:
        ConfigError: A file cannot be read or used, or others may read the key.
    """

    def __init__(self, settings: ServerTlsSettings) -> None:
        certificate, key = Path(settings.certificate), Path(settings.key)
        client_ca = Path(settings.client_ca) if settings.client_ca else None
        files = [path for path in (certificate, key, client_ca) if path is not None]
        super().__init__(
            lambda: files, lambda: server_context(certificate, key, client_ca), "certificates"
        )
        self.port_tls = ServerTls(self, is_required=settings.mode == "enforcing")
        """The TLS of a listener."""

    @classmethod
    def of(cls, settings: ServerTlsSettings) -> ServerCertificates | None:
        """The certificates that the settings name; ``None`` if TLS is off."""
        return None if settings.mode == "disabled" else cls(settings)


class FrontDoor:
    """The checks of one process, for its broker and its name server.

    Args:
        acl: The file or directory of accounts; empty for a server without accounts.
        security: Which peers are served without an account.
        tls: The TLS settings of the ports.
        network: Knows which addresses are loopback.
        audit: Records refused requests of operators.
        may_lack_accounts: Whether the file of accounts may be missing at first. A follower
            receives the accounts of its leader.

    Raises:
        ConfigError: A file or an address is invalid.
    """

    def __init__(
        self,
        acl: str,
        security: SecuritySettings,
        tls: ServerTlsSettings,
        network: Network,
        audit: AuditLog | None = None,
        *,
        may_lack_accounts: bool = False,
    ) -> None:
        self.accounts = AclFiles(Path(acl), may_lack=may_lack_accounts) if acl else None
        self._network = network
        self._access = access_text(has_accounts=bool(acl), trust=security.trust)
        self._certificates = ServerCertificates.of(tls)
        self._refusals = Refusals(audit)
        trust = AddressPattern.parse(security.trust, "security.trust")
        self._brokers = AddressPattern.parse(security.trust_brokers, "security.trust_brokers")
        self.protection = (
            Protection(network, trust, self._brokers, self._refusals)
            if self.accounts is None
            else None
        )
        """Decides by addresses; ``None`` with accounts."""

    def figures(self) -> dict[str, int]:
        """The number of requests refused since the start."""
        return {"access_refused": self._refusals.count}

    @property
    def port_tls(self) -> ServerTls | None:
        """The TLS of the listeners; ``None`` without TLS."""
        return None if self._certificates is None else self._certificates.port_tls

    def access_at(self, host: str) -> str:
        """Describe to an operator who may use a server that listens on this address."""
        is_plain = self.port_tls is None and not self._network.is_loopback(host)
        return self._access + ("; other machines reach it without TLS" if is_plain else "")

    def authorizer(self, topics: MessageTopics = NO_MESSAGES) -> Authorizer | None:
        """The authorizer, which decides by accounts; ``None`` without accounts."""
        if self.accounts is None:
            return None
        return Authorizer(
            self.accounts, topics, refusals=self._refusals, trust_brokers=self._brokers
        )

    @property
    def authorize_names(self) -> Authorize | None:
        """Checks each request of a name server; ``None`` without accounts."""
        authorizer = self.authorizer()
        return None if authorizer is None else authorizer.check

    @property
    def files(self) -> list[AclFiles | ServerCertificates]:
        """The files that are read again when they change."""
        return [files for files in (self.accounts, self._certificates) if files is not None]
