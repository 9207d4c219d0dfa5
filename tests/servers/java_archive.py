"""Owns an archive of the classes that Spark loads: a Java that maps it starts in half the time.

``python -m tests.needs`` makes it once; without it, every Java reads and checks those classes anew.
"""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.packages import cache

CHECKOUT = Path(__file__).resolve().parents[2]
MAKE_SECONDS = 600
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""A Java whose class path is another one says so on its standard output, which scripts read."""


def archive():
    """The path of this Java's archive for this Spark."""
    java = os.environ.get("JAVA_HOME", "")
    asked = [str(Path(java, "bin", "java")) if java else "java", "-version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True, env=_plain()).stderr
    import pyspark

    # It also holds the jars' paths and times: a newly installed Spark needs a new archive.
    jars = Path(pyspark.__file__).parent / "jars"
    key = f"{version}{jars}{jars.stat().st_mtime_ns}".encode()
    return cache("java") / f"{hashlib.sha256(key).hexdigest()[:16]}.jsa"


def options():
    """The options of a Java that uses the archive, or none where it is not there."""
    try:
        path = archive()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path.exists() else ""


def make():
    """Make the archive if it is missing."""
    if (path := archive()).exists():
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    java = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={unfinished} {QUIET}"
    loading = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.java_archive"],
        cwd=CHECKOUT,
        env={**_plain(), "JAVA_TOOL_OPTIONS": java},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = loading.wait(MAKE_SECONDS)
    except BaseException:
        # Its Java would outlive it.
        os.killpg(loading.pid, signal.SIGKILL)
        unfinished.unlink(missing_ok=True)
        raise
    if code:
        raise OSError(f"exit code {code}")
    unfinished.replace(path)


def _plain():
    return {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}


def load_classes():
    """Have a Spark load what a reconciliation needs."""
    import tempfile

    from tests.servers import spark_session

    spark = spark_session.start()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("left", "right"):
            rows = spark.range(100).selectExpr("id AS key", "hash(id) AS value", "'x' AS text")
            rows.write.parquet(f"{folder}/{name}")
        left, right = (spark.read.parquet(f"{folder}/{name}") for name in ("left", "right"))
        joined = left.join(right.withColumnRenamed("value", "other"), "key", "full")
        joined.groupBy("key").agg({"value": "sum", "other": "max"}).orderBy("key").collect()
        left.selectExpr("key", "row_number() OVER (ORDER BY value) AS place").toArrow()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # It writes the archive as it ends.


if __name__ == "__main__":
    load_classes()
