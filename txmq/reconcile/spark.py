"""A Spark session for a run: started quietly, set so that results do not depend on it, and gone
without a trace afterwards.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, BinaryIO, Final, NamedTuple

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from txmq.errors import ConfigError, ReconcileRefused, UsageError
from txmq.reconcile.causes import SPARK_ERRORS, cause_of, last_words
from txmq.reconcile.java import check_java
from txmq.runtime.clock import SystemClock

__all__ = ["open_spark", "set_partition_count"]

REACH_S: Final = 10.0
"""To connect to a master of a standalone cluster."""
START_S: Final = 180.0
"""Until a cluster has taken the application; Spark's own attempts take up to 60."""
WORKER_S: Final = 60.0
"""Until a standalone cluster has given the first worker."""
STOP_S: Final = 20.0
LOOK_S: Final = 0.1
ROWS_A_PARTITION: Final = 1_000_000
"""Of a shuffle; some 200 bytes each where they are added up, at once in as many parts as there are
cores.
"""
PARTITIONS_MAX: Final = 2_000

_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_THROUGHPUT: Final = "-XX:+UseParallelGC"
"""A run waits for its end and nobody waits for its next answer; it is a seventh faster so."""
_COMPILED_ONCE: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:PerMethodTrapLimit=4",
    "-XX:PerBytecodeTrapLimit=0",
    "-XX:MetaspaceSize=256m",
    "-XX:FreqInlineSize=150",
    "-XX:InlineSmallCode=1200",
    "-XX:CompileThresholdScaling=4",
)
"""A run is over within minutes, and every query of it is code that Java has never seen: what it
bets on there, and loses, is compiled again and again. Half of its own sizes for what is compiled
together costs a third less to compile, and runs no slower; so does to wait four times as long
before anything is compiled, since what deserves it is run a million times.
"""
_TOLD_AT: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PORT: Final = "PYSPARK_GATEWAY_PORT"
_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105  # a name
_connect: Final[Callable[..., Any]] = launch_gateway
"""Which launches nothing where it is told of a Java that is there."""
_spark_home: Final[Callable[[], str]] = _find_spark_home
_LOCAL: Final = re.compile(r"local(?:$|\[|-cluster\[)")
_STANDALONE: Final = "spark://"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""By these Spark's Python writes whole stacks to standard error, before it raises the same."""
_PARTITIONS: Final = "spark.sql.shuffle.partitions"

_SAME_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.files.maxPartitionBytes": "256m",
    # Rows go to many files at once, and Linux is slow to be told of each few.
    "spark.shuffle.file.buffer": "256k",
    # What is kept for a moment, and what is written once and read once, is not worth squeezing.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.hadoop.parquet.summary.metadata.level": "NONE",
    # Of a hundred thousand accounts hardly any is found in the first of two maps.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Where in Python each column was named costs several questions to Java, and nobody is told.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    _PARTITIONS: "64",
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
    """A session of Spark's while inside; its Java is gone afterwards, whatever happened.

    Whatever Spark says goes into a file, which is removed where all went well. Ctrl-C inside is
    Python's own :class:`KeyboardInterrupt`.

    Args:
        master: Who does the work; this machine where nobody is named.
        memory: What Java gets here, or each executor of a cluster.
        cores: How many are used; all of them where it is left out.
        jars: Drivers and the like.
        settings: Spark's own, which go before ours.
        log: Where the file is; one among the temporary files where it is left out.
        ui: Whether Spark shows its pages; their address is in ``spark.sparkContext.uiWebUrl``.

    Raises:
        ConfigError: A setting cannot be.
        UsageError: A session is open in this process already.
        ReconcileRefused: Spark cannot be started, or what was done inside has failed in it.
    """
    plan = _Plan(
        master or f"local[{cores or '*'}]", memory, cores, tuple(jars), dict(settings or {})
    )
    _see(plan)
    home = Path(tempfile.mkdtemp(prefix="txmq-spark-"))
    if log is None:
        handle, name = tempfile.mkstemp(prefix="txmq-spark-", suffix=".log")
        os.close(handle)
        log = Path(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    keeps_log = False
    try:
        with (
            _quiet(),
            log.open("wb") as said,
            _started(plan, _conf(plan, home, ui), home, said) as session,
        ):
            try:
                yield session
            except SPARK_ERRORS as error:
                if isinstance(error, OSError) and _is_reached(*_java_of(session)):
                    raise  # Not Spark's fault.
                # It cannot be told any more once Java is gone.
                why = cause_of(error)
                said.write(traceback.format_exc().encode())
                raise ReconcileRefused(f"Spark failed: {why}; its log is {log}") from None
    except ReconcileRefused as refused:
        keeps_log = str(log) in str(refused)
        raise
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if not keeps_log:
            log.unlink(missing_ok=True)


def set_partition_count(spark: SparkSession, rows: int) -> None:
    """Cut shuffles into as many parts as so many rows need, unless somebody has said how many.

    Results do not depend on it.
    """
    if spark.conf.get(_PARTITIONS) != _SAME_EVERYWHERE[_PARTITIONS]:
        return
    cores = spark.sparkContext.defaultParallelism
    parts = max(cores, min(PARTITIONS_MAX, -(-rows // ROWS_A_PARTITION)))
    spark.conf.set(_PARTITIONS, str(-(-parts // cores) * cores))


class _Plan(NamedTuple):
    master: str
    memory: str
    cores: int | None
    jars: tuple[Path, ...]
    settings: dict[str, str]

    @property
    def is_local(self) -> bool:
        return _LOCAL.match(self.master) is not None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of the masters of a standalone cluster; any of them will do."""
        if not self.master.startswith(_STANDALONE):
            return []
        found = []
        for address in self.master.removeprefix(_STANDALONE).split(","):
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise ConfigError(f"{self.master!r} is no master; write spark://host:7077")
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def is_here(self) -> bool:
        """Whether nobody outside this machine takes part."""
        hosts = {host for host, _ in self.addresses}
        return self.is_local or (bool(hosts) and hosts <= _LOOPBACK)


def _see(plan: _Plan) -> None:
    """See what can be seen before anything is started."""
    if _MEMORY.fullmatch(plan.memory) is None:
        raise ConfigError(f"memory {plan.memory!r} is no size; write one such as 4g or 800m")
    for jar in plan.jars:
        if not jar.is_file():
            raise ConfigError(f"there is no jar {jar}")
    if _PORT not in os.environ:  # Else spark-submit has started Java.
        check_java(os.environ)
    if plan.addresses and not any(_is_reached(*address) for address in plan.addresses):
        raise ReconcileRefused(
            f"no master answers at {plan.master}: check that the master of the cluster runs, "
            "or leave --master out to work on this machine"
        )
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # it has no public name
        raise UsageError("a session of Spark's is open in this process; close it first")


def _is_reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError:
        return False
    return True


def _conf(plan: _Plan, home: Path, ui: bool) -> SparkConf:
    """All settings, ours and those that were given."""
    (home / "log4j2.properties").write_text(_LOG4J)
    options = [
        f"-Dlog4j2.configurationFile={(home / 'log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={home}",  # Spark's own temporary files lie there, unless told otherwise.
        "-XX:-UsePerfData",  # It would leave a file in /tmp.
        *_COMPILED_ONCE,
    ]
    if not any(_COLLECTOR.search(setting) for setting in plan.settings.values()):
        options.append(_THROUGHPUT)  # Two of them are refused by Java.
    found = {
        "spark.app.name": "txmq reconcile",
        "spark.master": plan.master,
        "spark.ui.enabled": str(ui).lower(),
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.driver.defaultJavaOptions": " ".join(f'"{option}"' for option in options),
        **_SAME_EVERYWHERE,
    }
    if not ui:
        # What each plan looks like, in full and again whenever it changes, is for its pages alone.
        found["spark.sql.ui.explainMode"] = "simple"
    if plan.is_local:
        found["spark.driver.memory"] = plan.memory
    else:
        found["spark.executor.memory"] = plan.memory
        if plan.cores is not None:
            found["spark.cores.max"] = str(plan.cores)
    if plan.is_here:
        found["spark.driver.host"] = found["spark.driver.bindAddress"] = "127.0.0.1"
    if plan.jars:
        found["spark.jars"] = ",".join(jar.resolve().as_uri() for jar in plan.jars)
    return SparkConf(loadDefaults=False).setAll(list({**found, **plan.settings}.items()))


@contextmanager
def _quiet() -> Iterator[None]:
    """What Spark's Python would tell by itself is told once, by what is raised."""
    loggers = [PySparkLogger.getLogger(logger) for logger in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    # An interrupted question to Java is told to the root, which would find itself a handler.
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


@contextmanager
def _started(plan: _Plan, conf: SparkConf, home: Path, said: BinaryIO) -> Iterator[SparkSession]:
    """Java, and a session in it."""
    java: Popen[bytes] | None = None
    gateway: Any = None
    session: SparkSession | None = None
    wanted = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable}
    if plan.is_here:
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        try:
            with _environment(wanted), _python_keeps_its_signals():
                place = {}
                if _PORT not in os.environ:  # Else spark-submit has started Java, and will end it.
                    java = _java(conf, home, said)
                    place = _place_of(java, home)
                with _environment(place), _bounded(java):
                    gateway = _connect(conf)
                    context = SparkContext(gateway=gateway, conf=conf)
                    session = SparkSession(context)
                _wait_for_a_worker(plan, session)
        except SPARK_ERRORS as error:
            said.write(traceback.format_exc().encode())
            why = cause_of(error) if gateway is not None else last_words(Path(said.name))
            raise ReconcileRefused(
                f"Spark does not start with {plan.master}: {why}; its log is {said.name}"
            ) from None
        yield session
    finally:
        _end(session, gateway, java)


def _java(conf: SparkConf, home: Path, said: BinaryIO) -> Popen[bytes]:
    """Java as Spark's Python would start it, but known before it is up, so that it can be ended."""
    command = [str(Path(_spark_home()) / "bin" / "spark-submit")]
    for name, value in conf.getAll():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return Popen(  # noqa: S603  # Spark's own program
        command,
        env={**os.environ, "SPARK_CONNECT_MODE": "0", _TOLD_AT: str(home / "place")},
        stdin=PIPE,  # Java ends by itself where nobody is at the other end.
        stdout=said,
        stderr=said,
        start_new_session=True,  # Ctrl-C is for us.
    )


def _place_of(java: Popen[bytes], home: Path) -> dict[str, str]:
    """Where Java listens for us, which it writes into a file once it does.

    Raises:
        ConnectionError: It has ended, or does not say.
    """
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + START_S
    while not (home / "place").exists():
        if java.poll() is not None or clock.monotonic() >= deadline:
            raise ConnectionError("Java does not start")
        pause.wait(LOOK_S)
    told = (home / "place").read_bytes()
    port, length = struct.unpack_from(">ii", told)
    return {_PORT: str(port), _SECRET: told[8 : 8 + length].decode()}


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """What Spark looks for there, while it is started."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _python_keeps_its_signals() -> Iterator[None]:
    """Spark's own answer to Ctrl-C asks Java on a connection that is waiting for an answer."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _bounded(java: Popen[bytes] | None) -> Iterator[None]:
    """End Java where a cluster says neither yes nor no."""
    if java is None:
        yield
        return
    timer = threading.Timer(START_S, java.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _java_of(session: SparkSession) -> tuple[str, int]:
    parameters: Any = session.sparkContext._gateway  # noqa: SLF001  # it has no public name
    return parameters.java_parameters.address, parameters.java_parameters.port


def _wait_for_a_worker(plan: _Plan, session: SparkSession) -> None:
    """A standalone cluster without workers takes applications, and lets them wait for ever.

    Raises:
        ReconcileRefused: None came.
    """
    if not plan.addresses or session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    scheduler: Any = session.sparkContext._jsc.sc()  # noqa: SLF001  # it has no public name
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + WORKER_S
    while scheduler.getExecutorMemoryStatus().size() < 2:  # The driver is counted too.
        if clock.monotonic() >= deadline:
            raise ReconcileRefused(
                f"{plan.master} has given no worker within {WORKER_S:.0f} s: see that one is "
                f"alive and has {plan.memory} of memory free, or ask for less with --memory"
            )
        pause.wait(LOOK_S)


def _end(session: SparkSession | None, gateway: Any, java: Popen[bytes] | None) -> None:
    """End the session politely, if that is possible, and Java in any case."""
    try:
        if gateway is not None and (java is None or java.poll() is None):
            # In a thread of its own: the connection of one that was interrupted is of no use.
            polite = threading.Thread(target=_stop, args=(session, gateway, java), daemon=True)
            polite.start()
            polite.join(STOP_S)
    finally:
        if java is not None:
            _see_gone(java, STOP_S if session is not None else 0)
            _forget()


def _stop(session: SparkSession | None, gateway: Any, java: Popen[bytes] | None) -> None:
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        if session is not None:
            session.stop()
    if java is not None:
        with suppress(Exception):
            gateway.shutdown()


def _see_gone(java: Popen[bytes], patience_s: float) -> None:
    """Wait for its end. One that is not up yet would not see that nobody is there any more."""
    assert java.stdin is not None
    with suppress(OSError):
        java.stdin.close()
    try:
        java.wait(patience_s)
    except TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(java.pid, signal.SIGKILL)  # Java, and the shell that was about to start it.
        java.wait()


def _forget() -> None:
    """Let the next session of this process begin from nothing."""
    SparkContext._active_spark_context = None  # noqa: SLF001  # Spark keeps them in its classes
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001
