"""A Spark session for a run: it is quiet, has settings that keep results the same everywhere, and
leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from txmq.errors import ConfigError, ReconcileRefused, UsageError
from txmq.reconcile.causes import SPARK_ERRORS, cause_of, last_words
from txmq.reconcile.java import check_java

__all__ = ["check_reach", "fit_to_rows", "has_cluster", "open_spark", "warm_up"]

REACH_S: Final = 10.0
"""The limit for connecting to a master of a standalone cluster."""
START_S: Final = 180.0
"""The limit until a cluster accepts the application; Spark's own attempts take up to 60."""
WORKER_S: Final = 60.0
"""The limit until a standalone cluster gives the first worker."""
STOP_S: Final = 20.0
_POLL_S: Final = 0.1
ROWS_A_PARTITION: Final = 1_000_000
"""The rows in a partition of a shuffle. Adding up a row takes some 200 bytes, in as many partitions
at once as the machine has cores.
"""
PARTITIONS_MAX: Final = 2_000
FEW_ROWS: Final = 300_000
"""Up to so many rows, Spark takes longer to compile a query than to interpret it."""

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_THROUGHPUT: Final = "-XX:+UseParallelGC"
"""A run needs throughput and not short pauses; this collector makes it a seventh faster."""
_COMPILED_ONCE: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:PerMethodTrapLimit=4",
    "-XX:PerBytecodeTrapLimit=0",
    "-XX:MetaspaceSize=256m",
    "-XX:FreqInlineSize=150",
    "-XX:InlineSmallCode=1200",
    "-XX:CompileThresholdScaling=4",
)
"""A run takes minutes, and each of its queries is new code to Java. Java compiles on assumptions,
and compiles again when they fail; the first two limits stop that. Half of Java's default inlining
sizes compile a third faster and run equally fast. So does compiling four times later, since the
code that matters runs a million times.
"""
_launch: Final[Callable[..., Any]] = launch_gateway
_PORT: Final = "PYSPARK_GATEWAY_PORT"
"""The variable is set if spark-submit started Java; PySpark then connects to that process."""
_LOCAL: Final = re.compile(r"local(?:$|\[|-cluster\[)")
_STANDALONE: Final = "spark://"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark writes whole stacks to standard error with these, and then raises the same error."""
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_COMPILED: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
_INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_UNFITTED: Final = {_PARTITIONS: "64", **_COMPILED}
"""Settings that depend on the size of a day, as they are before it is known."""

_SAME_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Each query has one shuffle of rows that are spread by a hash, so planning it again after each
    # stage gains nothing.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.maxPartitionBytes": "256m",
    # Rows go to many files at once, and each small write costs a system call.
    "spark.shuffle.file.buffer": "256k",
    # Compression does not pay for what is cached briefly, or written once and read once.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.hadoop.parquet.summary.metadata.level": "NONE",
    # With a hundred thousand accounts, the first of two maps has hardly any hits.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # It records where Python named each column, with several calls to Java, for nothing.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    **_UNFITTED,
}

_LOG4J: Final = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.kept.ref = kept
appender.kept.type = Console
appender.kept.name = kept
appender.kept.target = SYSTEM_ERR
appender.kept.layout.type = PatternLayout
appender.kept.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c: %m%n%ex
"""


@contextmanager
def open_spark(
    master: str | None = None,
    *,
    memory: str = "4g",
    cores: int | None = None,
    jars: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    ui: bool = False,
) -> Iterator[SparkSession]:
    """Start a Spark session, and end its Java process at the end of the block in any case.

    Spark's own output goes into a log file, which is removed if all went well. Ctrl-C in the block
    raises Python's own :class:`KeyboardInterrupt`.

    Args:
        master: The cluster's master; this machine if left out.
        memory: For Java here, or for each executor of a cluster.
        cores: How many cores to use; all if left out.
        jars: JDBC drivers and other libraries.
        settings: Spark settings, which override ours.
        log: Path of the log file; a temporary file if left out.
        ui: True for Spark's web pages; ``spark.sparkContext.uiWebUrl`` is their address.

    Raises:
        ConfigError: A setting is invalid.
        UsageError: This process has a Spark session already.
        ReconcileRefused: Spark cannot be started, or failed in the block.
    """
    plan = _Plan(master or f"local[{cores or '*'}]", memory, cores, jars, settings or {})
    _check(plan)
    with TemporaryDirectory(prefix="txmq-spark-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        conf, log = _conf(plan, home, ui), log or home.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with _silence_loggers(), log.open("wb") as output, _start(plan, conf, output) as session:
            yield session


def check_reach(spark: SparkSession, uri: str) -> None:
    """Check that Spark sees a folder that Python has written into.

    Raises:
        ReconcileRefused: Spark lacks the file system's library, or sees other files.
    """
    hadoop: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to Hadoop
    try:
        path = hadoop.org.apache.hadoop.fs.Path(uri)
        is_there = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(path)  # noqa: SLF001
    except Py4JJavaError as error:
        version = hadoop.org.apache.hadoop.util.VersionInfo.getVersion()
        raise ReconcileRefused(
            f"directory {uri!r} cannot be reached from Spark: {cause_of(error)}; give the library "
            f"of its file system for Hadoop {version} with --jar, and its settings in "
            "core-site.xml of HADOOP_CONF_DIR"
        ) from None
    if not is_there:
        raise ReconcileRefused(
            f"directory {uri!r} is empty for Spark, and Python has written into it: compare fs.* "
            "in core-site.xml of HADOOP_CONF_DIR with the environment and with --spark"
        )


def has_cluster(spark: SparkSession) -> bool:
    """True if other processes than this one and its Java do the work, maybe on other machines."""
    return _LOCAL.match(spark.conf.get("spark.master") or "") is None


def fit_to_rows(spark: SparkSession, rows: int) -> None:
    """Set what depends on the size of a day, unless the user has set it. Results do not depend on
    it.
    """
    cores = spark.sparkContext.defaultParallelism
    parts = max(cores, min(PARTITIONS_MAX, -(-rows // ROWS_A_PARTITION)))
    fitting = {_PARTITIONS: str(-(-parts // cores) * cores)}
    fitting |= _COMPILED if rows > FEW_ROWS else _INTERPRETED
    at_start = spark.sparkContext.getConf()
    for name, value in fitting.items():
        if at_start.get(name) == _UNFITTED[name]:
            spark.conf.set(name, value)


def warm_up(spark: SparkSession) -> None:
    """Have Java load what every query needs, in time that it would spend waiting."""
    spark.range(2).repartition(2).groupBy("id").count().collect()


class _Plan(NamedTuple):
    master: str
    memory: str
    cores: int | None
    jars: Sequence[Path]
    settings: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        return _LOCAL.match(self.master) is not None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The masters of a standalone cluster; one that answers is enough."""
        if not self.master.startswith(_STANDALONE):
            return []
        found = []
        for address in self.master.removeprefix(_STANDALONE).split(","):
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise ConfigError(f"{self.master!r} is not a master: write spark://host:7077")
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def is_here(self) -> bool:
        """True if only this machine takes part."""
        hosts = {host for host, _ in self.addresses}
        return self.is_local or (bool(hosts) and hosts <= _LOOPBACK)


def _check(plan: _Plan) -> None:
    """Check everything that can be checked before Java starts."""
    if _MEMORY.fullmatch(plan.memory) is None:
        raise ConfigError(f"memory {plan.memory!r} is not a size: write one such as 4g or 800m")
    for jar in plan.jars:
        if not jar.is_file():
            raise ConfigError(f"jar {jar} does not exist")
    if _PORT not in os.environ:
        check_java(os.environ)
    if plan.addresses and not any(_is_reached(*address) for address in plan.addresses):
        raise ReconcileRefused(
            f"no master answers at {plan.master}: check that the master of the cluster runs, "
            "or leave --master out to work on this machine"
        )
    if SparkSession.getActiveSession() is not None:
        raise UsageError("this process has an open Spark session; close it first")


def _is_reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError:
        return False
    return True


def _conf(plan: _Plan, home: Path, ui: bool) -> SparkConf:
    """All settings: ours, and the caller's over them."""
    (home / "log4j2.properties").write_text(_LOG4J)
    options = [
        f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={home}",  # Spark puts its temporary files there by default.
        "-XX:-UsePerfData",  # It would leave a file in /tmp.
        *_COMPILED_ONCE,
    ]
    if not any(_COLLECTOR.search(setting) for setting in plan.settings.values()):
        options.append(_THROUGHPUT)  # Java refuses to start with two collectors.
    found = {
        "spark.app.name": "txmq reconcile",
        "spark.master": plan.master,
        "spark.ui.enabled": str(ui).lower(),
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.driver.defaultJavaOptions": " ".join(f'"{option}"' for option in options),
        **_SAME_EVERYWHERE,
    }
    if not ui:
        # Only Spark's pages show each plan in full, and again whenever it changes.
        found["spark.sql.ui.explainMode"] = "simple"
    found["spark.driver.memory" if plan.is_local else "spark.executor.memory"] = plan.memory
    if plan.cores is not None and not plan.is_local:
        found["spark.cores.max"] = str(plan.cores)
    if plan.is_here:
        found["spark.driver.host"] = found["spark.driver.bindAddress"] = "127.0.0.1"
    if plan.jars:
        found["spark.jars"] = ",".join(jar.resolve().as_uri() for jar in plan.jars)
    return SparkConf(loadDefaults=False).setAll(list({**found, **plan.settings}.items()))


@contextmanager
def _silence_loggers() -> Iterator[None]:
    """Silence PySpark's loggers: the exceptions have the same texts."""
    with ExitStack() as stack:
        for name in _LOGGERS:
            logger = PySparkLogger.getLogger(name)
            stack.callback(setattr, logger, "disabled", logger.disabled)
            logger.disabled = True
        # Py4J logs an interrupted call to the root logger, which would otherwise add a handler.
        handler = logging.NullHandler()
        logging.root.addHandler(handler)
        stack.callback(logging.root.removeHandler, handler)
        yield


@contextmanager
def _start(plan: _Plan, conf: SparkConf, output: BinaryIO) -> Iterator[SparkSession]:
    """Start a Java process and a session in it, and end both with the block.

    Its log is removed unless an error names it.
    """
    gateway: Any = None
    session: SparkSession | None = None
    log = Path(output.name)
    has_started = is_log_named = False
    wanted = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable}
    if plan.is_here:
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Java writes to the log, and Ctrl-C of a terminal reaches Python alone.
    popen = {"stdout": output, "stderr": output, "start_new_session": True}
    try:
        with _set_environment(wanted), _hold_signals() as release_signals:
            gateway = _launch(conf, popen)
            release_signals()
            with _limit_start(gateway.proc):
                SparkContext(gateway=gateway, conf=conf)
                session = SparkSession.builder.getOrCreate()
            _wait_for_a_worker(plan, session, gateway)
        has_started = True
        yield session
    except SPARK_ERRORS as error:
        if has_started and isinstance(error, OSError):
            java = gateway.gateway_parameters
            if _is_reached(java.address, java.port):
                raise  # Java answers, so this is not Spark's error.
        what = "Spark failed" if has_started else f"Spark does not start with {plan.master}"
        # The cause needs a Java that still runs.
        why = cause_of(error) if gateway is not None else last_words(log)
        output.write(traceback.format_exc().encode())
        is_log_named = True
        raise ReconcileRefused(f"{what}: {why}; its log is {log}") from None
    finally:
        if gateway is not None:
            _end(session, gateway)
        if not is_log_named:
            log.unlink(missing_ok=True)


@contextmanager
def _set_environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while Spark starts."""
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _hold_signals() -> Iterator[Callable[[], None]]:
    """Hold a signal until Java has started, since it could not be ended before.

    A second signal acts at once. The block gets the function that ends the holding. Its end also
    undoes Spark's handler for Ctrl-C, which calls Java on a connection that waits for an answer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held: list[int] = []

    def hold(number: int, _: object) -> None:
        held.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def release() -> None:
        restore()
        while held:
            signal.raise_signal(held.pop())

    for number in before:
        signal.signal(number, hold)
    try:
        yield release
    finally:
        release()


@contextmanager
def _limit_start(java: Popen[bytes] | None) -> Iterator[None]:
    """Kill Java if a cluster neither accepts nor refuses the application."""
    timer = threading.Timer(START_S, java.kill if java is not None else lambda: None)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_for_a_worker(plan: _Plan, session: SparkSession, gateway: Any) -> None:
    """Wait for a worker: on a standalone cluster without any, Spark would wait without end.

    Raises:
        ReconcileRefused: The cluster gave no worker in time.
    """
    if not plan.addresses or session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    scheduler = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    pause = threading.Event()
    for _ in range(round(WORKER_S / _POLL_S)):
        if scheduler.getExecutorMemoryStatus().size() > 1:  # The driver is counted too.
            return
        pause.wait(_POLL_S)
    raise ReconcileRefused(
        f"{plan.master} gave no worker within {WORKER_S:.0f} s: check that a worker is alive and "
        f"has {plan.memory} of memory free, or ask for less with --memory"
    )


def _end(session: SparkSession | None, gateway: Any) -> None:
    """Stop the session if it still answers, and end Java in any case."""
    java: Popen[bytes] | None = gateway.proc

    def stop() -> None:
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            if session is not None:
                session.stop()
        if java is not None:
            with suppress(Exception):
                gateway.shutdown()

    try:
        if java is None or java.poll() is None:
            # In its own thread: an interrupted thread's connection to Java is unusable.
            stopper = threading.Thread(target=stop, daemon=True)
            stopper.start()
            stopper.join(STOP_S)
    finally:
        if java is not None:
            _end_process(java, STOP_S if session is not None else 0)
            # PySpark keeps the dead gateway in its class, and the next session would use it.
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _end_process(java: Popen[bytes], patience_s: float) -> None:
    """Wait for Java's end, or kill it: while it starts it ignores that its input closed."""
    assert java.stdin is not None
    with suppress(OSError):
        java.stdin.close()
    try:
        java.wait(patience_s)
    except TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(java.pid, signal.SIGKILL)  # Java, and the shell around it.
        java.wait()
