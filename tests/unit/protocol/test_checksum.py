"""Facts of txmq.protocol.checksum: whichever library computes it, the number is the same."""

import runpy
import sys
import types
import zlib

import pytest

from txmq.protocol import checksum


@pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256)) * 100])
def test_the_checksum_is_crc_32(data):
    assert checksum.crc32(data) == zlib.crc32(data)


def test_a_checksum_can_be_continued():
    assert checksum.crc32(b"lo", checksum.crc32(b"hel")) == zlib.crc32(b"hello")


def test_without_the_fast_library_zlib_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)

    assert runpy.run_path(checksum.__file__)["crc32"] is zlib.crc32


def test_the_fast_library_is_used_if_it_is_installed(monkeypatch):
    fast = types.ModuleType("zlib_ng.zlib_ng")
    fast.crc32 = object()
    monkeypatch.setitem(sys.modules, "zlib_ng", types.ModuleType("zlib_ng"))
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", fast)

    assert runpy.run_path(checksum.__file__)["crc32"] is fast.crc32
