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
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
from bench_reconcile_by_hand import reconcile_by_hand
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from tests.reconcile.days import BANKS, Plan, schema_of, write_day
from tests.reconcile.frames import OF_BANKS, OF_THE_LOG, read
from txmq.reconcile.core import reconcile
from txmq.reconcile.differences import carry_on
from txmq.reconcile.extract.manifest import ExtractedSource, ExtractedTable, Manifest
from txmq.reconcile.job import FEW_ROWS
from txmq.reconcile.ledgers import CARRIED_ON, Role
from txmq.reconcile.proofs import proofs_of
from txmq.reconcile.results import Results, open_results
from txmq.reconcile.spark import open_spark
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import BANK_TABLES, LOG_TABLES
from txmq.reconcile.verdict import judge
from txmq.reconcile.workers import Workers

MEMORY = "6g"
RUN = "0123456789abcdef"
LEGS = ("debit", "credit", "return")
BEFORE = "before"
ROWS_A_PART = 4_000_000
"""As many as a part of an extract has."""


def days(folder, plan):
    """Write the day, and the one before."""
    begun = time.perf_counter()
    before = write_day(folder / BEFORE, day_before(plan))
    day = write_day(folder, plan, before)
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


def whole(spark, folder, plan, yesterday=()):
    """All that a run does between its extract and its report, from the control totals on."""
    end_ms = plan.rules.day.window(plan.day).end_ms
    manifest = Manifest.of(plan.rules, plan.day, tuple(sources(folder, end_ms)))
    ledgers, rows = read(folder), manifest.rows
    workers = Workers(spark if rows > FEW_ROWS else None)
    with open_results(folder / "out") as results:
        drafts = results.drafts(RUN)
        outcome = reconcile(
            ledgers | dict(yesterday), {}, plan.rules, plan.day, end_ms,
            rows=rows, workers=workers, drafts=drafts,
        )  # fmt: skip
        contents = {
            table: results.write_table(table, rows, plan.day, RUN)
            for table, rows in outcome.tables.items()
        }
        balances = results.table("balances", plan.day, RUN)
        found = proofs_of(outcome, balances.pieces(), plan.rules)
        proofs = carry_on(found, (), plan.rules, plan.day)
        contents["proofs"] = results.write_table("proofs", proofs, plan.day, RUN)
        tables = {table: results.table(table, plan.day, RUN) for table in contents}
        result = judge(tables, plan.rules, manifest, contents)
    return {"items": sum(age.transfers for age in result.aging)}


def before(spark, folder, plan):
    """The day before, as the first of all days."""
    return whole(spark, folder / BEFORE, day_before(plan))


def hashed(place):
    """The hashes of a folder's files."""
    files = LocalFolder(place)
    return [files.sha256(name) for name in files.files()]


def next_(spark, folder, plan):
    """The day after the one before: its open items are carried on, its ids may come again, and the
    files of the extract are hashed, which a run does before anything else.
    """
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(hashed, folder.glob("*/*/")))
    results, day = Results(folder / BEFORE / "out"), plan.day - timedelta(days=1)

    run, earlier = SimpleNamespace(day=day, run_id=RUN), read(folder / BEFORE)
    left = CARRIED_ON | {"matches": Role.AGREED, "closed": Role.CLOSED}
    yesterday = {role: results.files(name, run) for name, role in left.items()}
    yesterday[Role.OLD_ENTRIES] = earlier[Role.ENTRIES]
    yesterday[Role.OLD_MESSAGES] = earlier[Role.MESSAGES]
    return whole(spark, folder, plan, yesterday)


def by_hand(spark, folder, plan):
    """The same tables, as an engineer writes such a job for these rules."""
    out = folder / "by_hand"
    return {"items": reconcile_by_hand(frames(spark, folder), plan.rules, plan.day, out)}


def sources(folder, at_ms):
    """What was read, with its control totals."""
    for table in (*BANK_TABLES.values(), *LOG_TABLES.values()):
        for source in (*BANKS, "log"):
            place = LocalFolder(folder / source / table.name)
            if names := place.files():
                rows = pa.concat_tables(pq.ParquetFile(place.local / one).read() for one in names)
                amounts = {}
                if table.money:
                    wide = rows.set_column(0, "wide", rows[table.money].cast(pa.decimal128(38, 0)))
                    sums = wide.group_by("currency").aggregate([("wide", "sum")]).to_pylist()
                    amounts = {row["currency"] or "": int(row["wide_sum"]) for row in sums}
                control = Control(source, table.name, len(rows), amounts)
                extracted = ExtractedTable(table.name, control, content="", parts=())
                yield ExtractedSource(source, "log", "", at_ms, at_ms, (extracted,))


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
        before, begun = cpu_s(), time.perf_counter()
        figures = work(spark, folder, plan)
        seconds, cpu = time.perf_counter() - begun, cpu_s() - before
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


def cpu_s():
    """The CPU seconds of this process and of all below it: Java, and Spark's Python workers."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


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
