"""Compression of bodies. Clients compress and decompress; a broker passes the bytes through."""

from __future__ import annotations

import zlib
from typing import Final, Literal

from txmq.errors import ConfigError, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.codes import SysFlag

__all__ = ["Algorithm", "compress", "decompress"]

Algorithm = Literal["zlib", "lz4", "zstd"]

_TYPE_BITS: Final = 0x700
COMPRESSED: Final = int(SysFlag.COMPRESSED)
"""A plain number for the hot path, because enum members are slow to access."""

_FLAGS: Final[dict[str, int]] = {
    # Clients of every version decompress plain 0x1 as zlib.
    "zlib": int(SysFlag.COMPRESSED),
    "lz4": int(SysFlag.COMPRESSED | SysFlag.LZ4),
    "zstd": int(SysFlag.COMPRESSED | SysFlag.ZSTD),
}
_ZLIB_LEVEL: Final = 5
_WINDOW_BYTES_MAX: Final = FRAME_BYTES_MAX
"""The memory that a zstd frame may claim in its first bytes."""


def compress(body: bytes, algorithm: Algorithm = "zlib") -> tuple[int, bytes]:
    """The system flag's bits for the algorithm, and the compressed body.

    Raises:
        ConfigError: The algorithm needs a package that is not installed.
    """
    if algorithm == "zlib":
        return _FLAGS["zlib"], zlib.compress(body, _ZLIB_LEVEL)
    try:
        if algorithm == "lz4":
            import lz4.frame

            return _FLAGS["lz4"], bytes(lz4.frame.compress(body))
        import zstandard
    except ImportError as error:
        raise ConfigError(f"{algorithm} needs a package: pip install 'txmq[broker]'") from error
    return _FLAGS["zstd"], zstandard.ZstdCompressor().compress(body)


def decompress(sys_flag: int, body: bytes, limit: int = FRAME_BYTES_MAX) -> bytes:
    """The original body; unchanged if it was not compressed.

    Raises:
        RemoteProtocolError: The body is broken, or decompresses to more than ``limit`` bytes.
        ConfigError: The algorithm needs a package that is missing.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & _TYPE_BITS
    try:
        if kind == SysFlag.LZ4:
            opened = _open_lz4(body, limit)
        elif kind == SysFlag.ZSTD:
            opened = _open_zstd(body, limit)
        else:
            opened = _open_zlib(body, limit)
    except ImportError as error:
        raise ConfigError(
            "reading this body needs a package: pip install 'txmq[broker]'"
        ) from error
    except (zlib.error, RuntimeError, EOFError, ValueError, OSError) as error:
        raise RemoteProtocolError(f"a body does not decompress: {error}") from error
    if len(opened) > limit:
        raise RemoteProtocolError(f"a body decompresses to more than {limit} bytes")
    return opened


def _open_zlib(body: bytes, limit: int) -> bytes:
    opener = zlib.decompressobj()
    opened = opener.decompress(body, limit + 1)
    return _whole(opened, limit, ended=opener.eof)


def _open_lz4(body: bytes, limit: int) -> bytes:
    import lz4.frame

    opener = lz4.frame.LZ4FrameDecompressor()
    opened = bytes(opener.decompress(body, max_length=limit + 1))
    return _whole(opened, limit, ended=opener.eof)


def _open_zstd(body: bytes, limit: int) -> bytes:
    import zstandard

    try:
        if zstandard.frame_content_size(body) > limit:
            raise ValueError(f"it claims to hold more than {limit} bytes")
        opener = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        return opener.decompress(body, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _whole(opened: bytes, limit: int, *, ended: bool) -> bytes:
    if not ended and len(opened) <= limit:
        raise EOFError("it ends too early")
    return opened
