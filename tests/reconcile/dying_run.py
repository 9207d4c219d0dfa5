"""A run in a process of its own, which is killed in the middle of a table, after so many others.

python -m tests.reconcile.dying_run DIRECTORY DAY TABLES
"""

import os
import signal
import sys
from datetime import date

from pyspark.sql import SparkSession

from tests.reconcile import breaks
from txmq.reconcile.results import open_results
from txmq.reconcile.storage import LocalFolder
from txmq.reconcile.tables import MATCHES, TOTALS

CLASSES = {"icbc/1": "parked", "icbc/2": "in-flight", "icbc/3": "dead-letter"}
RUN = "b" * 16
PARTS = 4
NAMES = ("matches", "items", "closed", "totals")


def tables(spark, day):
    """What the run comes to. What may be large is Spark's."""
    moved = spark.createDataFrame(
        [(f"icbc/{index}", "matched", index, "CNY") for index in range(500)], MATCHES.ddl
    )
    rows = [("parked", "break", "CNY", 1, 1, 1, 1, 1, 1), ("matched", "agreed", "CNY", *[2] * 6)]
    # What is large comes parted by its key; that is the same in every run.
    return {
        "matches": moved.repartition(PARTS, "key"),
        "items": breaks.items(CLASSES, day),
        "closed": breaks.items({}, day),
        "totals": breaks.table(TOTALS, rows),
    }


def write(results, spark, day, names=NAMES):
    found = tables(spark, day)
    return {name: results.write_table(name, found[name], day, RUN) for name in names}


def main():
    directory, day, count = sys.argv[1], date.fromisoformat(sys.argv[2]), int(sys.argv[3])
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    with open_results(directory) as results:
        write(results, spark, day, NAMES[:count])
        LocalFolder.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write(results, spark, day, NAMES[count:])


if __name__ == "__main__":
    main()
