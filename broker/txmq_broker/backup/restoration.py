"""The restoration of a backup into an empty directory.

An interrupted one leaves a directory that no broker starts in: the floors and the high-water mark
are written before the log, and the other small tables after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txmq.errors import DamagedFile
from txmq.protocol.checksum import crc32
from txmq.runtime.disk import Disk
from txmq_broker.backup.manifest import BackupManifest, CopiedFile, save_beginning, save_tables

__all__ = ["restore"]

_COPIED_AT_ONCE: Final = 4 * 1024 * 1024


def restore(
    folder: Disk,
    manifest: BackupManifest,
    target: Disk,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy a verified backup into an empty directory, durably.

    Args:
        folder: The backup's folder.
        manifest: Its manifest.
        target: The directory, locked by the caller.
        progress: Called with the number of bytes that were copied.

    Raises:
        DamagedFile: A file changed since it was verified.
        OSError: One of the disks failed.
    """
    save_beginning(target, manifest)
    for file in manifest.files:
        _copy(folder, file, target, progress)
    save_tables(target, manifest)


def _copy(folder: Disk, file: CopiedFile, target: Disk, progress: Callable[[int], None]) -> None:
    source = folder.open(file.place)
    try:
        copy = target.open(file.path, create=True)
        try:
            done, checksum = 0, 0
            while done < file.size:
                data = source.read(done, min(_COPIED_AT_ONCE, file.size - done))
                if not data:
                    break
                copy.write(done, data)
                done, checksum = done + len(data), crc32(data, checksum)
                progress(len(data))
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()
    if (done, checksum) != (file.size, file.checksum):
        raise DamagedFile(file.place, "it changed since it was verified")
