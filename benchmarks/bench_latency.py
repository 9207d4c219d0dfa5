"""How long a message takes from a send to the handler of a push consumer, at a steady rate."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from bench_process import CHECKOUT, HERE, CannotStart

RATE = 1000
PATIENCE_S = 60
LOOKED_AT_S = 3.0
GAP_S = 0.001


def latency(bench, plan):
    """Latencies at 1,000 messages a second, and how long the machine itself stands still.

    Producer and consumer are one process, the broker is another. The gaps are those of a loop that
    does nothing: what the machine takes for others, no program can give back.
    """
    gaps = _gaps(min(LOOKED_AT_S, plan.latency_s))
    with bench.broker("async") as broker:
        numbers = (broker.names, plan.latency_s, RATE)
        done = subprocess.run(
            [sys.executable, str(HERE / "bench_latency_alone.py"), *map(str, numbers)],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S + plan.latency_s,
            check=False,
        )
    if done.returncode:
        raise CannotStart(f"the client ended with {done.returncode}:\n{done.stderr}")
    figures = json.loads(done.stdout)
    return {
        "seconds": plan.latency_s,
        "rate": RATE,
        "messages": figures["messages"],
        "p50_ms": figures["p50"],
        "p99_ms": {"median": figures["p99"]},
        "p99.9_ms": figures["p99.9"],
        "max_ms": figures["max"],
        "machine_gaps": gaps,
    }


def _gaps(seconds):
    """The gaps of an idle loop on each core: the longest, and their part of the time in all."""
    cores = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(len(cores)) as pool:
        looked = list(pool.map(lambda core: _gaps_of(core, seconds), cores))
    return {
        "longest_ms": max(round(max(gaps, default=0.0) * 1e3, 2) for gaps in looked),
        "part_of_time": max(round(sum(gaps) / seconds, 4) for gaps in looked),
    }


def _gaps_of(core, seconds):
    program = (
        f"import os, time, json; os.sched_setaffinity(0, {{{core}}}); clock = time.perf_counter\n"
        f"last = clock(); end = last + {seconds}; gaps = []\n"
        "while last < end:\n"
        "    now = clock()\n"
        f"    if now - last > {GAP_S}: gaps.append(now - last)\n"
        "    last = now\n"
        "print(json.dumps(gaps))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + seconds,
        check=True,
    )
    return json.loads(done.stdout)
