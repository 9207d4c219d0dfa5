"""A disk of one process that can be filled, and emptied again.

Where the tests may mount, it is a small file system of its own. Elsewhere a limit of the process on
the size of its files stands for it, which any Linux has.
"""

import resource
import subprocess
import tempfile
from contextlib import suppress

__all__ = ["KINDS"]

SIZE = 32 * 1024 * 1024


class Mounted:
    """A file system in memory, which a large file fills."""

    def __init__(self, folder):
        self._folder = folder
        self._filler = folder / "filler"

    def __enter__(self):
        self._folder.mkdir(parents=True)
        mount(self._folder)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self._folder], check=True)

    def fill(self, process):
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def make_room(self, process):
        self._filler.unlink()


class Limited:
    """A process that may not make its log longer."""

    def __init__(self, folder):
        self._folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def fill(self, process):
        size = max(path.stat().st_size for path in (self._folder / "log").iterdir())
        self._limit(process, size)

    def make_room(self, process):
        self._limit(process, None)

    def _limit(self, process, size):
        _, highest = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        now = highest if size is None else size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (now, highest))


def mount(folder):
    """Mount an empty file system.

    Raises:
        CalledProcessError: The system does not allow it.
        FileNotFoundError: There is no such program.
    """
    options = ["-t", "tmpfs", "-o", f"size={SIZE}", "txmq-test"]
    subprocess.run(["mount", *options, folder], check=True, capture_output=True)


def can_mount():
    with tempfile.TemporaryDirectory() as folder:
        try:
            mount(folder)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", folder], check=True)
    return True


KINDS = (Mounted, Limited) if can_mount() else (Limited,)
"""The kinds of disks that this machine can fill."""
