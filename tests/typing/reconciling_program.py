"""A program that uses every public name of txmq.reconcile, for mypy; it is never run.

What is declared here with a type is what a user relies on; a change that breaks such a line breaks
programs.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from txmq.reconcile import Class, Day, Result, Rules, Run, read_rules, reconcile, register


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


def reconciled(spark: SparkSession, config: Path, day: date, journal: DataFrame) -> int:
    """Run a day."""
    register(spark)
    rules: Rules = read_rules(config, {"ICBC_PASSWORD": "secret"})
    found: Day = reconcile(spark, rules=rules, date=day, banks={"icbc": journal})
    breaks: DataFrame = found.breaks
    assert breaks.columns == found.items.columns
    done: Run = found.write()
    assert done.result.verdict == found.verdict
    digest: str = done.result_digest
    rate: float = done.result.match_rate
    at_risk: dict[str, int] = done.result.at_risk
    assert digest
    assert rate <= 1
    assert at_risk is not None
    return len(told(done.result))
