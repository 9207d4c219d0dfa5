"""All that a server checks before it serves a request: accounts or protected mode, and TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from txmq.remoting.arrival import ServerTls
from txmq.remoting.dispatch import Authorize
from txmq.runtime.network import Network
from txmq.security.tls import server_context
from txmq.security.watched_files import WatchedFiles
from txmq_broker.access.acl_files import AclFiles
from txmq_broker.access.addresses import AddressPattern
from txmq_broker.access.audit import AuditLog
from txmq_broker.access.authorizer import Authorizer
from txmq_broker.access.protection import Protection, access_text
from txmq_broker.access.refusals import Refusals
from txmq_broker.access.requirements import NO_MESSAGES, MessageTopics
from txmq_broker.config import SecuritySettings, ServerTlsSettings

__all__ = ["FrontDoor", "ServerCertificates"]


class FrontDoor:
    """The checks of one process, for its broker and its name server.

    Args:
        acl: The file or directory of accounts; empty for a server without accounts.
        security: Which peers are served without an account.
        tls: How the ports speak TLS.
        network: Knows which addresses are loopback.
        audit: Where refused requests of operators are recorded.
        may_lack_accounts: Whether the file of accounts may be missing at first, as at a follower
            that will have those of its leader.

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
        """Decides by addresses, if there are no accounts."""

    def figures(self) -> dict[str, int]:
        """What was refused since the start for lack of a permission."""
        return {"access_refused": self._refusals.count}

    @property
    def port_tls(self) -> ServerTls | None:
        """How listeners speak TLS; ``None`` if they do not."""
        return None if self._certificates is None else self._certificates.port_tls

    def access_at(self, host: str) -> str:
        """Who may use a server that listens at this address, in words for an operator."""
        is_plain = self.port_tls is None and not self._network.is_loopback(host)
        return self._access + ("; other machines reach it without TLS" if is_plain else "")

    def authorizer(self, topics: MessageTopics = NO_MESSAGES) -> Authorizer | None:
        """Decides by accounts, if there are any."""
        if self.accounts is None:
            return None
        return Authorizer(
            self.accounts, topics, refusals=self._refusals, trust_brokers=self._brokers
        )

    @property
    def authorize_names(self) -> Authorize | None:
        """Looks at each request of a name server; ``None`` without accounts."""
        authorizer = self.authorizer()
        return None if authorizer is None else authorizer.check

    @property
    def files(self) -> list[AclFiles | ServerCertificates]:
        """The files that are read again when they change."""
        return [files for files in (self.accounts, self._certificates) if files is not None]


class ServerCertificates(WatchedFiles[ssl.SSLContext]):
    """The context for new connections.

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
        """What a listener needs."""

    @classmethod
    def of(cls, settings: ServerTlsSettings) -> ServerCertificates | None:
        """The certificates that the settings name; ``None`` if TLS is off."""
        return None if settings.mode == "disabled" else cls(settings)
