"""Folders that get their names when they are complete.

A process locks the folder that it writes. A folder without a lock was left by a process that
died; the next writer removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["draft_folder"]


@contextmanager
def draft_folder(home: Path, mode: int = 0o777) -> Iterator[Path]:
    """Make an empty folder; it is removed at the end of the block unless it was renamed.

    Args:
        home: Its parent; abandoned folders there are removed.
        mode: Its permissions, less those that the process's mask takes away.

    Raises:
        OSError: The folder cannot be made.
    """
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f".txmq-{secrets.token_hex(8)}.writing"
    with ExitStack() as stack:
        # This lock keeps other processes from cleaning up between mkdir and the folder's lock.
        with _try_lock(home):
            for path in home.glob(".txmq-*.writing"):
                # It may be renamed at this moment, or belong to another user.
                with suppress(OSError), _try_lock(path, fcntl.LOCK_NB) as is_left:
                    if is_left:
                        shutil.rmtree(path, ignore_errors=True)
            draft.mkdir(mode)
            stack.enter_context(_try_lock(draft))
        stack.callback(shutil.rmtree, draft, ignore_errors=True)
        yield draft


@contextmanager
def _try_lock(folder: Path, how: int = 0) -> Iterator[bool]:
    """Try to lock a folder; on file systems without locks this fails and nothing is cleaned up."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
