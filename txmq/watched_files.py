"""A value that is read from files, and read again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from txmq.errors import ConfigError

__all__ = ["WatchedFiles"]

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_S: Final = 1.0
"""The interval at which changed files are noticed."""

_Stamp: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


class WatchedFiles(Generic[T]):
    """The value of the last files that were valid.

    Args:
        files: Lists the files; called before each look at them.
        read: Reads the value.
        name: What the value is, in log lines.

    Raises:
        ConfigError: The files are invalid.
    """

    def __init__(
        self, files: Callable[[], Iterable[Path]], read: Callable[[], T], name: str
    ) -> None:
        self._files = files
        self._read = read
        self._name = name
        self._stamp = self._stamp_now()
        self.value = read()
        """The value of now."""

    async def watch(self) -> None:
        """Read the files again whenever they have changed. Invalid ones change nothing."""
        while True:
            await asyncio.sleep(WATCH_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.value = self._read()
        except ConfigError as error:
            # The text names keys and values, never a secret.
            log.error("%s; the %s from before stay in force", error, self._name)  # noqa: TRY400
            return
        log.warning("%s read again: %s", self._name, ", ".join(sorted({one[0] for one in stamp})))

    def _stamp_now(self) -> _Stamp:
        found: list[tuple[str, int, int, int, int]] = []
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue  # Reading it explains why.
            changed = status.st_mtime_ns, status.st_size, status.st_mode, status.st_ino
            found.append((str(path), *changed))
        return tuple(found)
