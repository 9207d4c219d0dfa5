"""What filtering costs: a message under conditions of three terms, and fetches with each filter.

It is measured on the broker's own parts in a process of their own, so that nothing else is counted.
"""

import json
import subprocess
import sys

from bench_process import CHECKOUT, HERE
from bench_sends import spread


def filters(bench, plan):
    """CPU microseconds for each message; the check looks at the dearest of the conditions."""
    del bench
    turns = plan.filter_turns
    command = [sys.executable, str(HERE / "bench_filters_alone.py"), str(turns)]
    environment = {"PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    conditions = {name: spread(figures) for name, figures in found["message_us"].items()}
    return {
        "turns": turns,
        "conditions_us": conditions,
        "dearest_us": max(conditions.values(), key=lambda figures: figures["median"]),
        "fetch_us": {name: spread(figures) for name, figures in found["fetch_us"].items()},
    }
