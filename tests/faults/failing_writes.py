"""A disk whose every write at a position fails with EIO, and whose other calls work.

A library that the dynamic linker loads into one process stands for it. It needs no rights, unlike
a device that fails, and it fails at once, unlike a disk behind the kernel's cache. It is switched
by a file: while that exists, writes fail.
"""

import subprocess

from tools.packages import cpp_compiler

__all__ = ["FailingWrites"]

_SOURCE = """\
#include <cerrno>
#include <cstdlib>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static bool fails() {
    static const char *file = getenv("FAILING_WRITES_WHILE");
    if (file == nullptr || access(file, F_OK) != 0) return false;
    errno = EIO;
    return true;
}

#define WRITES(name) \\
    extern "C" ssize_t name(int file, const void *data, size_t size, off_t at) { \\
        return fails() ? -1 : syscall(SYS_pwrite64, file, data, size, at); \\
    }
#define WRITES_PIECES(name) \\
    extern "C" ssize_t name(int file, const iovec *pieces, int count, off_t at) { \\
        return fails() ? -1 : syscall(SYS_pwritev, file, pieces, count, at, 0L); \\
    }
#define WRITES_PIECES_WITH_FLAGS(name) \\
    extern "C" ssize_t name(int file, const iovec *pieces, int count, off_t at, int flags) { \\
        return fails() ? -1 : syscall(SYS_pwritev2, file, pieces, count, at, 0L, flags); \\
    }
WRITES(pwrite)
WRITES(pwrite64)
WRITES_PIECES(pwritev)
WRITES_PIECES(pwritev64)
WRITES_PIECES_WITH_FLAGS(pwritev2)
WRITES_PIECES_WITH_FLAGS(pwritev64v2)
"""


class FailingWrites:
    """The disk of a process.

    Args:
        folder: Where its files are.

    Attributes:
        variables: The environment of the process.

    Raises:
        Unprepared: There is no compiler for the library.
    """

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        library, source = folder / "failing-writes.so", folder / "failing-writes.cpp"
        source.write_text(_SOURCE)
        command = [*cpp_compiler(), "-std=c++11", "-shared", "-fPIC", "-o", library, source]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
        self._switch = folder / "writes-fail"
        self.variables = {"LD_PRELOAD": str(library), "FAILING_WRITES_WHILE": str(self._switch)}

    def fail(self):
        self._switch.touch()

    def mend(self):
        self._switch.unlink()
