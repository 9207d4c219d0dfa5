"""A Spark for tests, which have little data: it plans and compiles as little as it can."""

import os
import sys
from contextlib import contextmanager

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m "
        "-XX:MetaspaceSize=256m -Xms1g -Xmn512m"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # No query is large enough to be compiled, or to be planned again after each of its stages.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # A sort, a hash table and a broadcast take a page each, of 64 MB by default.
    "spark.buffer.pageSize": "1m",
    # Nobody reads a plan, or where Python named a column.
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def start():
    """The session of this process."""
    from py4j.java_gateway import java_import
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    session = builder.config(map=SETTINGS).getOrCreate()
    # Otherwise each call of it looks through hundreds of jars, in package after package.
    java_import(session._jvm, "org.apache.spark.api.python.PythonUtils")
    # Derby, the database within Spark, would write a log into this directory.
    session._jvm.java.lang.System.setProperty("derby.stream.error.file", os.devnull)
    return session


def lend(monkeypatch, session):
    """Let the command line work with this session, instead of a Java of its own."""
    from txmq.reconcile import spark

    @contextmanager
    def opened(*_, **__):
        yield session

    monkeypatch.setattr(spark, "open_spark", opened)
