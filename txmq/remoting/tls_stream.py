"""TLS between a transport and the protocol that would otherwise sit on it.

:class:`TlsStream` is a protocol for the real transport and a transport for the protocol inside. It
buffers nothing: it passes on at once what it reads, and what it writes goes into the buffer of the
real transport, whose limits therefore still hold.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

from txmq.limits import TLS_HANDSHAKE_BYTES_MAX, TLS_HANDSHAKE_S
from txmq.security.tls import reason_of

__all__ = ["TlsStream"]

_RECORD_BYTES: Final = 16 * 1024
"""The maximum size of a TLS record."""


class TlsStream(asyncio.Transport, asyncio.Protocol):
    """One end of a connection with TLS.

    Args:
        context: The certificates and authorities of this end.
        make_inside: Makes the protocol inside, once the handshake is complete.
        on_end: Called once with the outcome of the handshake: empty, or why it failed.
        server_name: For a client, the name that the server's certificate must have; ``None`` for a
            server.

    Raises:
        ValueError: ``server_name`` cannot be a host's name.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make_inside: Callable[[], asyncio.Protocol],
        on_end: Callable[[str], None],
        *,
        server_name: str | None = None,
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._make_inside = make_inside
        self._on_end: Callable[[str], None] | None = on_end
        self._inside: asyncio.Protocol | None = None
        self._error: ssl.SSLError | None = None
        self._raw: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake_bytes = 0

    # Called by the real transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._raw = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(TLS_HANDSHAKE_S, self._be_too_late)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or pass on the contents of the records."""
        if self._inside is not None:
            self._incoming.write(data)
            self._deliver(self._inside)
        elif self._on_end is not None:
            self._incoming.write(data)
            self._handshake_bytes += len(data)
            self._shake_hands()

    def eof_received(self) -> bool:
        """The peer will send no more; close our side too, as without TLS."""
        if self._inside is not None:
            self._inside.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the loss of the connection."""
        self._end("the peer closed the connection during the handshake")
        if self._inside is not None:
            self._inside.connection_lost(self._error or exc)
        self._raw = None

    def pause_writing(self) -> None:
        """The buffer of the real transport is full."""
        if self._inside is not None:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        """The buffer of the real transport has room again."""
        if self._inside is not None:
            self._inside.resume_writing()

    # The handshake

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._handshake_bytes > TLS_HANDSHAKE_BYTES_MAX:
                self._refuse(f"the handshake takes more than {TLS_HANDSHAKE_BYTES_MAX} bytes")
            return
        except ssl.SSLError as error:
            self._flush()  # The alert tells the peer why.
            self._refuse(reason_of(error))
            return
        self._flush()
        self._inside = self._make_inside()
        self._end("")
        self._inside.connection_made(self)
        self._deliver(self._inside)

    def _be_too_late(self) -> None:
        self._end(f"the handshake took more than {TLS_HANDSHAKE_S:g} s")
        self.abort()  # Closing would wait for a peer that reads nothing.

    def _refuse(self, why: str) -> None:
        self._end(why)
        if self._raw is not None:
            self._raw.close()

    def _end(self, why: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(why)

    # Bytes

    def _deliver(self, inside: asyncio.Protocol) -> None:
        pieces: list[bytes] = []
        is_ended = False
        try:
            # These conditions avoid an exception for each read.
            while self._incoming.pending or self._tls.pending():
                piece = self._tls.read(_RECORD_BYTES)
                if not piece:  # The peer has closed its side.
                    is_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # The rest of a record is on its way.
        except ssl.SSLError as error:
            self._error = error
            is_ended = True
        if self._outgoing.pending:
            self._flush()  # An alert, or the answer to new keys.
        if pieces:
            # One call for everything that arrived together, so that the answers leave together too.
            inside.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_ended and not self.is_closing():
            inside.eof_received()
            self.close()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._raw is not None:
            self._raw.write(data)

    # Called by the protocol inside

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See :meth:`asyncio.WriteTransport.write`."""
        if self.is_closing():
            return
        try:
            done = self._tls.write(data)
            if done < len(data):
                rest = memoryview(data)[done:]
                while rest:
                    rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._error = error
            self.abort()
            return
        self._flush()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See :meth:`asyncio.WriteTransport.writelines`."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send what was written and TLS's closing alert, then close."""
        if self._raw is None or self._raw.is_closing():
            return
        if self._inside is not None:
            # Do not wait for the peer's closing alert: frames have lengths, so a cut one shows.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """See :meth:`asyncio.BaseTransport.is_closing`."""
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """See :meth:`asyncio.ReadTransport.pause_reading`."""
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """See :meth:`asyncio.ReadTransport.resume_reading`."""
        if self._raw is not None:
            self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """See :meth:`asyncio.WriteTransport.get_write_buffer_size`."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See :meth:`asyncio.WriteTransport.set_write_buffer_limits`."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``peercert`` is the checked certificate of the peer, ``tls_error`` the error that ended
        the connection; the real transport answers the rest.
        """
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "tls_error":
            return self._error
        return default if self._raw is None else self._raw.get_extra_info(name, default)
