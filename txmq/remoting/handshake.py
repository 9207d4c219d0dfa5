"""The start of a connection at a server whose port accepts TLS.

The first byte shows what the peer speaks: a TLS handshake begins with 22, and a frame with the high
byte of its length, which is 0.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, cast

from txmq.limits import TLS_HANDSHAKE_S
from txmq.remoting.tls_stream import TlsStream

__all__ = ["Handshake", "ServerTls"]

_TLS_HANDSHAKE: Final = 22


class ContextSource(Protocol):
    """Provides the context for new connections, which may change while the server runs."""

    @property
    def value(self) -> ssl.SSLContext:
        """The current context."""
        ...


class ServerTls(NamedTuple):
    """How a port speaks TLS."""

    source: ContextSource
    is_required: bool
    """Whether peers without TLS are refused."""


class Handshake(asyncio.Protocol):
    """A new connection, until its first byte shows the protocol and its handshake is complete.

    Args:
        tls: How the port speaks TLS.
        accept: Makes the protocol that serves the peer's requests.
        on_end: Called once, with this object and the reason for refusing the peer; empty if it was
            not refused.
    """

    def __init__(
        self,
        tls: ServerTls,
        accept: Callable[[], asyncio.Protocol],
        on_end: Callable[[Handshake, str], None],
    ) -> None:
        self._tls = tls
        self._accept = accept
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.host: str = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte, up to a limit."""
        self._transport = cast("asyncio.Transport", transport)
        self.host = (transport.get_extra_info("peername") or ("",))[0]
        self._timer = asyncio.get_running_loop().call_later(TLS_HANDSHAKE_S, self._be_too_late)

    def data_received(self, data: bytes) -> None:
        """Hand the connection to the protocol that the peer speaks."""
        self._stop_timer()
        if data[0] == _TLS_HANDSHAKE:
            self._become(TlsStream(self._tls.source.value, self._accept, self._end), data)
        elif self._tls.is_required:
            self.abort()
            self._end("it speaks without TLS, and tls.mode is enforcing")
        else:
            self._end("")
            self._become(self._accept(), data)

    def _become(self, protocol: asyncio.Protocol, data: bytes) -> None:
        assert self._transport is not None
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer left without sending a byte. Monitors do that, so it is not a refusal."""
        del exc
        self._stop_timer()
        self._end("")

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _be_too_late(self) -> None:
        self.abort()
        self._end(f"it sent nothing for {TLS_HANDSHAKE_S:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, why: str) -> None:
        self._on_end(self, why)
