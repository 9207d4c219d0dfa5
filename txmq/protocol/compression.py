"""Bodies made smaller by clients. A broker passes them through; only readers open them."""

from __future__ import annotations

import zlib
from typing import Final, Literal

from txmq.errors import ConfigError, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX
from txmq.protocol.codes import SysFlag

__all__ = ["Algorithm", "compress", "decompress"]

Algorithm = Literal["zlib", "lz4", "zstd"]

_TYPE_BITS: Final = 0x700
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
"""For every message that is read; an enum's members are slow to reach."""

_FLAGS: Final[dict[str, int]] = {
    # Plain 0x1 is what every client of every age inflates as zlib.
    "zlib": int(SysFlag.COMPRESSED),
    "lz4": int(SysFlag.COMPRESSED | SysFlag.LZ4),
    "zstd": int(SysFlag.COMPRESSED | SysFlag.ZSTD),
}
_ZLIB_LEVEL: Final = 5
_WINDOW_BYTES_MAX: Final = FRAME_BYTES_MAX
"""What a zstd frame may make its reader set aside; it claims that in its first bytes."""


def compress(body: bytes, algorithm: Algorithm = "zlib") -> tuple[int, bytes]:
    """The bits that tell readers what was done, and the smaller body.

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
    """The body as its sender had it; unchanged where it was not compressed.

    Raises:
        RemoteProtocolError: It does not decompress, or to more than ``limit`` bytes.
        ConfigError: It needs a package that is not installed.
    """
    if not sys_flag & _COMPRESSED:
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
            "this body needs a package to be read: pip install 'txmq[broker]'"
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
