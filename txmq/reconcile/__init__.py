"""Nightly reconciliation of three ledgers: both banks' books and the log, on Spark.

``txmq reconcile`` is how it is used. What is here is for programs that read its rules and results,
and needs neither Spark nor Java::

    rules = read_rules(Path("recon.toml"))
    file = Path(rules.directory, "runs/2026-03-31/20e9d3b2e7409a25/run.json")
    result = msgspec.json.decode(file.read_bytes(), type=Run).result
    for total in result.totals:
        if total.group == "break":
            print(total.class_, total.transfers, ABOUT[Class(total.class_)].action)

A day is run from Python in a Spark that is gone afterwards::

    from txmq.reconcile.job import run
    from txmq.reconcile.progress import shown
    from txmq.reconcile.results import open_results
    from txmq.reconcile.spark import opened

    with shown(quiet=True) as progress, open_results(rules.directory) as results:
        with opened(memory="4g") as spark:
            done = run(rules, date(2026, 3, 31), spark, results, progress)
"""

from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.rules import Rules, read_rules
from txmq.reconcile.summary import Result, Run

__all__ = ["ABOUT", "Class", "Result", "Rules", "Run", "read_rules"]
