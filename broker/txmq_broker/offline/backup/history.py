"""Whether a log continues the one in a backup, and if not, why."""

from __future__ import annotations

from contextlib import suppress

from txmq.protocol.span import FOLDER, HEAD_BYTES, read_head, start_in
from txmq.runtime.disk import Disk
from txmq_broker.offline.backup.manifest import BackupManifest, BackupRefused
from txmq_broker.store.log.segments import CUT_FOLDER, Segments

__all__ = ["check_history"]


def check_history(before: BackupManifest, disk: Disk, segments: Segments, source: str) -> None:
    """Make sure that a log continues the one in a backup.

    Args:
        before: The backup.
        disk: The directory of the log.
        segments: The log.
        source: The name of the directory, for the error.

    Raises:
        BackupRefused: It does not.
    """
    mark, last = before.mark, before.last_span
    has_end = before.end <= segments.end
    if has_end and (
        mark is None
        or last < segments.start
        or mark.is_of(read_head(segments.read(last, HEAD_BYTES), 0, last))
    ):
        return
    if folder := _cut_with(before, disk):
        raise BackupRefused(
            f"{source} cut its log at position {folder.partition('-')[0]}, because the leader of "
            f"its set had another history, and the backup reaches position {before.end}: it has "
            "messages that were never acknowledged, or that an operator gave up. "
            f"{CUT_FOLDER}/{folder} in {source} has them too; move the backup away and create it "
            "again"
        )
    if not has_end:
        raise BackupRefused(
            f"the backup reaches position {before.end} of the log, and the log in {source} ends at "
            f"{segments.end}: it lost its end, or an older copy was restored there. The backup may "
            "have messages that it lacks: keep it, and use another folder"
        )
    raise BackupRefused(
        f"the log in {source} continues differently at position {before.last_span} than the "
        "one in the backup: an older copy was restored there. The backup may have messages "
        "that it lacks: keep it, and use another folder"
    )


def _cut_with(before: BackupManifest, disk: Disk) -> str:
    """The folder with the last span of a backup that a member has cut, or an empty string."""
    for folder in disk.names(CUT_FOLDER):
        inside = f"{CUT_FOLDER}/{folder}/{FOLDER}"
        for name in disk.names(inside):
            start = start_in(name)
            if start is None or start > before.last_span:
                continue
            with suppress(OSError):
                file = disk.open(f"{inside}/{name}")
                try:
                    head = read_head(
                        file.read(before.last_span - start, HEAD_BYTES), 0, before.last_span
                    )
                finally:
                    file.close()
                if before.mark is not None and before.mark.is_of(head):
                    return folder
    return ""
