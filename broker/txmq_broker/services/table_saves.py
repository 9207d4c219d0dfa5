"""Saves a table that clients change all the time, without holding up the event loop.

Listing and encoding 40,000 offsets takes 20 ms. So the rows are encoded in parts, with turns of the
loop in between, and a thread writes the file.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from txmq.protocol.bodies import Body
from txmq.runtime.disk import Disk
from txmq_broker.services.slices import table_in_parts
from txmq_broker.store.checked_file import CheckedFile

__all__ = ["TableSaves", "run_in_thread"]


class TableSaves:
    """The saves of one table, at once or in parts.

    Args:
        file: The file of the table.
        disk: The disk that holds it; its thread writes the file.

    Attributes:
        is_writing: Whether a save in parts is under way. It may miss the latest changes.
    """

    def __init__(self, file: CheckedFile, disk: Disk) -> None:
        self._file = file
        self._disk = disk
        self._lock = threading.Lock()
        self._saves = 0
        """How often the loop itself saved the table."""
        self.is_writing = False

    def save(self, owner: str, text: bytes) -> None:
        """Save the table now, and cancel the effect of a save in parts that is under way.

        Raises:
            OSError: The write failed.
        """
        with self._lock:
            self._saves += 1
            self._file.save(owner, text)

    async def write(
        self,
        owner: str,
        empty: Body,
        rows: Iterable[tuple[str, object]],
        finish: Callable[[bytes], bytes],
    ) -> None:
        """Save the table in parts. Only one call may run at a time.

        Args:
            owner: The identity of the directory.
            empty: The body of the file with the empty table.
            rows: The rows of the table as they are now. Their values may change during the save.
            finish: Returns the text to save.

        Raises:
            OSError: The write failed.
        """
        saves = self._saves
        self.is_writing = True
        try:
            parts = []
            for part in table_in_parts(empty, rows):
                parts.append(part)
                await asyncio.sleep(0)
            text = finish(b"".join(parts))

            def write() -> None:
                with self._lock:
                    if self._saves == saves:  # Otherwise newer rows are on the disk.
                        self._file.save(owner, text)

            await run_in_thread(self._disk, write)
        finally:
            self.is_writing = False


async def run_in_thread(disk: Disk, work: Callable[[], None]) -> None:
    """Run work in the thread of a disk; a cancelled caller still waits until it has finished.

    Raises:
        OSError: A disk operation failed.
    """
    working = asyncio.ensure_future(disk.run_soon(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        # The next owner of the file must find it whole.
        await asyncio.gather(asyncio.shield(working), return_exceptions=True)
        raise
