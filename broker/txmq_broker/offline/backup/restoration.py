"""The restoration of a backup into an empty directory.

No broker starts in a directory whose restoration was interrupted: the floors and the high-water
mark are written before the log, and the other small tables after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from txmq.errors import DamagedFile
from txmq.runtime.disk import Disk
from txmq_broker.offline.backup.manifest import (
    BackupManifest,
    CopiedFile,
    read_whole,
    save_beginning,
    save_tables,
)
from txmq_broker.store.index_file import FOLDER as INDEX_FOLDER

__all__ = ["restore"]


def restore(
    folder: Disk,
    manifest: BackupManifest,
    target: Disk,
    progress: Callable[[int], None] = lambda _: None,
    *,
    damaged: Collection[str] = (),
) -> None:
    """Copy a verified backup into an empty directory, durably.

    Args:
        folder: The backup's folder.
        manifest: Its manifest.
        target: The directory, locked by the caller.
        progress: Called with the number of bytes that were copied.
        damaged: The paths of damaged files. A damaged index is left out; of any other file,
            everything that can be read is copied.

    Raises:
        DamagedFile: A file changed since it was verified.
        OSError: One of the disks failed.
    """
    save_beginning(target, manifest)
    for file in manifest.files:
        if file.path not in damaged:
            found = _copy(folder, file, target, progress)
            if found != (file.size, file.checksum):
                raise DamagedFile(file.place, "it changed since it was verified")
        elif not file.path.startswith(f"{INDEX_FOLDER}/"):
            with suppress(FileNotFoundError):
                _copy(folder, file, target, progress)
    save_tables(target, manifest)


def _copy(
    folder: Disk, file: CopiedFile, target: Disk, progress: Callable[[int], None]
) -> tuple[int, int]:
    """Copy a file; return the number of bytes and their checksum."""
    source = folder.open(file.place)
    try:
        copy = target.open(file.path, create=True)

        def write(place: int, data: bytes) -> None:
            copy.write(place, data)
            progress(len(data))

        try:
            found = read_whole(source, file.size, write)
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()
    return found
