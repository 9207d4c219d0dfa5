"""A value that is read from files and reloaded when they change."""

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
"""The interval between checks for changed files."""

_LOOKS_PER_RETRY: Final = 30
"""Checks of unchanged files before unreadable ones are tried again: the cause may lie elsewhere,
such as too many open files."""

_Stamp: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


class WatchedFiles(Generic[T]):
    """The value of the last valid version of the files.

    Args:
        files: Lists the files; called for each check.
        read: Reads the value. It may run in a thread.
        name: The value's name in log lines.

    Raises:
        ConfigError: The files are invalid.

    Attributes:
        reads: How often a value was read.
    """

    def __init__(
        self, files: Callable[[], Iterable[Path]], read: Callable[[], T], name: str
    ) -> None:
        self._files = files
        self._read = read
        self._name = name
        self._turn = asyncio.Lock()
        self._failure = ""
        """Why the files cannot be read; empty while they can."""
        self._looks = 0
        """Checks of unchanged files since they could not be read."""
        self.reads: int = 0
        self._stamp = self._stamp_now()
        self.value: T = read()
        """The current value."""
        self.reads = 1

    @property
    def are_changed(self) -> bool:
        """Whether the files differ from those that were read last."""
        return self._stamp_now() != self._stamp

    async def watch(self) -> None:
        """Reload the files whenever they have changed. Invalid files change nothing."""
        while True:
            await asyncio.sleep(WATCH_S)
            await self.refresh_in_thread()

    async def refresh_in_thread(self) -> None:
        """Like :meth:`refresh`, but without blocking the event loop.

        Changes from before the call are in force when it returns, even if another call was reading.
        """
        async with self._turn:
            stamp = self._stamp_now()
            if self._is_due(stamp):
                try:
                    value = await asyncio.to_thread(self._read)
                except Exception as error:  # noqa: BLE001 - no file may end the watch
                    self._keep(stamp, error)
                else:
                    self._put(stamp, value)

    def refresh(self) -> None:
        """Reload the files if they have changed. Invalid files change nothing."""
        stamp = self._stamp_now()
        if self._is_due(stamp):
            try:
                value = self._read()
            except Exception as error:  # noqa: BLE001 - as above
                self._keep(stamp, error)
            else:
                self._put(stamp, value)

    def _is_due(self, stamp: _Stamp) -> bool:
        if stamp != self._stamp:
            return True
        if not self._failure:
            return False
        self._looks += 1
        return self._looks >= _LOOKS_PER_RETRY

    def _put(self, stamp: _Stamp, value: T) -> None:
        self.value = value
        self.reads += 1
        self._stamp, self._failure = stamp, ""
        log.warning("%s read again: %s", self._name, ", ".join(sorted({one[0] for one in stamp})))

    def _keep(self, stamp: _Stamp, error: Exception) -> None:
        failure = str(error)
        if not isinstance(error, ConfigError):
            # Its text may show a secret; a ConfigError names only keys and values.
            failure = f"the {self._name} cannot be read: {type(error).__name__}"
        if (stamp, failure) != (self._stamp, self._failure):
            log.error("%s; the %s from before stay in force", failure, self._name)
        self._stamp, self._failure, self._looks = stamp, failure, 0

    def _stamp_now(self) -> _Stamp:
        try:
            paths = list(self._files())
        except OSError as error:
            return ((str(error), 0, 0, 0, 0),)  # Reading them explains why, once.
        found: list[tuple[str, int, int, int, int]] = []
        for path in paths:
            try:
                status = path.stat()
            except OSError:
                continue  # Reading it explains why.
            changed = status.st_mtime_ns, status.st_size, status.st_mode, status.st_ino
            found.append((str(path), *changed))
        return tuple(found)
