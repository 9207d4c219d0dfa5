"""Reads a broker's directory, for inspections, repairs and backups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from txmq.errors import CorruptRecord
from txmq.protocol.span import Found
from txmq.runtime.disk import Disk
from txmq_broker.names.server import FILES as NAMES_FILES
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.checked_file import CheckedFile
from txmq_broker.store.index_file import IndexFile
from txmq_broker.store.log.commit_log import HighWater
from txmq_broker.store.log.identity import log_to_read
from txmq_broker.store.log.reader import LogReader, WholeSpan
from txmq_broker.store.log.segments import Segments

__all__ = ["BrokerDirectory", "records_behind"]


class BrokerDirectory:
    """The files of one directory. Reading changes none of them.

    Args:
        disk: The directory.
        log_id: The log that its files belong to; by default the log that they name.

    Attributes:
        log_id: The log; 0 if no file names one.
        keeper: Reads and writes the small tables.
        tables: The small tables that every broker has: topics, groups, offsets and floors.
        optional_tables: The topic changes, the state of a copy, and the tables of a name server.
    """

    def __init__(self, disk: Disk, log_id: int | None = None) -> None:
        self.disk = disk
        self.log_id = log_to_read(disk) if log_id is None else log_id
        self.keeper = Keeper(disk)
        self.keeper.owner = f"{self.log_id:016x}" if self.log_id else ""
        self.tables = self.keeper.files
        of_names = (CheckedFile(disk, path, is_doubled=True) for path in NAMES_FILES)
        self.optional_tables = (*self.keeper.other_files, *of_names)

    @contextmanager
    def log(self) -> Iterator[LogReader]:
        """The log, opened to be read span by span, past any damage.

        Raises:
            OSError: A file cannot be opened.
        """
        log = LogReader(self.disk, self.log_id)
        try:
            log.open()
            yield log
        finally:
            log.close()

    def open_segments(self) -> Segments:
        """The files of the log; the caller closes them.

        Raises:
            OSError: A file cannot be opened; a running broker may have just deleted it.
        """
        segments = Segments(self.disk, 0)
        segments.log_id = self.log_id
        try:
            segments.open(tidy=False)
        except BaseException:
            segments.close()
            raise
        return segments

    @contextmanager
    def high_water(self) -> Iterator[HighWater]:
        """The file with the high-water mark; call ``load`` to read it."""
        high_water = HighWater(self.disk, self.log_id)
        try:
            yield high_water
        finally:
            high_water.close()

    @contextmanager
    def index(self, segment: int) -> Iterator[IndexFile]:
        """The index of the log file that begins at a position; call ``load`` to read it.

        Raises:
            OSError: The index cannot be opened.
        """
        index = IndexFile(self.disk, segment, self.log_id)
        try:
            yield index
        finally:
            index.file.close()


def records_behind(
    log: LogReader, position: int, *, with_damaged: bool = False
) -> Iterator[tuple[Found, int, bytes]]:
    """The readable records of the spans that end after a position.

    Args:
        log: An open log.
        position: The position.
        with_damaged: True to include the likely records of damaged spans.
    """
    for extent in log.extents():
        if extent.end <= position:
            continue
        for piece in log.pieces(extent, max(position, extent.start)):
            if piece.end <= position:
                continue
            if isinstance(piece, WholeSpan):
                with suppress(CorruptRecord):
                    yield from piece.found()
            elif with_damaged:
                yield from log.readable(piece)
