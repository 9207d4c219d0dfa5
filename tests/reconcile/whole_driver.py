"""A whole run of a seeded day, by whatever master, in a process of its own.

python -m tests.reconcile.whole_driver MASTER DIRECTORY
"""

import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from tests.reconcile.days import Plan, write_day
from txmq.reconcile.extract.manifest import ExtractedSource, Manifest
from txmq.reconcile.extract.table_writer import TableWriter
from txmq.reconcile.job import run
from txmq.reconcile.progress import Progress
from txmq.reconcile.results import open_results
from txmq.reconcile.spark import open_spark
from txmq.reconcile.tables import ACCOUNTS, ENTRIES, FAILURES, LATER, MESSAGES, OFFSETS, OPENING

PLAN = Plan(transfers=2_000, planted=3, accounts=200, part=700, altered=2)
OF_BANKS, OF_THE_LOG = (ENTRIES, OPENING, LATER, ACCOUNTS), (MESSAGES, FAILURES, OFFSETS)


def rules_in(directory):
    return msgspec.structs.replace(PLAN.rules, directory=str(directory))


def extracted(directory, folder):
    """The seeded day as an extract of these rules; returns its id."""
    write_day(folder, PLAN)
    early, rules = directory / "early", rules_in(directory)
    banks = [bank.name for bank in rules.bank]
    sources = tuple(
        ExtractedSource(
            name,
            "sqlite" if name in banks else "log",
            "",
            *[rules.day.window(PLAN.day).end_ms] * 2,
            tuple(written(folder, early, name, table) for table in tables),
        )
        for name, tables in [*((bank, OF_BANKS) for bank in banks), ("log", OF_THE_LOG)]
    )
    manifest = Manifest.of(rules, PLAN.day, sources)
    manifest.write(early)
    final = Path(rules.directory, "extracts", manifest.business_date, manifest.extract_id)
    final.parent.mkdir(parents=True)
    early.rename(final)
    return manifest.extract_id


def written(folder, directory, source, table):
    with TableWriter(table, directory / source) as writer:
        for batch in pq.read_table(folder / source / table.name).to_batches():
            writer.write(batch)
    return writer.extracted()


def reconciled(spark, directory, extract_id):
    with open_results(directory) as results:
        rules = rules_in(directory)
        return run(rules, PLAN.day, spark, results, Progress(), extract_id=extract_id)


def main(master, directory):
    home = Path(directory)
    (extract,) = (home / "extracts" / PLAN.day.isoformat()).iterdir()
    with open_spark(master, memory="600m") as spark:
        reconciled(spark, home, extract.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
