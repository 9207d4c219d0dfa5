"""TLS: a client's settings, the contexts of both ends, and explanations of failures."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from txmq.errors import ConfigError
from txmq.security.credentials import check_private
from txmq.security.watched_files import WatchedFiles
from txmq.settings.values import Settings

__all__ = [
    "TLS_VARIABLES",
    "ClientContext",
    "ClientTls",
    "PeerSubject",
    "client_context",
    "load_tls",
    "reason_of",
    "server_context",
    "subject_of",
]

_TLS: Final = "TXMQ_TLS"
_CA: Final = "TXMQ_TLS_CA"
_CERTIFICATE: Final = "TXMQ_TLS_CERTIFICATE"
_KEY: Final = "TXMQ_TLS_KEY"
_SERVER_NAME: Final = "TXMQ_TLS_SERVER_NAME"
_CHECK_NAMES: Final = "TXMQ_TLS_CHECK_NAMES"
TLS_VARIABLES: Final = (_TLS, _CA, _CERTIFICATE, _KEY, _SERVER_NAME, _CHECK_NAMES)

_TRUTHS: Final = {"on": True, "off": False}


class ClientTls(Settings, kw_only=True):
    """How a client connects with TLS.

    Raises:
        ConfigError: A value is missing, or two of them contradict each other.
    """

    ca: Path | None = None
    """A PEM file of authorities that the client trusts; by default, those of the system."""
    certificate: Path | None = None
    """The client's own certificate with its chain, for servers that require one."""
    key: Path | None = None
    """The key of that certificate; only its owner may read the file."""
    server_name: str = ""
    """The name that the certificates of all servers have; by default, the address of each."""
    check_names: bool = True
    """Whether the name in a server's certificate must match. Without the check, every server whose
    certificate the authorities signed can pretend to be a broker."""

    def _check(self) -> None:
        if (self.certificate is None) != (self.key is None):
            there, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ConfigError(f"tls has a {there} and no {missing}; name both files or neither")
        if self.server_name and not self.check_names:
            raise ConfigError(
                "tls has a server_name, which check_names=False ignores; leave out one"
            )


def load_tls(environ: Mapping[str, str] = os.environ) -> ClientTls | None:
    """The TLS settings that the environment names; ``None`` unless ``TXMQ_TLS`` is ``on``.

    Raises:
        ConfigError: A variable has an invalid value, or is set although ``TXMQ_TLS`` is not.
    """
    found = {name: environ[name] for name in TLS_VARIABLES if environ.get(name)}
    if not found:
        return None
    if _TLS not in found:
        raise ConfigError(f"{next(iter(found))} is set and {_TLS} is not; set {_TLS}=on as well")
    if not _truth(found, _TLS):
        return None
    ca, certificate, key = (
        Path(found[name]) if name in found else None for name in (_CA, _CERTIFICATE, _KEY)
    )
    return ClientTls(
        ca=ca,
        certificate=certificate,
        key=key,
        server_name=found.get(_SERVER_NAME, ""),
        check_names=_truth(found, _CHECK_NAMES),
    )


def _truth(values: Mapping[str, str], name: str) -> bool:
    found = _TRUTHS.get(values.get(name, "on").lower())
    if found is None:
        raise ConfigError(f"{name} is on or off, not {values[name]!r}")
    return found


class ClientContext(WatchedFiles[ssl.SSLContext]):
    """The context for a client's new connections; changed files apply from the next one on.

    Raises:
        ConfigError: A file cannot be read or used.
    """

    def __init__(self, settings: ClientTls) -> None:
        self._settings = settings
        files = [
            Path(path)
            for path in (settings.ca, settings.certificate, settings.key)
            if path is not None
        ]
        super().__init__(lambda: files, lambda: _client_context(settings), "certificates")

    def server_name(self, host: str) -> str:
        """The name that the certificate of a host must have."""
        return self._settings.server_name or host


def client_context(settings: ClientTls | None) -> ClientContext | None:
    """The context of a client; ``None`` without TLS.

    Raises:
        ConfigError: A file cannot be read or used.
    """
    return None if settings is None else ClientContext(settings)


def _client_context(settings: ClientTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.check_names
    if settings.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, Path(settings.ca))
    if settings.certificate is not None and settings.key is not None:
        _load_chain(context, Path(settings.certificate), Path(settings.key))
    return context


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """The context of a server.

    Args:
        certificate: A PEM file with the server's certificate and its chain.
        key: Its key, which only the owner may read.
        client_ca: The authorities of clients; with them every client needs a certificate.

    Raises:
        ConfigError: A file cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A resumed session would skip the check of the client's certificate. Connections are long, so
    # there is little to save.
    context.num_tickets = 0
    _load_chain(context, certificate, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{path} has no certificate in PEM form") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    check_private(key)

    def refuse() -> str:
        # Without this function OpenSSL would ask at the terminal.
        raise ConfigError(
            f"{key} needs a password; write the key without one: openssl pkey -in {key} -out FILE"
        )

    try:
        certificate.read_bytes()  # The error of the next call does not name the file.
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key} is not the key of the certificate in {certificate}") from None
        raise ConfigError(f"{certificate} or {key} is not in PEM form: {_plain(error)}") from error
    except OSError as error:
        raise ConfigError(
            f"{error.filename or certificate} cannot be read: {error.strerror}"
        ) from error


# The peer


class PeerSubject(NamedTuple):
    """The subject of a peer's certificate."""

    text: str
    """All of it, the most specific part first, as ``openssl x509 -subject -nameopt RFC2253``
    prints it."""
    common_name: str
    """Its common name; empty if it has none or several, or one with ``=``."""


_SHORT: Final = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "streetAddress": "street", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_ESCAPED: Final = str.maketrans({char: f"\\{char}" for char in ',+"\\<>;'})


def subject_of(certificate: Mapping[str, Any] | None) -> PeerSubject | None:
    """The subject of a certificate in the form of ``ssl.SSLObject.getpeercert``."""
    if not certificate:
        return None
    parts: Iterable[Iterable[tuple[str, str]]] = certificate.get("subject", ())
    names = [value for part in parts for kind, value in part if kind == "commonName"]
    text = ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(tuple(parts))
    )
    # A common name with "=" could look like a whole subject.
    return PeerSubject(text, names[0] if len(names) == 1 and "=" not in names[0] else "")


def _escaped(value: str) -> str:
    text = value.translate(_ESCAPED)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(value) > 1 else text


# Failures

_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, and tls.client_ca "
    "requires one",
    "UNSUPPORTED_PROTOCOL": "the peer speaks no TLS newer than 1.1; 1.2 and 1.3 are accepted",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer accepts none of the TLS versions 1.2 and 1.3",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a client certificate; set "
    "{variables}_CERTIFICATE and {variables}_KEY",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses our certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refuses the handshake; it may require a client "
    "certificate",
    "WRONG_VERSION_NUMBER": "the peer answers without TLS",
    "NO_SHARED_CIPHER": "the peer supports none of our ciphers",
}
_UNKNOWN_AUTHORITY: Final = frozenset((2, 18, 19, 20, 21))
"""OpenSSL's codes for chains that do not end at a trusted authority."""


def reason_of(error: ssl.SSLError, variables: str = _TLS) -> str:
    """Why a connection with TLS failed, and what to change.

    Args:
        error: The failure.
        variables: The prefix of the variables that configure the connection.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message.strip().rstrip(".")
        text = f"{text[:1].lower()}{text[1:]}" if text[:2] != "IP" else text
        if error.verify_code in _UNKNOWN_AUTHORITY:
            trust = f"name the file of its authority in {variables}_CA"
            if variables == _TLS:
                trust += ", or in tls.client_ca"
            return f"no trusted authority signed the peer's certificate ({text}); {trust}"
        return f"the peer's certificate is refused: {text}"
    reason = _REASONS.get(error.reason or "", _plain(error))
    return reason.replace("{variables}", variables)


def _plain(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
