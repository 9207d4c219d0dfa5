"""What reconciliation costs beside the least that anybody has to do, and how its cost grows.

Each measurement has a process and a Java of its own with 6 GB. The bare job reads the same Parquet,
joins the three ledgers once and adds up; reconciliation classifies, proves balances and writes all
of its tables. They take turns within the same run.
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
        "growth": {"median": round(times[1] / times[0] / (most / least), 3)},
        "peak_mb": {"median": max(each["peak_mb"]["whole"] for each in sizes.values())},
    }


def _of(bench, plan, size):
    folder = bench.new_folder()
    plan.say(f"reconcile: {size:,} transfers are written")
    made = _alone("days", folder, size)
    bare, whole = [], []
    for _ in range(plan.reconciled_turns):
        plan.say(f"reconcile: {size:,} transfers, joined and added up")
        bare.append(_alone("bare", folder, size))
        plan.say(f"reconcile: {size:,} transfers, reconciled")
        shutil.rmtree(folder / "out", ignore_errors=True)
        whole.append(_alone("whole", folder, size))
    shutil.rmtree(folder)
    ratios = [w["seconds"] / b["seconds"] for w, b in zip(whole, bare, strict=True)]
    return {
        "made": made,
        "bare_s": _spread([each["seconds"] for each in bare]),
        "whole_s": _spread([each["seconds"] for each in whole]),
        "whole_over_bare": _spread(ratios),
        "rows_per_s": _spread([each["rows_per_s"] for each in whole]),
        "items": whole[0]["items"],
        "peak_mb": {
            "bare": max(each["peak_mb"] for each in bare),
            "whole": max(each["peak_mb"] for each in whole),
        },
    }


def _alone(what, folder, size):
    command = [sys.executable, str(HERE / "bench_reconcile_alone.py"), what, str(folder), str(size)]
    there = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=there)
    return json.loads(done.stdout)


def _spread(figures):
    return spread(figures if len(figures) > 1 else figures * 2)
