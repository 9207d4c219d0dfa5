"""What a scrape of the metrics each second costs sends.

Two brokers take turns of a second, both with the port for metrics. One of them is scraped once
within each of its turns, by a process of its own; all else is the same.
"""

import socket
import subprocess
import sys
from contextlib import contextmanager

import bench_driver
import bench_frames
from bench_sends import BODY_BYTES, COMPARED_AT, spread

SPEED, COST = "messages_per_s", "cpu_us_per_message"
WARM_UP_S = 0.05
SCRAPER = """
import sys, time
from urllib.request import urlopen
for line in sys.stdin:
    time.sleep(float(line))
    began = time.perf_counter()
    with urlopen(sys.argv[1], timeout=10) as found:
        found.read()
    print(time.perf_counter() - began, flush=True)
"""
"""Scrapes once for each line, which says after how many seconds."""


def scrape(bench, plan):
    """The ratios of scraped over unscraped turns, and how long a scrape took."""
    ports = [_free_port() for _ in range(2)]
    frames = bench_frames.sends(COMPARED_AT, BODY_BYTES)
    turn_s = min(1.0, plan.turn_s * 4)
    turns, took = [], []
    quiet, read = (
        bench.broker("sync", settings=[f"http_listen=127.0.0.1:{port}"]) for port in ports
    )

    def turn(server):
        return bench_driver.measured_sends(server, frames, turn_s, warm_up_s=WARM_UP_S)

    with quiet, read, scraper(ports[1]) as process:
        for server in (quiet, read):
            bench_driver.measured_sends(server, frames, turn_s, warm_up_s=plan.warm_up_s)
        for _ in range(plan.turns):
            before = turn(quiet)
            process.stdin.write(f"{turn_s / 2}\n")
            process.stdin.flush()
            turns.append((before, turn(read)))
            took.append(float(process.stdout.readline()) * 1e3)
    return {
        "scraped_over_quiet": spread([after[SPEED] / before[SPEED] for before, after in turns]),
        "cpu_scraped_over_quiet": spread([after[COST] / before[COST] for before, after in turns]),
        "scrape_ms": spread(took),
    }


@contextmanager
def scraper(port):
    """A process that scrapes on demand."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRAPER, f"http://127.0.0.1:{port}/metrics"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]
