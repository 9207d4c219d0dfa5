"""Nightly reconciliation of three ledgers: both banks' books and the log, on Spark.

One function reconciles a day, in the Spark session of your notebook or job::

    from txmq.reconcile import reconcile

    day = reconcile(spark, rules="recon.toml", date="2026-03-31")
    print(day.verdict)
    day.breaks.groupBy("class", "currency").sum("amount").show()
    day.write()

The command ``txmq reconcile`` calls this function. Programs that read rules and results need
neither Spark nor Java::

    rules = read_rules(Path("recon.toml"))
    file = Path(rules.directory, "runs/2026-03-31/20e9d3b2e7409a25/run.json")
    result = msgspec.json.decode(file.read_bytes(), type=Run).result
    for total in result.totals:
        if total.group == "break":
            print(total.class_, total.transfers, Class(total.class_).action)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from txmq.reconcile.classes import Class
from txmq.reconcile.rules import Rules
from txmq.reconcile.rules_file import read_rules
from txmq.reconcile.summary import Result, Run
from txmq.settings.extras import named_extra

if TYPE_CHECKING:
    from txmq.reconcile.day import Day, reconcile
    from txmq.reconcile.log.source import register

__all__ = ["Class", "Day", "Result", "Rules", "Run", "read_rules", "reconcile", "register"]

_ON_SPARK: Final = {
    "Day": "txmq.reconcile.day",
    "reconcile": "txmq.reconcile.day",
    "register": "txmq.reconcile.log.source",
}
"""Imported on first use, since rules and results need no Spark."""


def __getattr__(name: str) -> object:
    if name not in _ON_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with named_extra():
        found = globals()[name] = getattr(import_module(_ON_SPARK[name]), name)
    return found
