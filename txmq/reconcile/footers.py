"""Footers of Parquet files, made to depend on nothing but what is in the files; pure.

Java's writer lists the encodings of a column in the order in which a hash set has them, and that is
another in each process. Here they are put in order, in their places: no byte moves. A footer is a
Thrift structure in the compact protocol, and all of it is walked to find them.
"""

from __future__ import annotations

from typing import Final

from txmq.errors import ReconcileRefused

__all__ = ["TAIL", "footer_size", "with_encodings_in_order"]

TAIL: Final = 8
"""The last bytes of a file: how long its footer is, and the mark."""

_MARK: Final = b"PAR1"
_ENCODINGS: Final = (4, 1, 3, 2)
"""The fields on the way: row groups, their columns, what is known of one, its encodings."""

_STOP, _FLAGS, _BYTE, _NUMBERS, _DOUBLE, _BINARY = 0, (1, 2), 3, (4, 5, 6), 7, 8
_LISTS, _MAP, _STRUCT = (9, 10), 11, 12


def footer_size(tail: bytes) -> int:
    """How long the footer is that comes before the last bytes of a file.

    Raises:
        ReconcileRefused: That is no Parquet file, or it is encrypted.
    """
    if len(tail) != TAIL or tail[4:] != _MARK:
        raise ReconcileRefused("a table was not written as Parquet: its last bytes are no mark")
    return int.from_bytes(tail[:4], "little")


def with_encodings_in_order(footer: bytes) -> bytes:
    """A footer as long as this one, in which every list of encodings is in order."""
    walk = _Walk(footer)
    walk.struct(())
    return bytes(walk.data)


class _Walk:
    """A footer, and how far it has been walked."""

    def __init__(self, footer: bytes) -> None:
        self.data = bytearray(footer)
        self._at = 0

    def struct(self, path: tuple[int, ...]) -> None:
        field = 0
        while (head := self._byte()) != _STOP:
            step, kind = head >> 4, head & 15
            field = field + step if step else self._zigzag()
            if kind not in _FLAGS:  # A flag of a structure is its own header.
                self._value(kind, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        if kind in _NUMBERS:
            self._number()
        elif kind == _BINARY:
            size = self._number()
            self._at += size
        elif kind == _STRUCT:
            self.struct(path)
        elif kind in _LISTS:
            self._list(path)
        elif kind == _MAP:
            self._map(path)
        elif kind in {_BYTE, *_FLAGS}:
            self._at += 1
        else:
            assert kind == _DOUBLE
            self._at += 8

    def _list(self, path: tuple[int, ...]) -> None:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == 15:
            size = self._number()
        start = self._at
        for _ in range(size):
            self._value(kind, path)
        # Each is a number below 64, and so a byte.
        if path == _ENCODINGS:
            assert self._at - start == size
            self.data[start : self._at] = sorted(self.data[start : self._at])

    def _map(self, path: tuple[int, ...]) -> None:
        size = self._number()
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._value(kinds >> 4, path)
            self._value(kinds & 15, path)

    def _byte(self) -> int:
        self._at += 1
        return self.data[self._at - 1]

    def _number(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 128:
            found |= (byte & 127) << shift
            shift += 7
        return found | byte << shift

    def _zigzag(self) -> int:
        found = self._number()
        return found >> 1 ^ -(found & 1)
