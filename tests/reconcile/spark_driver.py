"""A process that has Spark for a while: how it begins, what it says, and what it leaves.

Called with a master or a Connect server and what to do with it; exits as ``txmq reconcile`` would.
"""

import json
import sys
import threading
from urllib.request import urlopen

import typer
from rich.progress import Progress as Bar

from txmq.cli.reconcile import report_failures, stop_on_signals
from txmq.reconcile.progress import Progress, pages_of
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
    def doubled(batches):
        yield from batches

    print(spark.range(4, numPartitions=2).mapInArrow(doubled, "id long").count())


def refused(spark):
    def raising(batches):
        raise ValueError("no such bank")
        yield from batches

    spark.range(1).mapInArrow(raising, "id long").collect()


def watched(spark):
    """A job of three tasks runs until the bar has shown it; Spark's pages say what it is for."""
    seen = threading.Event()

    class Watched(Bar):
        def update(self, task_id, *, total=None, completed=None):
            if total == 3:
                seen.set()

    progress = Progress(bar=Watched())
    with progress.tracking(spark), progress.stage("match"):
        slow = spark.range(3, numPartitions=3)
        slow = slow.selectExpr("java_method('java.lang.Thread', 'sleep', 20000L)")
        threading.Thread(target=lambda: (seen.wait(), spark.interruptAll())).start()
        try:
            slow.collect()
        except Exception as error:
            print(type(error).__name__)
    applications = f"{pages_of(spark)}/api/v1/applications"
    (job,) = json.load(urlopen(f"{applications}/{spark.conf.get('spark.app.id')}/jobs"))
    print(job["description"], job["status"])


def broken(spark):
    spark.range(10).selectExpr("raise_error('no such day')").collect()


def endless(spark):
    print("working", flush=True)
    spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()


def nothing(spark):
    threading.Event().wait()


def main(master, *works):
    try:
        place = {"remote" if master.startswith("sc://") else "master": master}
        ui = "watched" in works
        with (
            report_failures(),
            stop_on_signals(),
            open_spark(**place, memory="512m", ui=ui) as spark,
        ):
            for what in works:
                globals()[what](spark)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
