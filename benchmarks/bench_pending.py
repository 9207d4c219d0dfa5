"""What open transactions cost: memory for each, a round of checks among many, and a restart.

Memory and rounds are measured on the broker's own parts in a process of their own, so that nothing
else is counted; the restart is a broker's, killed with all of them open. Memory is what each takes
that waits for its check, or whose check waits for a producer, whichever is more.
"""

import json
import subprocess
import sys

import bench_driver
import bench_frames
from bench_process import CHECKOUT, HERE
from bench_sends import spread

BODY_BYTES = 100
FEW = 10_000


def pending(bench, plan):
    """The figures, with as many open transactions as the plan says."""
    plan.say(f"pending: {plan.open_transactions:,} in memory")
    many = _alone("many", plan.open_transactions)
    few = _alone("few", FEW)
    ratios = [big / small for big, small in zip(many["rounds"], few["rounds"], strict=True)]
    return {
        "open": plan.open_transactions,
        "bytes_each": many["bytes_each"] | {"median": max(many["bytes_each"].values())},
        "check_us": {str(FEW): few["check_us"], str(plan.open_transactions): many["check_us"]},
        "round_among_many_over_few": spread(ratios),
        "restart": _restart(bench, plan),
    }


def _alone(name, count):
    command = [sys.executable, str(HERE / "bench_pending_alone.py"), name, str(count)]
    environment = {"PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def _restart(bench, plan):
    with bench.broker("async") as empty:
        nothing_s = empty.start_s
    with bench.broker("async") as broker:
        link = bench_driver.Link(broker.port)
        template = bench_frames.half_template(BODY_BYTES)
        plan.say(f"pending: {plan.open_transactions:,} half messages are sent")
        before = broker.rss_mb()
        for first in range(0, plan.open_transactions, 1000):
            frames = [template.fill(b"%032X" % (first + n)) for n in range(1000)]
            link.send(b"".join(frames))
            left = len(frames)
            while left:
                left -= link.answers()
        grown = broker.rss_mb() - before
        link.close()
        broker.kill()
        broker.start()
        return {
            "ready_s": round(broker.start_s, 2),
            "transactions_per_s": round(plan.open_transactions / (broker.start_s - nothing_s)),
            "rss_mb": broker.rss_mb(),
            "rss_mb_grown_while_they_came": round(grown, 1),
        }
