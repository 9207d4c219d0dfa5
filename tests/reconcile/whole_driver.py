"""A whole run of a seeded day on any master, in a process of its own.

python -m tests.reconcile.whole_driver MASTER DIRECTORY
"""

import sys
from functools import partial, reduce
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.reconcile.days import Plan
from txmq.reconcile import reconcile
from txmq.reconcile.extract.books import NOTES
from txmq.reconcile.extract.extraction import describe
from txmq.reconcile.extract.manifest import ExtractedSource
from txmq.reconcile.extract.written_sheets import write_sheets
from txmq.reconcile.spark import open_spark
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.tables import BANK_TABLES, LOG_TABLES

PLAN = Plan(transfers=2_000, planted=3, accounts=200, part=700, altered=2)


def rules_in(directory, plan=PLAN):
    return msgspec.structs.replace(plan.rules, directory=str(directory))


def extracted(spark, directory, folder, plan=PLAN):
    """A seeded day that was written into a folder, as an extract of its rules; returns its id."""
    early, rules = LocalFolder(directory / "early"), rules_in(directory, plan)
    end_ms, banks = rules.day.window(plan.day).end_ms, [bank.name for bank in rules.bank]
    for kind, names, tables in (("books", banks, BANK_TABLES), ("log", ["log"], LOG_TABLES)):
        frames = [
            spark.read.parquet(str(folder / name / table)).selectExpr(
                "*", f"'{name}' AS source", f"'{table}' AS table"
            )
            for name in names
            for table in tables
        ]
        whole = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
        notes = {name: f.lit(None).cast("string") for name in NOTES.names}
        write_sheets(whole.withColumns(notes), early.at(kind))
    sources = [ExtractedSource(name, "sqlite", "", end_ms, end_ms, ()) for name in banks]
    manifest = describe(spark, rules, plan.day, sources, early, end_ms)
    manifest.write(early)
    final = Path(rules.directory, "extracts", manifest.business_date, manifest.extract_id)
    final.parent.mkdir(parents=True)
    early.local.rename(final)
    return manifest.extract_id


def reconciled(spark, directory, extract_id):
    found = reconcile(spark, rules=rules_in(directory), date=PLAN.day, extract_id=extract_id)
    return found.write()


def main(master, directory):
    home = Path(directory)
    (extract,) = (home / "extracts" / PLAN.day.isoformat()).iterdir()
    with open_spark(master, memory="600m") as spark:
        reconciled(spark, home, extract.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
