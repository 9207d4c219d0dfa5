"""A process that has Spark for a while: how it begins, what it says, and what it leaves.

Called with a master and what to do with it; exits as ``txmq reconcile`` would.
"""

import sys
import threading

import typer

from txmq.cli.reconcile_options import report_failures, stop_on_signals
from txmq.reconcile.spark import open_spark

SEEN = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.parquet.compression.codec",
    "spark.driver.host",
)


def work(spark):
    print(sum(row[0] for row in spark.range(1_000, numPartitions=4).collect()))
    print(*(spark.conf.get(name) for name in SEEN))


def python(spark):
    import os

    parallel = spark.sparkContext.parallelize(range(4), 2)
    print(sum(parallel.collect()), parallel.map(lambda _: os.getpid()).count())


def broken(spark):
    spark.range(10).selectExpr("raise_error('no such day')").collect()


def endless(spark):
    print("working", flush=True)
    spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()


def nothing(spark):
    threading.Event().wait()


def main(master, *works):
    try:
        with report_failures(), stop_on_signals(), open_spark(master, memory="512m") as spark:
            for what in works:
                globals()[what](spark)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
