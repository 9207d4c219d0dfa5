"""Folders that are written into before they get their names.

Whoever writes into one holds it, as long as he lives. What nobody holds belonged to the dead, and
goes before the next one begins.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["drafted"]


@contextmanager
def drafted(home: Path) -> Iterator[Path]:
    """An empty folder to write into. It goes when the block is left, unless it was renamed.

    Args:
        home: Where it is, and where those are looked for that others have left.

    Raises:
        OSError: It cannot be made.
    """
    home.mkdir(parents=True, exist_ok=True)
    draft = home / f".{secrets.token_hex(8)}.writing"
    with ExitStack() as stack:
        # Nobody clears up between making a folder and holding it.
        with _held(home):
            for path in home.glob(".*.writing"):
                # It may get its name at this very moment, and it may be somebody else's.
                with suppress(OSError), _held(path, fcntl.LOCK_NB) as is_left:
                    if is_left:
                        shutil.rmtree(path, ignore_errors=True)
            draft.mkdir()
            stack.enter_context(_held(draft))
        stack.callback(shutil.rmtree, draft, ignore_errors=True)
        yield draft


@contextmanager
def _held(folder: Path, how: int = 0) -> Iterator[bool]:
    """Whether a folder is ours alone; some file systems cannot say so, and nothing is cleared up
    there.
    """
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
