"""Facts of txmq.protocol.compression: what clients wrote can be opened, and bombs cannot."""

import sys
import tracemalloc
import zlib
from contextlib import contextmanager
from struct import pack as binary

import pytest

from txmq.errors import ConfigError, RemoteProtocolError
from txmq.protocol.compression import compress, decompress

BODY = b"a body that repeats itself, " * 100
LZ4_FRAME = bytes.fromhex(
    "04224d18 68 40 1e00000000000000 89 0d000000 3f616263030003506263616263 00000000"
)
ZSTD_RLE = bytes.fromhex("28b52ffd 20 05 2b0000 78")
"""Single segment, 5 bytes of content, one last block that repeats the byte x five times."""
ALGORITHMS = [("zlib", 0x1), ("lz4", 0x101), ("zstd", 0x201)]


@pytest.mark.parametrize(("algorithm", "flags"), ALGORITHMS)
def test_a_compressed_body_is_decompressed_by_its_flags(algorithm, flags):
    bits, smaller = compress(BODY, algorithm)

    assert bits == flags
    assert len(smaller) < len(BODY)
    assert decompress(bits, smaller) == BODY


def test_zlib_is_the_default_algorithm():
    """Go inflates every compressed body as zlib, whatever the type bits say."""
    bits, smaller = compress(BODY)

    assert bits == 0x1
    assert zlib.decompress(smaller) == BODY


@pytest.mark.parametrize("flags", [0x1, 0x301, 0x1 | 0x4 | 0x10])
def test_zlib_is_recognized_by_its_old_and_its_new_flags(flags):
    assert decompress(flags, zlib.compress(BODY)) == BODY


def test_handwritten_zstd_and_lz4_frames_are_decompressed():
    assert decompress(0x201, ZSTD_RLE) == b"xxxxx"
    assert decompress(0x101, LZ4_FRAME) == b"abc" * 10


@pytest.mark.parametrize("flags", [0, 0x300, 0x100, 0x4])
def test_a_body_without_the_compression_flag_is_unchanged(flags):
    assert decompress(flags, b"plain") == b"plain"


@pytest.mark.parametrize("flags", [0x1, 0x101, 0x201, 0x301, 0x701])
@pytest.mark.parametrize("body", [b"", b"\x00", b"plain text", b"\xff" * 100])
def test_a_body_that_does_not_decompress_is_refused(flags, body):
    with pytest.raises(RemoteProtocolError, match="does not decompress"):
        decompress(flags, body)


@pytest.mark.parametrize(("algorithm", "flags"), ALGORITHMS)
def test_a_body_cut_short_is_refused(algorithm, flags):
    _, smaller = compress(BODY, algorithm)

    for cut in range(len(smaller)):
        with pytest.raises(RemoteProtocolError):
            decompress(flags, smaller[:cut])


@pytest.mark.parametrize("body", [b"", BODY], ids=["empty", "long"])
@pytest.mark.parametrize("more", [b"", b"more"], ids=["alone", "with bytes behind its end"])
@pytest.mark.parametrize(("algorithm", "flags"), ALGORITHMS)
def test_a_body_is_decompressed_to_its_end_and_may_be_empty(algorithm, flags, more, body):
    _, smaller = compress(body, algorithm)

    assert decompress(flags, smaller + more) == body


@pytest.mark.parametrize(("algorithm", "flags"), ALGORITHMS)
def test_the_limit_itself_is_allowed_and_one_byte_more_is_not(algorithm, flags):
    _, smaller = compress(BODY, algorithm)

    assert decompress(flags, smaller, limit=len(BODY)) == BODY
    with pytest.raises(RemoteProtocolError):
        decompress(flags, smaller, limit=len(BODY) - 1)


@contextmanager
def little_memory():
    """Fail if much more memory is taken than the limit of 1 MiB that the tests set."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 1024 * 1024


@pytest.mark.parametrize(("algorithm", "flags"), ALGORITHMS)
def test_a_decompression_bomb_uses_no_more_memory_than_the_limit(algorithm, flags):
    _, bomb = compress(bytes(32 * 1024 * 1024), algorithm)

    with little_memory(), pytest.raises(RemoteProtocolError):
        decompress(flags, bomb, limit=1024 * 1024)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(bytes([0xE0]) + binary("<Q", 2**40), id="content-of-a-terabyte"),
        pytest.param(bytes([0xC0, (27 - 10) << 3]) + binary("<Q", 1), id="window-of-128-MiB"),
        pytest.param(bytes([0x00, (27 - 10) << 3]), id="window-of-128-MiB-and-no-size"),
    ],
)
def test_a_zstd_frame_with_a_huge_claim_allocates_no_memory(head):
    body = bytes.fromhex("28b52ffd") + head + bytes.fromhex("010000")

    with little_memory(), pytest.raises(RemoteProtocolError):
        decompress(0x201, body, limit=1024 * 1024)


@pytest.mark.parametrize(("algorithm", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_compression_package_raises_an_error_that_names_it(
    algorithm, module, monkeypatch
):
    bits, smaller = compress(BODY, algorithm)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=r"pip install 'txmq\[broker\]'"):
        compress(BODY, algorithm)
    with pytest.raises(ConfigError, match=r"pip install 'txmq\[broker\]'"):
        decompress(bits, smaller)
