"""The two ids of a message: the broker's, from its position, and the producer's unique id."""

from __future__ import annotations

import ipaddress
from struct import Struct

from txmq.errors import RemoteProtocolError
from txmq.message import LogPosition

__all__ = ["host_bytes", "host_text", "offset_id", "position_in", "split_offset_id", "unique_id"]

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
