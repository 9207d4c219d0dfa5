"""Two versions of a directory tree: the existing names, and the names that survive a crash.

A tree knows names and contents, but no faults and no handles. ``keep`` makes a name durable, like
an fsync of its folder; before that, a crash may leave the old or the new state of the name.
"""

from __future__ import annotations

from txmq.testing.entropy import SeededEntropy
from txmq.testing.pages import PAGE, Loss, Pages

__all__ = ["Tree"]


class Tree:
    """Files by path, with their folders."""

    __slots__ = ("_folders", "_now", "_safe")

    def __init__(self) -> None:
        self._now: dict[str, Pages] = {}
        self._safe: dict[str, Pages] = {}
        self._folders: dict[str, None] = {}

    def copy(self) -> Tree:
        """An independent copy; two names of one file share one copy."""
        twin = Tree()
        copies: dict[int, Pages] = {}
        for source, target in ((self._now, twin._now), (self._safe, twin._safe)):
            for path, pages in source.items():
                if id(pages) not in copies:
                    copies[id(pages)] = pages.copy()
                target[path] = copies[id(pages)]
        twin._folders = self._folders.copy()
        return twin

    def find(self, path: str) -> Pages | None:
        """The file with this name."""
        return self._now.get(path)

    def is_folder(self, path: str) -> bool:
        """True if the path names a folder."""
        return path == "" or path in self._folders

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        start = f"{folder}/" if folder else ""
        inside = [path for path in (*self._now, *self._folders) if path.startswith(start)]
        return sorted({path[len(start) :].split("/")[0] for path in inside})

    def put(self, path: str, pages: Pages) -> None:
        """Give a file a name, and create the name's folders."""
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            self._folders["/".join(parts[:depth])] = None
        self._now[path] = pages

    def drop(self, path: str) -> None:
        """Remove a name."""
        self._now.pop(path, None)

    def keep(self, path: str) -> None:
        """Make the existence or the removal of a name durable."""
        if path in self._now:
            self._safe[path] = self._now[path]
        else:
            self._safe.pop(path, None)

    def allocated(self) -> int:
        """The number of bytes that the files occupy, in whole pages."""
        return sum(pages.allocated() for pages in self._now.values()) * PAGE

    def crash(self, entropy: SeededEntropy, loss: Loss, last: tuple[str, int, int] | None) -> None:
        """Lose power: a random part of the names and bytes that were not durable survives."""
        for path in sorted({*self._now, *self._safe}):
            if self._now.get(path) is not self._safe.get(path):
                self._settle_name(path, lost=_lost(entropy, loss))
        done: set[int] = set()
        for path, pages in sorted(self._now.items()):
            if id(pages) not in done:
                done.add(id(pages))
                mine = last is not None and last[0] == path
                pages.crash(entropy, loss, last[1:] if last is not None and mine else None)
        self._safe = self._now.copy()

    def _settle_name(self, path: str, *, lost: bool) -> None:
        old = self._safe.get(path)
        if not lost:
            return
        if old is None:
            del self._now[path]
        else:
            self._now[path] = old


def _lost(entropy: SeededEntropy, loss: Loss) -> bool:
    return loss is Loss.EVERYTHING or (loss is Loss.PAGES and entropy.chance(0.5))
