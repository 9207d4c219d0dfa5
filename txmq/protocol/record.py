"""The stored message, with one layout for disk and wire, and its two ids: the broker's, made from
its position, and the producer's unique id.

If both hosts are IPv4, as they nearly always are, the fields before the body have fixed positions.
They are named here because code patches offsets and types in copied bytes without decoding the
rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias

import msgspec

from txmq.errors import RemoteProtocolError
from txmq.limits import PROPERTIES_BYTES_MAX, TOPIC_CHARS_MAX
from txmq.message import LogPosition
from txmq.protocol import compression, properties
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq.text import quantity

__all__ = [
    "COMMITTED",
    "MAGIC",
    "MAGIC_V2",
    "PREPARED",
    "TYPE_BITS",
    "Postmark",
    "Record",
    "committed",
    "head_of",
    "head_size",
    "host_bytes",
    "host_text",
    "offset_id",
    "pack",
    "position_in",
    "property_text_of",
    "queue_offset_of",
    "real_place",
    "split",
    "split_offset_id",
    "stored_ms_of",
    "tail_of",
    "topic_field",
    "unique_id",
    "unpack",
    "unpack_all",
]

_PORT = Struct(">i")
_PORT_AND_POSITION = Struct(">iq")
_PORT_MAX = 65535
_UNIQUE = Struct(">4sHiiH")


def host_bytes(host: str, port: int) -> bytes:
    """An address in the form of records: 4 or 16 bytes, then the port in 4.

    Raises:
        ValueError: The host is a name; records hold only IP addresses.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _PORT.pack(port)


def host_text(packed: bytes) -> str:
    """``address:port`` from the bytes in a record."""
    address = ipaddress.ip_address(packed[:-4])
    port = _PORT.unpack(packed[-4:])[0]
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def offset_id(store_host: bytes, position: int) -> str:
    """The id by which a broker finds a record: the broker's address and the record's position."""
    return (store_host + position.to_bytes(8, "big", signed=True)).hex().upper()


def split_offset_id(text: str) -> tuple[str, LogPosition]:
    """The broker's address, ``host:port``, and the log position.

    Raises:
        RemoteProtocolError: The text is not an offset id.
    """
    position = position_in(text)
    return host_text(bytes.fromhex(text)[:-8]), position


def position_in(text: str) -> LogPosition:
    """The log position alone.

    Raises:
        RemoteProtocolError: The text is not an offset id.
    """
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise RemoteProtocolError(f"{text!r} is not a message id") from error
    if len(data) not in (16, 28):
        raise RemoteProtocolError(f"{text!r} is not a message id")
    port, position = _PORT_AND_POSITION.unpack(data[-12:])
    if not 0 <= port <= _PORT_MAX:
        raise RemoteProtocolError(f"{text} is a producer's id and has no position; add --topic")
    return LogPosition(position)


def unique_id(address: bytes, process: int, seed: int, month_ms: int, count: int) -> str:
    """The id that a producer gives a message; tools read the time from it.

    Args:
        address: Four bytes that identify this machine.
        process: The process id.
        seed: A number that is constant in one process.
        month_ms: Milliseconds since this month began.
        count: The number of ids before this one.
    """
    return (
        _UNIQUE.pack(
            address, process & 0xFFFF, seed & 0x7FFFFFFF, month_ms & 0x7FFFFFFF, count & 0xFFFF
        )
        .hex()
        .upper()
    )


MAGIC: Final = 0xDAA320A7
"""A record with the topic's length in one byte."""

MAGIC_V2: Final = 0xDAA320AB
"""A record with the topic's length in two bytes; RocketMQ 5 writes it for long topics."""

_RECORD_MAGICS: Final = (MAGIC, MAGIC_V2)

_HEAD: Final = Struct(">IIIIiqqiq8sq8siqI")
_SHARED: Final = Struct(">iq8sq8siq")
HEAD_WITH_SHARED: Final = Struct(f">IIIIiqq{_SHARED.size}sI")
"""The bytes before the body, as :func:`head_of` packs them, with the postmark in one field."""
_BEFORE_HOSTS: Final = Struct(">IIIIiqqiq")
_AFTER_HOSTS: Final = Struct(">iqI")
HEAD_BYTES: Final = _HEAD.size
_LONG: Final = Struct(">q")
_DIGITS_MAX: Final = 19
_SHORT: Final = Struct(">H")
# Plain numbers: the complement of an enum flag would drop the bits that the enum does not name.
_V6: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
PREPARED: Final = int(SysFlag.PREPARED)
COMMITTED: Final = int(SysFlag.COMMITTED)
TYPE_BITS: Final = int(SysFlag.ROLLED_BACK)
"""The bits of a system flag that mark a message as prepared, committed or rolled back."""
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)

_WORD: Final = Struct(">I")
_PLACES: Final = Struct(">qqI")
_PAIR_END: Final = 2
_MAGIC_END: Final = MAGIC & 0xFF

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
POSITION_AT: Final = 28
SYS_FLAG_AT: Final = 36
SMALLEST: Final = _HEAD.size + 3


class Record(msgspec.Struct, gc=False):
    """One stored message."""

    queue_id: int
    flag: int
    queue_offset: int
    position: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    stored_ms: int
    store_host: bytes
    attempts: int
    prepared_position: int
    body: bytes
    topic: str
    properties: str

    @property
    def offset_id(self) -> str:
        """The id by which its broker finds it."""
        return offset_id(self.store_host, self.position)

    @property
    def real_place(self) -> tuple[str, int]:
        """The real topic and queue of a record that is stored under another topic."""
        queue = properties.find(self.properties, properties.REAL_QUEUE) or ""
        number = int(queue) if queue.isascii() and queue.isdecimal() else 0
        return properties.find(self.properties, properties.REAL_TOPIC) or "", number

    @property
    def half_position(self) -> int:
        """The position of the half message of a committed message that was delayed; 0 without one.
        Clients can write it, too.
        """
        text = properties.find(self.properties, properties.HALF) or ""
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else 0

    def property_map(self) -> dict[str, str]:
        """The properties by name."""
        return properties.parse(self.properties)

    def plain_body(self) -> bytes:
        """The body that the application sent, decompressed if necessary.

        Raises:
            RemoteProtocolError: The body is broken, or decompresses to more than the limit.
        """
        return compression.decompress(self.sys_flag, self.body)


Postmark: TypeAlias = tuple[int, int, bytes, int, bytes, int, int]
"""System flag, born time and host, store time and host, attempts, prepared position.

All messages of one request share it. The IPv6 bits match the hosts' lengths.
"""


def head_of(
    queue_id: int,
    flag: int,
    queue_offset: int,
    position: int,
    postmark: Postmark,
    body: bytes,
    tail_size: int,
) -> tuple[bytes, int]:
    """The bytes before the body, and the size of the whole record.

    A record is head, body and tail (:func:`tail_of`). Writers join many records at once, so no body
    is copied twice.
    """
    sys_flag, born_ms, born_host, stored_ms, store_host, attempts, prepared = postmark
    crc = crc32(body) & 0x7FFFFFFF
    body_size = len(body)
    if not sys_flag & _V6:
        size = HEAD_BYTES + body_size + tail_size
        head = _HEAD.pack(
            size, MAGIC, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms,
            born_host, stored_ms, store_host, attempts, prepared, body_size,
        )  # fmt: skip
        return head, size
    size = HEAD_BYTES - 16 + len(born_host) + len(store_host) + body_size + tail_size
    head = (
        _BEFORE_HOSTS.pack(
            size, MAGIC, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms
        )
        + born_host
        + _LONG.pack(stored_ms)
        + store_host
        + _AFTER_HOSTS.pack(attempts, prepared, body_size)
    )
    return head, size


def head_size(postmark: Postmark) -> int:
    """The size of the bytes before the body, which depends on the hosts' address families."""
    if not postmark[0] & _V6:
        return HEAD_BYTES
    return HEAD_BYTES - 16 + len(postmark[2]) + len(postmark[4])


def shared_field(postmark: Postmark) -> bytes | None:
    """The postmark as a field of :data:`HEAD_WITH_SHARED`, for many messages that share it.

    ``None`` if an address is IPv6: the field then has another size.
    """
    return None if postmark[0] & _V6 else _SHARED.pack(*postmark)


def topic_field(topic: str) -> bytes:
    """A topic's name with its length in front; Java reads the length as a signed byte."""
    name = topic.encode()
    assert len(name) <= TOPIC_CHARS_MAX, "a topic's name was not checked"
    return bytes([len(name)]) + name


def tail_of(topic: bytes, property_bytes: bytes) -> bytes:
    """The end of a record: the topic from :func:`topic_field`, and the properties.

    Java reads the properties' length as a signed number.
    """
    assert len(property_bytes) <= PROPERTIES_BYTES_MAX, "properties were not checked"
    return topic + _SHORT.pack(len(property_bytes)) + property_bytes


def pack(record: Record) -> bytes:
    """Encode a whole record."""
    sys_flag = record.sys_flag & ~_V6
    if len(record.born_host) > 8:
        sys_flag |= _BORN_V6
    if len(record.store_host) > 8:
        sys_flag |= _STORE_V6
    tail = tail_of(topic_field(record.topic), record.properties.encode())
    postmark = (
        sys_flag, record.born_ms, record.born_host, record.stored_ms, record.store_host,
        record.attempts, record.prepared_position,
    )  # fmt: skip
    head, _ = head_of(
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.position,
        postmark,
        record.body,
        len(tail),
    )
    return head + record.body + tail


def stored_ms_of(data: bytes) -> int:
    """The store time of a record, without decoding the rest."""
    at = 68 if data[SYS_FLAG_AT + 3] & _BORN_V6 else 56
    stored: int = _LONG.unpack_from(data, at)[0]
    return stored


def queue_offset_of(data: bytes) -> int:
    """The queue offset of a record, without decoding the rest."""
    offset: int = _LONG.unpack_from(data, QUEUE_OFFSET_AT)[0]
    return offset


def property_text_of(data: bytes) -> str:
    """A record's properties, without decoding the rest; they end the record."""
    at = 84
    bits = data[SYS_FLAG_AT + 3] & _V6
    if bits:
        at += 24 if bits == _V6 else 12
    at += 4 + _WORD.unpack_from(data, at)[0]
    # The broker refuses invalid UTF-8 on arrival; if some is stored anyway, no filter matches it.
    if data[MAGIC_AT + 3] == _MAGIC_END:
        return data[at + 3 + data[at] :].decode("utf-8", "replace")
    return data[at + 4 + _SHORT.unpack_from(data, at)[0] :].decode("utf-8", "replace")


def real_place(topic: str, queue_id: int) -> bytes:
    """The properties with a half message's real topic and queue, as RocketMQ adds them."""
    return b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic.encode(), queue_id)


def committed(
    half: bytes, queue_offset: int, position: int, stored_ms: int, half_position: int
) -> bytes:
    """The committed message of a half message: its bytes copied, with a few fields patched.

    Like RocketMQ, it keeps all properties of the half message, including its real topic and queue.
    """
    data = bytearray(half)
    (sys_flag,) = _WORD.unpack_from(data, SYS_FLAG_AT)
    shift = 12 if sys_flag & _BORN_V6 else 0
    later = shift + (12 if sys_flag & _STORE_V6 else 0)
    (body_size,) = _WORD.unpack_from(data, 84 + later)
    topic_at = 88 + later + body_size
    properties_at = topic_at + 1 + data[topic_at]
    topic = half[topic_at + 1 : properties_at].decode()
    (length,) = _SHORT.unpack_from(data, properties_at)
    more = real_place(topic, _WORD.unpack_from(data, QUEUE_ID_AT)[0])
    if length and data[-1] != _PAIR_END:
        more = b"\x02" + more
    _SHORT.pack_into(data, properties_at, length + len(more))
    _WORD.pack_into(data, SIZE_AT, len(data) + len(more))
    _PLACES.pack_into(
        data, QUEUE_OFFSET_AT, queue_offset, position, sys_flag & ~TYPE_BITS | COMMITTED
    )
    _LONG.pack_into(data, 56 + shift, stored_ms)
    _LONG.pack_into(data, 76 + later, half_position)
    data += more
    return bytes(data)


def split(data: bytes) -> Iterator[bytes]:
    """The bytes of every record of a pull's body; only their sizes are read.

    Raises:
        RemoteProtocolError: A size is wrong.
    """
    start = 0
    while start < len(data):
        end = start + int.from_bytes(data[start : start + 4], "big")
        if not start + SMALLEST <= end <= len(data):
            raise RemoteProtocolError(f"a record at byte {start} of {len(data)} ends at {end}")
        yield data[start:end]
        start = end


def unpack_all(data: bytes) -> Iterator[Record]:
    """Every record of a pull's body.

    Raises:
        RemoteProtocolError: A record is broken.
    """
    at = 0
    while at < len(data):
        record, at = unpack(data, at)
        yield record


def unpack(data: bytes, at: int = 0, *, errors: str = "strict") -> tuple[Record, int]:
    """The record at an index of the data, and the index after it.

    Args:
        data: The bytes that hold the record.
        at: The index where it begins.
        errors: What to do with properties that are not UTF-8, as for ``bytes.decode``.

    Raises:
        RemoteProtocolError: Its lengths, its magic number or its checksum are wrong.
    """
    start = at
    try:
        (
            size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms, born_host,
            stored_ms, store_host, attempts, prepared, body_size,
        ) = _HEAD.unpack_from(data, at)  # fmt: skip
        if magic not in _RECORD_MAGICS or size < SMALLEST or start + size > len(data):
            raise RemoteProtocolError(
                f"not a record: size {quantity(size, 'byte')}, magic {magic:08X}"
            )
        at += HEAD_BYTES
        if sys_flag & _V6:
            at = start + _BEFORE_HOSTS.size
            after = at + (20 if sys_flag & _BORN_V6 else 8)
            born_host, at = data[at:after], after + _LONG.size
            (stored_ms,) = _LONG.unpack_from(data, after)
            after = at + (20 if sys_flag & _STORE_V6 else 8)
            store_host, at = data[at:after], after + _AFTER_HOSTS.size
            attempts, prepared, body_size = _AFTER_HOSTS.unpack_from(data, after)
        # No bounds are checked here: a part that is too long fails the check of the size below.
        after = at + body_size
        body = data[at:after]
        if magic == MAGIC:
            at = after + 1
            after = at + data[after]
        else:
            at = after + 2
            after = at + _SHORT.unpack_from(data, after)[0]
        name = data[at:after].decode()
        at = after + 2
        after = at + _SHORT.unpack_from(data, after)[0]
        text = data[at:after].decode(errors=errors)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a record is broken: {error}") from error
    if after != start + size:
        raise RemoteProtocolError(f"a record of {quantity(size, 'byte')} holds {after - start}")
    if crc and crc32(body) & 0x7FFFFFFF != crc:
        raise RemoteProtocolError("a record's body differs from its checksum")
    return Record(
        queue_id, flag, queue_offset, position, sys_flag, born_ms, born_host, stored_ms,
        store_host, attempts, prepared, body, name, text,
    ), after  # fmt: skip
