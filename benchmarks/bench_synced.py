"""What a durable send costs in time: next to the floor with syncs, and from blocking threads.

Servers have one core and the driver another, as where two commits are compared. On two free cores
the floor, which syncs in place and never sleeps between two requests, is faster than on its own.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import bench_driver
import bench_frames
import bench_process
from bench_sends import BODY_BYTES, TURN_WARM_UP_S, spread

THREADS = 8
THREADS_WARM_UP_S = 0.3
PATIENCE_S = 120
TURNS_MIN = 5


def synced(bench, plan):
    """Ratios to the floor by turns, and the rate of eight threads by way of flushing."""
    turns = max(TURNS_MIN, plan.turns // 2)
    one, few = (bench_frames.sends(count, BODY_BYTES) for count in (1, 8))
    found = []
    with (
        _pinned(bench),
        bench.floor("sync") as bare,
        bench.broker("sync") as safe,
        bench.broker("async") as lazy,
    ):
        for turn in range(turns + 1):
            figures = {}
            for name, server in (("floor", bare), ("broker", safe)):
                alone = _sends(server, one, plan, bench_driver.bursts)
                eight = _sends(server, few, plan, bench_driver.stream)
                figures[name] = alone["latency_ms"]["p50"], eight["messages_per_s"]
            for name, server in (("sync", safe), ("async", lazy)):
                figures[name] = _threads(server, plan)
            if turn:  # The first turn warms up.
                found.append(figures)
    return {
        "turns": turns,
        "alone_over_floor": spread([turn["broker"][0] / turn["floor"][0] for turn in found]),
        "eight_over_floor": spread([turn["broker"][1] / turn["floor"][1] for turn in found]),
        "alone_ms": _medians(found, ("floor", "broker"), 0),
        "eight_per_s": _medians(found, ("floor", "broker"), 1),
        "eight_threads": {
            "sync_over_async": spread([turn["sync"][0] / turn["async"][0] for turn in found]),
            "messages_per_s": _medians(found, ("sync", "async"), 0),
            "client_busy": _medians(found, ("sync", "async"), 1),
        },
    }


@contextmanager
def _pinned(bench):
    allowed, core = os.sched_getaffinity(0), bench.core
    try:
        bench.core = bench_process.pin_driver()
        yield
    finally:
        bench.core = core
        os.sched_setaffinity(0, allowed)


def _medians(found, names, at):
    return {name: spread([turn[name][at] for turn in found])["median"] for name in names}


def _sends(server, frames, plan, shape):
    os.sync()  # What one has left to be written is not for the next to wait for.
    return bench_driver.measured_sends(server, frames, plan.turn_s, shape, warm_up_s=TURN_WARM_UP_S)


def _threads(server, plan):
    """Messages per second of blocking threads, and how busy their process is."""
    numbers = (server.port, THREADS, BODY_BYTES, THREADS_WARM_UP_S, plan.turn_s)
    done = subprocess.run(
        [sys.executable, str(bench_process.HERE / "bench_threads_alone.py"), *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise bench_process.CannotStart(f"the threads ended with {done.returncode}:\n{done.stderr}")
    figures = json.loads(done.stdout)
    return figures["messages_per_s"], figures["busy"]
