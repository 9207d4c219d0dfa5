"""What reconciliation costs beside the least that anybody has to do, and how its cost grows.

Each measurement has a process and a Java of its own with 6 GB. The bare job reads the same Parquet,
joins the three ledgers once and adds up, with the same settings and, plain, with Spark's own;
reconciliation classifies, proves balances and writes all of its tables, and so does a job written
by hand for these rules alone. The next day is the same one after an equally large day, whose open
items it carries on. All of them take turns within the same run.
"""

import json
import os
import shutil
import subprocess
import sys

from bench_process import CHECKOUT, HERE, CannotStart
from bench_sends import spread

COMPARED = 1_000_000
"""Up to so many transfers, the tables of both jobs are compared in this process."""
DAY = "2026-11-20"
OUT = {"whole": "out", "next": "next"}
"""Where a run writes; with its result in force, the next one would only compare."""


def reconcile(bench, plan):
    """The figures of each size, and the growth from the first to the last."""
    sizes = {size: _of(bench, plan, size) for size in plan.reconciled}
    least, most = min(sizes), max(sizes)
    times = [figures["whole_s"]["median"] for figures in (sizes[least], sizes[most])]
    return {
        "sizes": {str(size): figures for size, figures in sizes.items()},
        "whole_over_bare": sizes[most]["whole_over_bare"],
        "next_over_bare": sizes[most]["next_over_bare"],
        "whole_over_plain": sizes[most]["whole_over_plain"],
        "whole_cpu_over_by_hand": sizes[least]["whole_cpu_over_by_hand"],
        "growth": {"median": round(times[1] / times[0] / (most / least), 3)},
        "peak_mb": {"median": max(size["peak_mb"]["whole"] for size in sizes.values())},
    }


def _of(bench, plan, size):
    from bench_reconcile_by_hand import differences  # Other sections need no Spark.

    folder = bench.new_folder()
    plan.say(f"reconcile: {size:,} transfers are written")
    made = _alone("days", folder, size)
    _alone("before", folder, size)
    found = {"bare": [], "plain": [], "next": [], "whole": [], "by_hand": []}
    for _ in range(plan.reconciled_turns):
        for what, figures in found.items():
            plan.say(f"reconcile: {size:,} transfers, {what}")
            if what in OUT:
                for place in (f"runs/{DAY}", f"results/*/business_date={DAY}"):
                    for path in (folder / OUT[what]).glob(place):
                        shutil.rmtree(path)
            shutil.rmtree(folder / "by_hand", ignore_errors=True)
            figures.append(_alone(what, folder, size))
    if size <= COMPARED and (differing := differences(folder / "by_hand", folder / "out/results")):
        raise CannotStart(f"the job by hand and a reconciliation differ: {differing}")
    shutil.rmtree(folder)
    cpu = {what: [one["cpu_s"] for one in figures] for what, figures in found.items()}
    seconds = {what: [one["seconds"] for one in figures] for what, figures in found.items()}
    return {
        "made": made,
        **{f"{what}_s": _spread(samples) for what, samples in seconds.items()},
        "whole_over_bare": _over(seconds["whole"], seconds["bare"]),
        "next_over_bare": _over(seconds["next"], seconds["bare"]),
        "whole_over_plain": _over(seconds["whole"], seconds["plain"]),
        "cpu_s": {what: _spread(samples) for what, samples in cpu.items()},
        "whole_cpu_over_by_hand": _over(cpu["whole"], cpu["by_hand"]),
        "jobs": {what: max(one["jobs"] for one in figures) for what, figures in found.items()},
        "rows_per_s": _spread([run["rows_per_s"] for run in found["whole"]]),
        "items": found["whole"][0]["items"],
        "peak_mb": {
            what: max(one["peak_mb"] for one in figures) for what, figures in found.items()
        },
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
