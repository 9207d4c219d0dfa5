"""A program that uses every public name of txmq.reconcile, for mypy; it is never run.

What is declared here with a type is what a user relies on; a change that breaks such a line breaks
programs.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec

from txmq.reconcile import Class, Result, Rules, Run, read_rules
from txmq.reconcile.job import run
from txmq.reconcile.progress import show_progress
from txmq.reconcile.results import open_results
from txmq.reconcile.spark import open_spark


def told(result: Result) -> dict[Class, str]:
    """What is to be done about what is broken."""
    found: dict[Class, str] = {}
    for total in result.totals:
        if total.group == "break":
            name = Class(total.class_)
            found[name] = f"{total.transfers}: {name.action}"
    return found


def read(path: Path) -> Run:
    """What a run came to."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def reconciled(config: Path, day: date) -> int:
    """Run a day."""
    rules: Rules = read_rules(config, {"ICBC_PASSWORD": "secret"})
    with (
        show_progress(quiet=True) as progress,
        open_results(rules.directory) as results,
        open_spark("local[2]", memory="2g") as spark,
    ):
        done: Run = run(rules, day, spark, results, progress)
    digest: str = done.result_digest
    rate: float = done.result.match_rate
    at_risk: dict[str, int] = done.result.at_risk
    assert digest
    assert rate <= 1
    assert at_risk is not None
    return len(told(done.result))
