"""One measurement of reconciliation, in a process and a Java of its own; JSON on stdout.

    python bench_reconcile_alone.py days FOLDER TRANSFERS     write a day, and the day before it
    python bench_reconcile_alone.py bare FOLDER TRANSFERS     join the three ledgers, and add up
    python bench_reconcile_alone.py plain FOLDER TRANSFERS    the same in a session of Spark's own
    python bench_reconcile_alone.py whole FOLDER TRANSFERS    reconcile, write all of it, and judge
    python bench_reconcile_alone.py by_hand FOLDER TRANSFERS  the same tables by a job of our own
    python bench_reconcile_alone.py before FOLDER TRANSFERS   reconcile the day before
    python bench_reconcile_alone.py next FOLDER TRANSFERS     the day as the next one, all checked

``bare`` is the least that anybody has to do: it reads the same Parquet with settings of Spark that
make it fast, and its result is one small table. ``plain`` shows what these settings gain: it has as
much memory and as many cores, and otherwise Spark's default settings.
"""

import json
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

from bench_process import tree_cpu_s
from bench_reconcile_by_hand import reconcile_by_hand
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from tests.reconcile.days import BANKS, Plan, schema_of, write_day
from tests.reconcile.frames import OF_BANKS, OF_THE_LOG
from tests.reconcile.whole_driver import extracted, rules_in
from txmq.reconcile import reconcile
from txmq.reconcile.results import Results
from txmq.reconcile.spark import open_spark

MEMORY = "6g"
LEGS = ("debit", "credit", "return")
BEFORE = "before"
ROWS_A_PART = 4_000_000
"""As many as a part of an extract has."""


def days(folder, plan):
    """Write the day, and the one before; and their extracts, for a first day and for a next one."""
    begun = time.perf_counter()
    before = write_day(folder / BEFORE, day_before(plan))
    day = write_day(folder, plan, before)
    with of_txmq(plan) as spark:
        extracted(spark, folder / "out", folder, plan)
        extracted(spark, folder / "next", folder / BEFORE, day_before(plan))
    extract = Path("extracts", plan.day.isoformat())
    shutil.copytree(folder / "out" / extract, folder / "next" / extract)
    seconds = time.perf_counter() - begun
    entries = sum(day.rows[f"{bank}/entries"] for bank in BANKS)
    return {
        "seconds": round(seconds, 1),
        "ledger_rows": entries,
        "log_records": day.rows["log/messages"],
    }


def day_before(plan):
    """As many other transfers."""
    return replace(plan, day=plan.day - timedelta(days=1), first=plan.transfers)


def frames(spark, folder):
    """The ledgers as Spark reads them."""
    found = {}
    for table in OF_BANKS:
        sides = (
            spark.read.schema(from_arrow_schema(schema_of(table)))
            .parquet(str(folder / bank / table.name))
            .withColumn("bank", f.lit(bank))
            for bank in BANKS
        )
        found[table.name] = reduce(DataFrame.unionByName, sides)
    for table in OF_THE_LOG:
        found[table.name] = spark.read.schema(from_arrow_schema(schema_of(table))).parquet(
            str(folder / "log" / table.name)
        )
    return SimpleNamespace(**found)


def bare(spark, folder, _):
    """The one three-way join, and its counts and sums by what is there."""
    ledgers = frames(spark, folder)
    sides = [
        ledgers.entries.where((f.col("bank") == bank) & f.col("kind").isin(*LEGS)).select(
            "key", f.col("amount").alias(bank)
        )
        for bank in BANKS
    ]
    logged = ledgers.messages.select("key", f.col("amount").alias("log"), "state")
    met = sides[0].join(logged, "key", "full_outer").join(sides[1], "key", "full_outer")
    names = (*BANKS, "log")
    status = [f.col(name).isNotNull().alias(f"in_{name}") for name in names]
    found = met.groupBy(*status, "state").agg(
        f.count("*").alias("transfers"), *(f.sum(name).alias(name) for name in names)
    )
    return {"rows": len(found.collect())}


def whole(spark, folder, plan):
    """A run of the day as the first of all days: it checks the extract, reconciles, writes all of
    it, and judges.
    """
    return run(spark, folder / "out", plan)


def before(spark, folder, plan):
    """A run of the day before, which the next one continues."""
    return run(spark, folder / "next", day_before(plan))


def next_(spark, folder, plan):
    """A run of the day after the one before: that one's tables are checked, its open items are
    carried on, and its ids may come again.
    """
    return run(spark, folder / "next", plan)


def run(spark, home, plan):
    rules = rules_in(home, plan)
    extract = Results(home).latest_extract(plan.day)
    day = reconcile(spark, rules=rules, date=plan.day, extract_id=extract)
    done = day.write()
    return {"items": sum(age.transfers for age in done.result.aging)}


def by_hand(spark, folder, plan):
    """The same tables, as an engineer writes such a job for these rules."""
    out = folder / "by_hand"
    return {"items": reconcile_by_hand(frames(spark, folder), plan.rules, plan.day, out)}


@contextmanager
def of_txmq(plan):
    """A session as a run has it."""
    with open_spark(memory=MEMORY) as spark:
        yield spark


@contextmanager
def of_queries(plan):
    """A session with what makes queries of this size fast: fitting partitions, no second planning,
    a collector for throughput, and a compiler of Java that does not compile twice.
    """
    parts = max(2, -(-3 * plan.transfers // 1_000_000))
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(-(-parts // 2) * 2),
        "spark.sql.files.maxPartitionBytes": "256m",
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
        "spark.shuffle.compress": "true",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=4 "
        "-XX:PerMethodTrapLimit=4 -XX:PerBytecodeTrapLimit=0 -XX:MetaspaceSize=256m "
        "-XX:FreqInlineSize=150 -XX:InlineSmallCode=1200 -XX:CompileThresholdScaling=4",
    }
    with open_spark(memory=MEMORY, settings=settings) as spark:
        yield spark


@contextmanager
def of_spark(_):
    """A session as Spark's own documentation begins one."""
    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", MEMORY)
    quiet = {
        "driver.host": "127.0.0.1",
        "driver.bindAddress": "127.0.0.1",
        "ui.enabled": "false",
        "ui.showConsoleProgress": "false",
    }
    for name, value in quiet.items():
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def measured(session, work, folder, plan):
    """How long the work took, Java's start not counted, how much CPU time of all processes, in how
    many jobs of Spark, and the most memory that Java has had.
    """
    with session(plan) as spark:
        pid = spark._jvm.java.lang.ProcessHandle.current().pid()
        before, begun = tree_cpu_s(os.getpid()), time.perf_counter()
        figures = work(spark, folder, plan)
        seconds, cpu = time.perf_counter() - begun, tree_cpu_s(os.getpid()) - before
        jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
        status = Path(f"/proc/{pid}/status").read_text()
    peak_kb = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    return figures | {
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu, 2),
        "jobs": jobs,
        "rows_per_s": round(3 * plan.transfers / seconds),
        "peak_mb": round(peak_kb / 1024),
    }


def main(what, folder, transfers):
    folder, plan = Path(folder), Plan(transfers=int(transfers), part=ROWS_A_PART)
    if what == "days":
        return days(folder, plan)
    sessions = {
        "bare": (of_queries, bare),
        "plain": (of_spark, bare),
        "whole": (of_txmq, whole),
        "by_hand": (of_queries, by_hand),
        "before": (of_txmq, before),
        "next": (of_txmq, next_),
    }
    return measured(*sessions[what], folder, plan)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
