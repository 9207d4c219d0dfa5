"""Reads a whole log without changing it, and continues after damage.

Recovery refuses a damaged log and a reconciliation refuses to guess. A person who inspects a
damaged log wants both: everything intact, and the place and size of each damaged part. Only one
span is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.limits import FRAME_BYTES_MAX, SPAN_BYTES_MAX
from txmq.protocol import record as records
from txmq.protocol.record import Record
from txmq.protocol.span import (
    HEAD_BYTES,
    Found,
    found_in,
    moment_of,
    read_head,
)
from txmq.runtime.disk import Disk
from txmq_broker.store.log.segments import Extent, Segments
from txmq_broker.store.log.spans import durable_behind, span_at, whole_behind

__all__ = ["Gap", "LogReader", "Piece", "WholeSpan"]

_FIRST_BYTES: Final = 256
_READ_AT_ONCE: Final = 2048


class WholeSpan(NamedTuple):
    """A span with a valid checksum."""

    position: int
    end: int
    epoch: int
    """The epoch of the leadership that wrote it."""
    payload: bytes

    def found(self) -> Iterator[tuple[Found, int, bytes]]:
        """The records; see :func:`txmq.protocol.span.found_in`.

        Raises:
            CorruptRecord: A record cannot be read, or names another position.
        """
        return found_in(self.payload, self.position + HEAD_BYTES)


class Gap(NamedTuple):
    """A part of a file of the log in which no intact span begins."""

    position: int
    end: int
    extent: Extent
    missing: int
    """The number of bytes missing at the file's end."""
    proof: int | None
    """The position of a later span that declares these bytes durable."""
    is_torn: bool
    """True if a crash may have torn these bytes: the broker ends the log here."""
    foreign: int | None
    """The other log that these bytes belong to, if they name one."""

    @property
    def size(self) -> int:
        """Its size in bytes of the log."""
        return self.end - self.position


Piece: TypeAlias = WholeSpan | Gap


class LogReader:
    """The log of one directory, for reading only.

    Args:
        disk: The broker's directory.
        log_id: The log that the directory holds; spans of any other are gaps.

    Attributes:
        proven: Ignore what heads say about bytes from this position on, as in
            :func:`~txmq_broker.store.log.spans.scan`.
    """

    def __init__(self, disk: Disk, log_id: int) -> None:
        self.proven: int | None = None
        self._segments = Segments(disk, 0)
        self._segments.log_id = log_id

    def open(self) -> None:
        """List the files.

        Raises:
            OSError: One of them cannot be opened.
        """
        self._segments.open(tidy=False)

    def close(self) -> None:
        """Close the files."""
        self._segments.close()

    @property
    def start(self) -> int:
        """The position of the log's first byte."""
        return self._segments.start

    @property
    def end(self) -> int:
        """The position after the log's last byte."""
        return self._segments.end

    def extents(self) -> list[Extent]:
        """The files, oldest first."""
        return self._segments.extents()

    def extent_at(self, position: int) -> Extent:
        """The file that holds a position."""
        return self._segments.extent_at(position)

    def reach(self, extent: Extent) -> int:
        """Return where a file's bytes end; that is before the file's end if bytes are missing."""
        return self._segments.reach(extent)

    def read(self, position: int, size: int) -> bytes:
        """Bytes of one file; fewer at its end.

        Raises:
            CorruptRecord: The disk cannot read them.
        """
        return self._segments.read(position, size)

    def pieces(self, extent: Extent, start: int | None = None) -> Iterator[Piece]:
        """The intact spans of a file and the gaps between them, in order.

        The first torn gap begins the log's torn tail: the caller stops there, or reads the tail's
        possible records.

        Args:
            extent: The file.
            start: Skip the spans that end before this position.
        """
        at = extent.start if start is None else self._span_around(extent, start)
        while at < extent.end:
            piece = self._piece(extent, at)
            yield piece
            at = piece.end

    def _piece(self, extent: Extent, at: int) -> Piece:
        # Unreadable bytes and bytes of another broker count as damage.
        with suppress(CorruptRecord):
            if (span := span_at(self._segments, at, extent.end)) is not None:
                head, payload = span
                return WholeSpan(at, at + head.size, head.epoch, payload)
        end, proof, is_torn, foreign = extent.end, None, False, None
        with suppress(CorruptRecord):
            foreign = self._foreign_at(at)
            if foreign is None or at != extent.start:
                end = whole_behind(self._segments, at, extent)
            if self.proven is None or at < self.proven:
                proof = durable_behind(self._segments, at)
            is_torn = proof is None and foreign is None
        missing = max(0, end - max(at, self.reach(extent)))
        return Gap(at, end, extent, missing, proof, is_torn, foreign)

    def _foreign_at(self, at: int) -> int | None:
        head = read_head(self.read(at, HEAD_BYTES), 0, at)
        return None if head is None or head.log == self._segments.log_id else head.log

    def _span_around(self, extent: Extent, position: int) -> int:
        """Return the start of the span that holds a position, found from head to head."""
        at = extent.start
        with suppress(CorruptRecord):
            while at < min(position, extent.end):
                head = read_head(self.read(at, HEAD_BYTES), 0, at)
                if head is None or at + head.size > position:
                    break
                at += head.size
        return at

    def readable(self, gap: Gap) -> Iterator[tuple[Found, int, bytes]]:
        """The readable records at the beginning of a gap. Its checksum is wrong, so they are only
        its likely contents.
        """
        try:
            data = self.read(gap.position + HEAD_BYTES, min(gap.size, 2 * SPAN_BYTES_MAX))
            yield from found_in(data[: max(0, gap.size - HEAD_BYTES)], gap.position + HEAD_BYTES)
        except CorruptRecord:
            return

    def record_at(self, position: int) -> tuple[Record, bytes] | None:
        """The record that lies at a position and names it, or ``None``."""
        if not self.start <= position < self.end:
            return None
        try:
            data = self.read(position, _READ_AT_ONCE)
            size = int.from_bytes(data[:4], "big")
            if size > len(data):
                data = self.read(position, min(size, FRAME_BYTES_MAX))
            record, _ = records.unpack(data[:size])
        except (CorruptRecord, RemoteProtocolError):
            return None
        return (record, data[:size]) if record.position == position else None

    def first_ms(self, extent: Extent) -> int | None:
        """Return the time of a file's first record, or ``None`` if it is unreadable."""
        with suppress(CorruptRecord):
            data = self.read(extent.start, _FIRST_BYTES)
            if read_head(data, 0, extent.start) is not None:
                return moment_of(data[HEAD_BYTES:])
        return None
