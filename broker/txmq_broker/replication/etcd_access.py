"""How members and operators reach the etcd of a broker set: its address, and variables for TLS and
its users. The password comes from the environment alone, never from an address.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from txmq.errors import ConfigError
from txmq.security.tls import ClientContext, ClientTls, reason_of
from txmq_broker.config import etcd_address
from txmq_broker.replication.etcd import EtcdCoordinator, EtcdUser

__all__ = ["ETCD_VARIABLES", "etcd_coordinator"]

_PREFIX: Final = "TXMQ_ETCD"
_CA: Final = f"{_PREFIX}_CA"
_CERTIFICATE: Final = f"{_PREFIX}_CERTIFICATE"
_KEY: Final = f"{_PREFIX}_KEY"
_USER: Final = f"{_PREFIX}_USER"
_PASSWORD: Final = f"{_PREFIX}_PASSWORD"
ETCD_VARIABLES: Final = (_CA, _CERTIFICATE, _KEY, _USER, _PASSWORD)


class EtcdCertificates:
    """The files of a connection to etcd; changed ones count from the next connection on."""

    def __init__(self, settings: ClientTls) -> None:
        self._files = ClientContext(settings)
        self._has_certificate = settings.certificate is not None

    def context(self) -> ssl.SSLContext:
        """See :class:`~txmq_broker.replication.etcd.EtcdTls`."""
        self._files.refresh()
        return self._files.value

    def reason_of(self, error: ssl.SSLError) -> str:
        """See :class:`~txmq_broker.replication.etcd.EtcdTls`."""
        if error.reason == "SSLV3_ALERT_BAD_CERTIFICATE" and not self._has_certificate:
            return f"etcd requires a certificate of its clients; set {_CERTIFICATE} and {_KEY}"
        return reason_of(error, _PREFIX)


def etcd_coordinator(
    address: str, cluster: str, name: str, environ: Mapping[str, str] = os.environ
) -> EtcdCoordinator:
    """The access to the state of a broker set.

    Args:
        address: The address of etcd.
        cluster: The cluster of the set.
        name: The name of the set.
        environ: The variables with the files for TLS, and the user.

    Raises:
        ConfigError: The address or a variable is invalid, or a file cannot be used.
    """
    found = etcd_address(address)
    tls = _tls(environ, is_encrypted=found.is_encrypted)
    return EtcdCoordinator(found.endpoints, f"{cluster}/{name}", tls=tls, user=_user(environ))


def _tls(environ: Mapping[str, str], *, is_encrypted: bool) -> EtcdCertificates | None:
    names = (_CA, _CERTIFICATE, _KEY)
    ca, certificate, key = (Path(environ[name]) if environ.get(name) else None for name in names)
    if not is_encrypted:
        if given := [name for name in names if environ.get(name)]:
            raise ConfigError(
                f"{given[0]} is set, and the coordinator's address begins with etcd://, which is "
                "without TLS; write etcds://"
            )
        return None
    if (certificate is None) != (key is None):
        there, missing = (_CERTIFICATE, _KEY) if key is None else (_KEY, _CERTIFICATE)
        raise ConfigError(f"{there} is set and {missing} is not; set both or neither")
    return EtcdCertificates(ClientTls(ca=ca, certificate=certificate, key=key))


def _user(environ: Mapping[str, str]) -> EtcdUser | None:
    name, password = environ.get(_USER), environ.get(_PASSWORD)
    if bool(name) != bool(password):
        there, missing = (_USER, _PASSWORD) if name else (_PASSWORD, _USER)
        raise ConfigError(f"{there} is set and {missing} is not; set both or neither")
    return EtcdUser(name, password) if name and password else None
