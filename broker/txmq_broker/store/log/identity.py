"""The identity of a log: a random number that every file of the directory repeats.

It has its own file, and each span of the log, each chunk of an index and the high-water mark repeat
it. So the broker detects files that were swapped between two directories, and the number survives
the loss of its file.
"""

from __future__ import annotations

import logging
from typing import Final

from txmq.errors import CorruptRecord, ForeignFile
from txmq.protocol.checksum import crc32
from txmq.protocol.span import FOLDER, HEAD_BYTES, read_head, start_in
from txmq.runtime.disk import Disk
from txmq.runtime.entropy import Entropy
from txmq_broker.store.log.commit_log import log_of as log_of_mark
from txmq_broker.store.log.segments import path_of

__all__ = ["PATH", "known_log", "log_identity", "log_to_read", "write_identity"]

log = logging.getLogger(__name__)

PATH: Final = "identity"
_BYTES: Final = 8


def log_identity(
    disk: Disk, entropy: Entropy, *, has_indexes: bool = False, copied: int | None = None
) -> int:
    """The identity of the directory's log.

    An empty directory gets a new identity, or ``copied`` if it becomes a copy of that log. If only
    the identity file is missing or damaged, it is restored from the other files.

    Raises:
        ForeignFile: The identity file belongs to another directory.
        CorruptRecord: The identity is missing, and nothing else names the log.
        OSError: A disk operation failed.
    """
    known, is_kept = known_log(disk)
    if known is not None and is_kept:
        return known
    if known is not None:
        found = known
        log.warning("%s was missing or damaged; it is written again: log %016x", PATH, found)
    elif not (has_indexes or disk.names(FOLDER) or disk.names("config")):
        found = copied or int.from_bytes(entropy.token(_BYTES), "big") or 1
    else:
        raise CorruptRecord(
            0,
            f"the directory has files, and none says whose log it is ({PATH} is missing or "
            "damaged, and so is the log); restore the directory from a backup",
        )
    write_identity(disk, found)
    return found


def write_identity(disk: Disk, log_id: int, folder: str = "") -> None:
    """Write the log's identity into a directory, or into its folder for a part that was cut off.

    The spans also name the log, but the first span of such a part is often the damaged one.

    Raises:
        OSError: A disk operation failed.
    """
    disk.replace(f"{folder}/{PATH}" if folder else PATH, _content(log_id))


def _content(log_id: int) -> bytes:
    text = b"%016x" % log_id
    return b"%b %08x\n" % (text, crc32(text))


def known_log(disk: Disk) -> tuple[int | None, bool]:
    """The log that a directory's files name, if any, and whether the identity file is intact.

    Raises:
        ForeignFile: The identity file belongs to another directory.
        OSError: The disk cannot be read.
    """
    kept, repeated = _named(disk)
    if kept is None:
        return (repeated[0] if repeated else None), False
    if _is_foreign(kept, repeated):
        raise ForeignFile(PATH, kept, repeated[0])
    return kept, True


def log_to_read(disk: Disk) -> int:
    """The log of a directory's files, for readers; 0 if no file names one."""
    kept, repeated = _named(disk)
    if kept is not None and not _is_foreign(kept, repeated):
        return kept
    return repeated[0] if repeated else 0


def _named(disk: Disk) -> tuple[int | None, list[int]]:
    """The log that the identity file names, and the logs that the other files name."""
    repeated = [log_of_mark(disk), _log_of_first_file(disk)]
    return _read(disk), [named for named in repeated if named is not None]


def _is_foreign(kept: int, repeated: list[int]) -> bool:
    return len(repeated) > 1 and set(repeated) == {repeated[0]} != {kept}


def _read(disk: Disk) -> int | None:
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    try:
        log_id = int(data.partition(b" ")[0], 16)
    except ValueError:
        return None
    # Compare every byte: `int` also accepts capital letters, signs and blanks.
    return log_id if data == _content(log_id) else None


def _log_of_first_file(disk: Disk) -> int | None:
    starts = [start for name in disk.names(FOLDER) if (start := start_in(name)) is not None]
    for start in sorted(starts):
        file = disk.open(path_of(start))
        try:
            head = read_head(file.read(0, HEAD_BYTES), 0, start)
        finally:
            file.close()
        if head is not None:
            return head.log
    return None
