"""A real disk whose syncs fail once it has taken some megabytes: a thin volume without room behind.

It is a file system in a sparse file, and this file lies on a small file system in memory. What does
not fit there is noticed only when the kernel writes pages back, as on a broken disk.
"""

import subprocess
from contextlib import suppress

__all__ = ["FailingDisk"]

BYTES_MAX = 6 * 1024 * 1024
"""What it can keep."""
BYTES_PROMISED = 64 * 1024 * 1024
"""What it says that it can keep."""


class FailingDisk:
    """Mounted while the context lasts, at ``folder``.

    Entering it raises ``OSError`` or ``CalledProcessError`` where this machine cannot have one.
    """

    def __init__(self, where):
        self.folder = where / "disk"
        self._behind = where / "behind"
        self._image = self._behind / "image"
        self._device = ""

    def __enter__(self):
        self.folder.mkdir()
        self._behind.mkdir()
        try:
            size = f"size={BYTES_MAX}"
            _call("mount", "-t", "tmpfs", "-o", size, "txmq-test", self._behind)
            with self._image.open("wb") as image:
                image.truncate(BYTES_PROMISED)
            self._device = _call("losetup", "--find", "--show", self._image)
            # Without a journal: an error in one would make the file system read-only.
            eager = ("-E", "lazy_itable_init=1,nodiscard")
            _call("mkfs.ext4", "-q", "-O", "^has_journal", *eager, self._device)
            _call("mount", self._device, self.folder)
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, *_):
        self._undo()

    def _undo(self):
        for command in (
            ("umount", "--lazy", self.folder),
            ("losetup", "--detach", self._device),
            ("umount", "--lazy", self._behind),
        ):
            with suppress(OSError, subprocess.CalledProcessError):
                _call(*command)


def _call(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()
