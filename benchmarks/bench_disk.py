"""How fast the disk is that holds the logs.

Without it no figure with ``flush = "sync"`` says much.
"""

import os
import time
from pathlib import Path

SIZES = (4096, 98304)
"""The smallest write there is, and the records of a burst of 64 messages of 1 KB."""


def disk(bench, plan):
    """Latency of an append and the sync that follows it."""
    return {
        "filesystem": _filesystem(bench.folder),
        "append_and_fdatasync_ms": {str(size): _syncs(bench, size, plan.syncs) for size in SIZES},
    }


def _syncs(bench, size, count):
    path = bench.new_folder() / "probe"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    data, laps = b"x" * size, []
    for _ in range(count):
        begun = time.perf_counter()
        os.write(file, data)
        os.fdatasync(file)
        laps.append(time.perf_counter() - begun)
    os.close(file)
    path.unlink()
    laps.sort()
    return {
        "p50": round(laps[len(laps) // 2] * 1e3, 3),
        "p99": round(laps[int(len(laps) * 0.99)] * 1e3, 3),
    }


def _filesystem(folder):
    """The kind of file system a folder lies on; memory would make every sync free."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, *_ = line.split(" ")
        inside = place == "/" or str(folder).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, found
    return kind
