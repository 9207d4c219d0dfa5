"""The settings of a console, and the addresses under which browsers may use it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from txmq.errors import ConfigError
from txmq.settings.values import Settings

__all__ = ["ConsoleSettings", "OutboxAddress", "origins_of", "outbox_address"]

_NAME_CHARS_MAX: Final = 64
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class OutboxAddress:
    """An outbox that the console shows, and its database."""

    name: str
    url: str = field(repr=False)
    """It may contain a password."""
    table: str = "txmq_outbox"
    schema: str | None = None


class ConsoleSettings(Settings, kw_only=True):
    """What a console shows, and to whom."""

    names: str
    """The name servers."""
    cluster: str | None = None
    """The cluster, if there are several."""
    origins: frozenset[str]
    """The addresses of the console in a browser, such as ``http://localhost:8080``."""
    is_read_only: bool = False
    needs_login: bool = True
    """Whether everyone must log in. If not, visitors act without an account, as long as the brokers
    have no accounts."""
    operator: str = "unknown"
    """The name that the broker records for visitors without an account."""
    outboxes: tuple[OutboxAddress, ...] = ()
    """The outboxes that operators see and change."""
    reports: str | None = None
    """The directory of results of reconciliations, which operators see."""

    @property
    def hosts(self) -> frozenset[str]:
        """The accepted values of the header Host."""
        return frozenset(origin.partition("://")[2] for origin in self.origins)

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers use the console only over HTTPS."""
        return all(origin.startswith("https://") for origin in self.origins)


def origins_of(host: str, port: int, given: str | None, *, is_loopback: bool) -> frozenset[str]:
    """The origins of a console.

    Args:
        host: The address it listens on.
        port: Its port.
        given: The origin that browsers show, if it differs from the address.
        is_loopback: Whether only this machine reaches the address.

    Raises:
        ConfigError: The origin is missing or invalid, or would carry secret keys over plain HTTP.
    """
    if given is not None:
        return frozenset({_checked(given)})
    if not is_loopback:
        raise ConfigError(
            f"other machines reach {host}; name the address that their browsers show with "
            "--origin https://console.example.com, and let a proxy at that address speak TLS"
        )
    shown = {f"[{host}]" if ":" in host else host, "localhost"}
    return frozenset(f"http://{name}{_port_text('http', port)}" for name in shown)


def outbox_address(text: str) -> OutboxAddress:
    """Parse an outbox option: ``NAME=URL``, or ``NAME:TABLE=URL`` for another table.

    Raises:
        ConfigError: The text has another form. The error does not quote it, because it may contain
            a password.
    """
    named, equals, url = text.strip().partition("=")
    name, _, full = named.partition(":")
    schema, _, table = full.rpartition(".")
    is_plain = name.isprintable() and 0 < len(name) <= _NAME_CHARS_MAX and not name.isspace()
    if not equals or not is_plain or "://" not in url or "://" in named:
        raise ConfigError(
            "--database needs a name and a URL, such as bank=postgresql://user@host/bank; for an "
            "outbox with another name, bank:app.my_outbox=postgresql://user@host/bank"
        )
    return OutboxAddress(name, url, table or "txmq_outbox", schema or None)


def _checked(origin: str) -> str:
    parts = urlsplit(origin)
    try:
        port = parts.port
    except ValueError:
        port = -1
    is_bare = parts.path in {"", "/"} and not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_bare or port == -1:
        raise ConfigError(
            f"{origin!r} is not an origin; write https://host or https://host:port, without a path"
        )
    if parts.scheme == "http" and parts.hostname not in _LOCAL_NAMES:
        raise ConfigError(
            f"{origin!r} would carry secret keys without TLS; write an origin with https://"
        )
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{name}{_port_text(parts.scheme, port)}"


def _port_text(scheme: str, port: int | None) -> str:
    # Browsers leave out the default port.
    return "" if port in {None, {"http": 80, "https": 443}[scheme]} else f":{port}"
