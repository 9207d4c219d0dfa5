"""The directories of brokers below one directory, as ``txmq serve --brokers`` lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from txmq.protocol.span import FOLDER

__all__ = ["LOCK", "brokers_below", "hint_of_brokers", "is_broker_directory"]

LOCK: Final = "lock"
"""The file that a broker, and the supervisor of several, locks in its directory."""

_TOPICS: Final = Path("config", "topics.json")
"""Each broker has this file from its first start on; the directory of a name server has none."""


def is_broker_directory(folder: Path) -> bool:
    """Whether a broker keeps its log and its tables in a directory."""
    has_log = (folder / FOLDER).is_dir() and (folder / LOCK).is_file()
    return has_log or (folder / _TOPICS).is_file()


def brokers_below(folder: Path) -> list[Path]:
    """The directories of brokers in a directory, by name; empty if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if is_broker_directory(path))
    except OSError:
        return []


def hint_of_brokers(folder: Path) -> str:
    """A clause that names the directories of brokers in a directory; empty if it has none."""
    found = brokers_below(folder)
    if not found or is_broker_directory(folder):
        return ""
    names = ", ".join(path.name for path in found)
    return f"; it holds the directories of several brokers: {names}; name one, as {found[0]}"
