"""What a scrape of the metrics each second costs sends.

Two brokers take turns of a second, both with the port for metrics. One of them is scraped once
within each of its turns; all else is the same.
"""

import socket
import threading
import time
import urllib.request

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, spread

SPEED, COST = "messages_per_s", "cpu_us_per_message"
WARM_UP_S = 0.05


def scrape(bench, plan):
    """The ratios of scraped over unscraped turns, and how long a scrape took."""
    ports = [_free_port() for _ in range(2)]
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turn_s = min(1.0, plan.turn_s * 4)
    took, turns = [], []
    quiet, read = (
        bench.broker("sync", settings=[f"http_listen=127.0.0.1:{port}"]) for port in ports
    )
    with quiet, read:
        for server in (quiet, read):
            bench_driver.measured_sends(server, frames, turn_s, warm_up_s=plan.warm_up_s)
        for _ in range(plan.turns):
            before = _turn(quiet, frames, turn_s)
            turns.append((before, _turn(read, frames, turn_s, ports[1], took)))
    return {
        "scraped_over_quiet": spread([after[SPEED] / before[SPEED] for before, after in turns]),
        "cpu_scraped_over_quiet": spread([after[COST] / before[COST] for before, after in turns]),
        "scrape_ms": spread(took),
    }


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _turn(server, frames, seconds, port=None, took=None):
    """One turn; with a port a thread scrapes in the middle of it."""
    if port is None:
        return bench_driver.measured_sends(server, frames, seconds, warm_up_s=WARM_UP_S)

    def page():
        began = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as found:
            found.read()
        took.append(round((time.perf_counter() - began) * 1e3, 3))

    timer = threading.Timer(WARM_UP_S + seconds / 2, page)
    timer.start()
    try:
        return bench_driver.measured_sends(server, frames, seconds, warm_up_s=WARM_UP_S)
    finally:
        timer.join()
