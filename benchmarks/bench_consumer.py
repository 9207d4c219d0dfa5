"""What our own consumer costs its process, and whether a client that runs for long grows."""

import json
import subprocess
import sys

from bench_process import CHECKOUT, HERE, CannotStart
from bench_sends import spread

CHILD_S = 900


def consumer(bench, plan):
    """Messages of 1 KB per CPU second of a process with a push consumer and an empty handler."""
    with bench.broker() as broker:
        runs = _child("consume", broker, plan.consumed, max(2, plan.turns // 4))
    return {
        "messages": plan.consumed,
        "per_cpu_s": spread([run["per_cpu_s"] for run in runs]),
        "per_s": spread([run["per_s"] for run in runs]),
    }


def soak(bench, plan):
    """How much a process grows that sends and consumes all the time, once it has warmed up."""
    with bench.broker() as broker:
        (run,) = _child("soak", broker, plan.soak_s)
    grown = run["grown_mb"]
    return {
        "seconds": plan.soak_s,
        "messages": run["messages"],
        "resident_mb": run["resident_mb"],
        "grown_mb": {"median": grown},
    }


def _child(what, broker, *arguments):
    command = [sys.executable, str(HERE / "bench_consumer_alone.py"), what, broker.names]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        timeout=CHILD_S,
        check=False,
    )
    if done.returncode != 0:
        raise CannotStart(f"the client ended with {done.returncode}")
    return json.loads(done.stdout)
