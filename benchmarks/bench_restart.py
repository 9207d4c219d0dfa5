"""What a restart costs after a crash: it shall follow the distance from the last checkpoint alone.

A real broker is filled over the wire and killed with SIGKILL when as much log has followed the last
checkpoint in the small log as in the large one. Then it is started and killed again several times:
a start that serves nothing changes nothing on the disk. Each start must find every message again.
"""

import os
import shutil
import statistics
from pathlib import Path

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, spread

DISTANCE_BYTES = 24_000_000
"""Below the 32 MiB after which a checkpoint is made by default."""

CHECKPOINT_EVERY = 32 * 1024**2


def restart(bench, plan):
    """Time from the start of the process until it is ready, by size of the log."""
    logs = [_Log(bench, plan, size) for size in plan.log_bytes]
    empty = []
    for number in range(plan.starts):
        with bench.broker() as broker:
            empty.append(broker.start_s)
        for log in logs:
            log.measure(is_cold=False)
            log.measure(is_cold=True)
        plan.say(f"restart: {number + 1} of {plan.starts} starts")
    small, large = logs
    found = {
        "empty_s": round(statistics.median(empty), 3),
        "small": small.figures(),
        "large": large.figures(),
        "large_over_small": large.over(small, is_cold=False),
        "large_over_small_cold": large.over(small, is_cold=True),
    }
    if plan.is_full:
        plan.say("restart: rebuilding all indexes")
        found["rebuild"] = large.rebuild()
    for log in logs:
        log.broker.__exit__()
    return found


class _Log:
    """A data directory left behind by a broker that was killed."""

    def __init__(self, bench, plan, size):
        self.broker = bench.broker()
        self.warm, self.cold = [], []
        self.rss_mb = 0.0
        plan.say(f"restart: filling {size // 1_000_000} MB")
        self.broker.start()
        link = bench_driver.Link(self.broker.port)
        many, few = bench_frames.sends(512, BODY_BYTES), bench_frames.sends(64, BODY_BYTES)
        self.messages = bench_driver.fill(link, many, 1)
        while self.log_bytes < size - DISTANCE_BYTES - CHECKPOINT_EVERY:
            self.messages += bench_driver.fill(link, many, 1)
        indexed = self.index_bytes
        while self.index_bytes == indexed:
            self.messages += bench_driver.fill(link, few, 1)
        checkpoint = self.log_bytes
        while self.log_bytes < checkpoint + DISTANCE_BYTES:
            self.messages += bench_driver.fill(link, few, 1)
        link.close()
        self.broker.kill()
        self.distance = self.log_bytes - checkpoint

    @property
    def log_bytes(self):
        return _size(self.broker.data / "log")

    @property
    def index_bytes(self):
        return _size(self.broker.data / "index")

    def measure(self, *, is_cold):
        """Start it once more, with its files in memory or only on the disk."""
        if is_cold:
            _forget(self.broker.data)
        self.broker.start()
        (self.cold if is_cold else self.warm).append(self.broker.start_s)
        self._check()
        self.broker.kill()

    def _check(self):
        link = bench_driver.Link(self.broker.port)
        found = bench_driver.stored(link)
        link.close()
        self.rss_mb = self.broker.rss_mb()
        if found != self.messages:
            raise bench_driver.Unexpected(f"{found} messages after a restart, not {self.messages}")

    def figures(self):
        return {
            "log_mb": round(self.log_bytes / 1e6, 1),
            "messages": self.messages,
            "behind_checkpoint_mb": round(self.distance / 1e6, 1),
            "ready_s": round(statistics.median(self.warm), 3),
            "ready_s_cold": round(statistics.median(self.cold), 3),
            "rss_mb": self.rss_mb,
        }

    def over(self, other, *, is_cold):
        ours, theirs = (self.cold, other.cold) if is_cold else (self.warm, other.warm)
        return spread([one / other for one, other in zip(ours, theirs, strict=True)])

    def rebuild(self):
        """Start without any index file."""
        shutil.rmtree(self.broker.data / "index")
        self.broker.start()
        self._check()
        gigabytes = self.log_bytes / 1e9
        return {
            "s_per_gb": round(self.broker.start_s / gigabytes, 2),
            "log_gb": round(gigabytes, 2),
            "rss_mb": self.rss_mb,
        }


def _size(folder):
    return sum(file.stat().st_size for file in folder.iterdir()) if folder.exists() else 0


def _forget(folder):
    """Take the files out of the system's memory, as after the machine itself was restarted."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
