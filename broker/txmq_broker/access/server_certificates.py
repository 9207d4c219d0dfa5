"""The certificates of the broker and its name server: read at the start, and when they change."""

from __future__ import annotations

import ssl
from pathlib import Path

from txmq.remoting.arrival import ServerTls
from txmq.security.tls import server_context
from txmq.security.watched_files import WatchedFiles
from txmq_broker.config import ServerTlsSettings

__all__ = ["ServerCertificates"]


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
