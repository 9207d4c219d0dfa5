"""What a copy costs its leader, and how fast a new follower catches up.

A leader whose answers wait for one follower, and a broker without copies, take turns. The follower
runs on the driver's core, where there are two.
"""

import os
import re
import threading
import time

import bench_driver
import bench_frames
from bench_process import Broker
from bench_sends import BODY_BYTES, COMPARED_AT, spread

COST, LATENCY = "cpu_us_per_message", "latency_ms"
WARM_UP_S = 0.05
PROBE_BYTES = 8 * 1024 * 1024
PATIENCE_S = 300


class Leader(Broker):
    """A leader with static roles, whose name server its followers use."""

    def __init__(self, bench, folder, flush, role):
        super().__init__(bench, folder, flush, [f"brokerRole={role}"])

    def followed_by(self):
        return Follower(self.bench, self.bench.new_folder(), self.names)

    def figures(self):
        return bench_driver.figures(self.port)

    def wait_in_sync(self):
        end = time.monotonic() + PATIENCE_S
        while self.figures().get("followersInSync") != "1":
            assert time.monotonic() < end, "the follower never came into sync"
            threading.Event().wait(0.01)


class Follower(Broker):
    """A follower; no client connects to it."""

    def __init__(self, bench, folder, names):
        super().__init__(bench, folder, "sync", ["brokerRole=SLAVE", "brokerId=1"])
        self.names = names

    def command(self):
        line = super().command()
        at = line.index("--names-listen")
        return [*line[:at], "--names", self.names, *line[at + 2 :]]

    def port_in(self, line):
        return 0 if re.match(r"ready \S+ follower", line) else None

    def start(self):
        super().start()
        if self.bench.core is not None:
            os.sched_setaffinity(self.process.pid, os.sched_getaffinity(0))


def copies(bench, plan):
    """The ratio of the leader's CPU, its latencies, and a follower that catches up."""
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    alone = bench.broker("sync")
    leader = Leader(bench, bench.new_folder(), "sync", "SYNC_MASTER")
    with alone, leader, leader.followed_by():
        leader.wait_in_sync()
        for server in (alone, leader):
            bench_driver.measured_sends(server, frames, plan.turn_s, warm_up_s=plan.warm_up_s)
        turns = [
            [
                bench_driver.measured_sends(server, frames, plan.turn_s, warm_up_s=WARM_UP_S)
                for server in (alone, leader)
            ]
            for _ in range(plan.turns)
        ]
        in_sync = leader.figures()["followersInSync"]
    ratios = [copied[COST] / bare[COST] for bare, copied in turns]
    caught_up = catch_up(bench, plan)
    return {
        "leader_cpu_over_alone": spread(ratios),
        "alone_us": spread([bare[COST] for bare, _ in turns]),
        "leader_us": spread([copied[COST] for _, copied in turns]),
        "alone_p99_ms": spread([bare[LATENCY]["p99"] for bare, _ in turns]),
        "leader_p99_ms": spread([copied[LATENCY]["p99"] for _, copied in turns]),
        "followers_in_sync_at_the_end": in_sync,
        "catch_up_over_disk": spread([caught_up["mb_per_s"] / caught_up["disk_mb_per_s"]]),
        "catch_up": caught_up,
    }


def catch_up(bench, plan):
    """A new follower of a leader with a long log, over the rate at which the disk writes."""
    size = plan.log_bytes[-1]
    frames = bench_frames.sends(COMPARED_AT * 8, BODY_BYTES)
    with Leader(bench, bench.new_folder(), "async", "ASYNC_MASTER") as leader:
        link = bench_driver.Link(leader.port)
        bench_driver.fill(link, frames, size // (BODY_BYTES + 300))
        link.close()
        stored = sum(path.stat().st_size for path in (leader.data / "log").iterdir())
        os.sync()
        disk_rate = _written_in_sequence(bench.new_folder() / "probe", min(size, 2**30))
        begun = time.perf_counter()
        with leader.followed_by():
            leader.wait_in_sync()
            took = time.perf_counter() - begun
    return {
        "bytes": stored,
        "seconds": round(took, 2),
        "mb_per_s": round(stored / took / 1e6, 1),
        "disk_mb_per_s": round(disk_rate / 1e6, 1),
    }


def _written_in_sequence(path, size):
    """Bytes a second of one long write that is durable at its end."""
    data = os.urandom(PROBE_BYTES)
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    begun = time.perf_counter()
    for _ in range(max(1, size // PROBE_BYTES)):
        os.write(file, data)
    os.fdatasync(file)
    took = time.perf_counter() - begun
    os.close(file)
    path.unlink()
    return max(1, size // PROBE_BYTES) * PROBE_BYTES / took
