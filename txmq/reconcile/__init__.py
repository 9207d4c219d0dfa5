"""Nightly reconciliation of three ledgers: both banks' books and the log, on Spark.

The command is ``txmq reconcile``. The names here are for programs that read its rules and results;
they need neither Spark nor Java::

    rules = read_rules(Path("recon.toml"))
    file = Path(rules.directory, "runs/2026-03-31/20e9d3b2e7409a25/run.json")
    result = msgspec.json.decode(file.read_bytes(), type=Run).result
    for total in result.totals:
        if total.group == "break":
            print(total.class_, total.transfers, Class(total.class_).action)

Run a day from Python, in a Spark that ends with the block::

    from txmq.reconcile.job import run
    from txmq.reconcile.progress import show_progress
    from txmq.reconcile.results import open_results
    from txmq.reconcile.spark import open_spark

    with show_progress(quiet=True) as progress, open_results(rules.directory) as results:
        with open_spark(memory="4g") as spark:
            done = run(rules, date(2026, 3, 31), spark, results, progress)
"""

from txmq.reconcile.classes import Class
from txmq.reconcile.rules import Rules
from txmq.reconcile.rules_file import read_rules
from txmq.reconcile.summary import Result, Run

__all__ = ["Class", "Result", "Rules", "Run", "read_rules"]
