"""What reconciliation costs beside the least that anybody has to do, and how its cost grows.

Each measurement has a process and a Java of its own with 6 GB. The bare job reads the same Parquet,
joins the three ledgers once and adds up, with the same settings and, plain, with Spark's own;
reconciliation classifies, proves balances and writes all of its tables. They take turns
within the same run.
"""

import json
import os
import shutil
import subprocess
import sys

from bench_process import CHECKOUT, HERE
from bench_sends import spread


def reconcile(bench, plan):
    """The figures of each size, and the growth from the first to the last."""
    sizes = {size: _of(bench, plan, size) for size in plan.reconciled}
    least, most = min(sizes), max(sizes)
    times = [figures["whole_s"]["median"] for figures in (sizes[least], sizes[most])]
    return {
        "sizes": {str(size): figures for size, figures in sizes.items()},
        "whole_over_bare": sizes[most]["whole_over_bare"],
        "whole_over_plain": sizes[most]["whole_over_plain"],
        "growth": {"median": round(times[1] / times[0] / (most / least), 3)},
        "peak_mb": {"median": max(each["peak_mb"]["whole"] for each in sizes.values())},
    }


def _of(bench, plan, size):
    folder = bench.new_folder()
    plan.say(f"reconcile: {size:,} transfers are written")
    made = _alone("days", folder, size)
    found = {"bare": [], "plain": [], "whole": []}
    for _ in range(plan.reconciled_turns):
        for what, each in found.items():
            plan.say(f"reconcile: {size:,} transfers, {what}")
            shutil.rmtree(folder / "out", ignore_errors=True)
            each.append(_alone(what, folder, size))
    shutil.rmtree(folder)
    seconds = {what: [one["seconds"] for one in each] for what, each in found.items()}
    return {
        "made": made,
        **{f"{what}_s": _spread(each) for what, each in seconds.items()},
        "whole_over_bare": _over(seconds["whole"], seconds["bare"]),
        "whole_over_plain": _over(seconds["whole"], seconds["plain"]),
        "rows_per_s": _spread([each["rows_per_s"] for each in found["whole"]]),
        "items": found["whole"][0]["items"],
        "peak_mb": {what: max(one["peak_mb"] for one in each) for what, each in found.items()},
    }


def _over(some, others):
    return _spread([one / other for one, other in zip(some, others, strict=True)])


def _alone(what, folder, size):
    command = [sys.executable, str(HERE / "bench_reconcile_alone.py"), what, str(folder), str(size)]
    there = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=there)
    return json.loads(done.stdout)


def _spread(figures):
    return spread(figures if len(figures) > 1 else figures * 2)
