"""Notices when source files change, for ``--reload``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from txmq.errors import ConfigError
from txmq.limits import WATCHED_FILES_MAX

__all__ = ["SourceFiles"]

LOOK_S: Final = 0.3
"""How often the files are looked at; a change is complete once two looks agree."""

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

_Stamps = dict[str, tuple[int, int]]


class SourceFiles:
    """The Python files in some folders.

    Args:
        folders: The folders; hidden ones inside them, virtual environments and caches are left out.

    Raises:
        ConfigError: There are too many files.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._stamps = self._look()

    async def change(self) -> list[str]:
        """Wait until files change; returns the changed, new and removed ones."""
        while True:
            await asyncio.sleep(LOOK_S)
            found = self._look()
            if found == self._stamps:
                continue
            # An editor may write several files.
            while True:
                await asyncio.sleep(LOOK_S)
                again = self._look()
                if again == found:
                    break
                found = again
            before, self._stamps = self._stamps, found
            names = {name for name in before.keys() | found if before.get(name) != found.get(name)}
            if names:
                return sorted(names)

    def _look(self) -> _Stamps:
        found: _Stamps = {}
        for folder in self._folders:
            self._read(str(folder), found)
        return found

    def _read(self, folder: str, found: _Stamps) -> None:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return  # It was removed meanwhile.
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    is_skipped = entry.name.startswith(".") or entry.name in _SKIPPED
                    if not is_skipped and not Path(entry.path, "pyvenv.cfg").exists():
                        self._read(entry.path, found)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    found[entry.path] = status.st_mtime_ns, status.st_size
            except OSError:
                continue
        if len(found) > WATCHED_FILES_MAX:
            raise ConfigError(
                f"{folder} and the folders beside it have more than {WATCHED_FILES_MAX} Python "
                "files; name the folders of the application with --reload-dir"
            )
