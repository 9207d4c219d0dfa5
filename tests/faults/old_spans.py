"""Logs as they were written before spans had epochs."""

from __future__ import annotations

from struct import Struct

from txmq.protocol.checksum import crc32
from txmq.protocol.span import HEAD_BYTES, found_in, read_head

_HEAD = Struct(">IIQqqII")
_OLD_MAGIC = int.from_bytes(b"txmq", "big")


def in_old_form(data, start=0):
    """The bytes of a file of the log, with a count of records where heads have an epoch now."""
    old, at = bytearray(data), 0
    while at < len(data):
        head = read_head(data, at, start + at)
        payload = data[at + HEAD_BYTES : at + head.size]
        count = len(list(found_in(payload, start + at + HEAD_BYTES)))
        fields = _HEAD.pack(
            head.size, _OLD_MAGIC, head.log, head.position, head.durable, head.checksum, count
        )
        old[at : at + HEAD_BYTES] = fields + crc32(fields).to_bytes(4, "big")
        at += head.size
    return bytes(old)
