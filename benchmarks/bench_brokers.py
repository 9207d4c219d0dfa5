"""What a second broker process adds: one and two brokers, each with two drivers, on two cores.

On two cores brokers and drivers share them, so the rate says little. What counts is how many
messages a second of a broker's processor time brings: with more cores, each broker has its own.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import bench_process
from bench_sends import spread

ALONE = Path(__file__).with_name("bench_brokers_alone.py")
COUNTS = (1, 2)
DRIVERS = 2
RATE, WORTH = "messages_per_s", "messages_per_cpu_s"


class Brokers(bench_process.Broker):
    """`txmq serve --brokers N`, and the processes below it."""

    def __init__(self, bench, count, flush):
        super().__init__(bench, bench.new_folder(), flush, ())
        self.count = count
        self.ports = []

    def command(self):
        return [*super().command(), "--brokers", str(self.count)]

    def port_in(self, line):
        found = re.match(r"ready brokers (\S+) names (\S+)", line)
        if found is None:
            return None
        self.ports = [int(address.rpartition(":")[2]) for address in found[1].split(";")]
        self.names = found[2]
        return self.ports[0]

    def pids(self):
        own = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

    def cpu_s(self):
        """CPU that the brokers have used; the supervisor is idle."""
        return sum(map(bench_process.cpu_s, self.pids()))

    def kill(self):
        if self.process is not None:
            self.stop()  # The brokers are processes of their own.


def brokers(bench, plan):
    """Rates and costs of one and of two brokers, in turns."""
    return {flush: _compared(bench, plan, flush) for flush in ("async", "sync")}


def _compared(bench, plan, flush):
    turns = {count: [] for count in COUNTS}
    with Brokers(bench, 1, flush) as one, Brokers(bench, 2, flush) as two:
        for turn in range(plan.broker_turns + 1):
            for server in (one, two):
                os.sync()
                found = _turn(server, plan.turn_s * 2)
                if turn:  # The first warms the servers up.
                    turns[server.count].append(found)
    rows = {
        count: {name: spread([turn[name] for turn in turns[count]]) for name in turns[count][0]}
        for count in COUNTS
    }
    pairs = list(zip(turns[1], turns[2], strict=True))
    return {
        "turns": plan.broker_turns,
        "brokers": rows,
        "two_over_one": spread([two[RATE] / one[RATE] for one, two in pairs]),
        "two_over_one_per_cpu_s": spread([two[WORTH] / one[WORTH] for one, two in pairs]),
    }


def _turn(server, seconds):
    cores = sorted(os.sched_getaffinity(0))[:2]
    for place, pid in enumerate(server.pids()):
        os.sched_setaffinity(pid, {cores[place % len(cores)]})
    # Each driver is on the other core than its broker, as far as there are two.
    ports = [server.ports[number % server.count] for number in range(DRIVERS)]
    places = [(1 + number % server.count) % len(cores) for number in range(DRIVERS)]
    drivers = [
        subprocess.Popen(
            [sys.executable, ALONE, str(port), str(seconds), str(cores[place])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for port, place in zip(ports, places, strict=True)
    ]
    for driver in drivers:
        driver.stdout.readline()  # It has warmed up.
    before, begun = server.cpu_s(), time.perf_counter()
    for driver in drivers:
        driver.stdin.write("go\n")
        driver.stdin.flush()
    messages = sum(json.loads(driver.communicate()[0])["messages"] for driver in drivers)
    elapsed, used = time.perf_counter() - begun, server.cpu_s() - before
    return {
        RATE: messages / elapsed,
        WORTH: messages / used,
        "cores_used": used / elapsed,
    }
