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
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from txmq.errors import ConfigError, ReconcileRefused, UsageError
from txmq.reconcile.java import check_java

__all__ = ["SPARK_ERRORS", "open_spark"]

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (Py4JError, PySparkException, OSError)
"""The exceptions raised when Spark or the connection to its Java fails."""

REACH_S: Final = 10.0
"""The limit for connecting to a master of a standalone cluster."""
START_S: Final = 180.0
"""The limit until a cluster accepts the application; Spark's own attempts take up to 60."""
WORKER_S: Final = 60.0
"""The limit until a standalone cluster gives the first worker."""
_POLL_S: Final = 0.1
STOP_S: Final = 20.0
CAUSE_CHARS_MAX: Final = 400
"""Longer texts, such as plans and stacks, belong in the log."""
_MEMORY: Final = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)
_JAVA_OPTIONS: Final = (
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    "-XX:-UsePerfData",  # It would leave a file in /tmp.
)
_Result = TypeVar("_Result")
_launch: Final[Callable[..., Any]] = launch_gateway
_PORT: Final = "PYSPARK_GATEWAY_PORT"
"""The variable is set if spark-submit started Java; PySpark then connects to that process."""
_STANDALONE: Final = "spark://"
_LOOPBACK: Final = "127.0.0.1"
_CAUSED_BY: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_JAVA_NAME: Final = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?(?:[a-z_][\w$]*\.)+([A-Z][\w$]*)(?:: ?|$)"
)
_ERROR: Final = re.compile(r"Error|Exception|Invalid|Could not|refused")
_GONE: Final = (
    "its Java process ended; if the machine killed it for lack of memory, give it less with "
    "--memory"
)
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark writes whole stacks to standard error with these, and then raises the same error."""
_SAME_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Hashes do not get smaller, and each small write costs a system call.
    "spark.shuffle.compress": "false",
    "spark.shuffle.file.buffer": "256k",
    "spark.ui.showConsoleProgress": "false",
}


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
    master = master or f"local[{cores or '*'}]"
    own = _settings(master, memory, cores, jars)
    _check_start(master)
    with TemporaryDirectory(prefix="txmq-spark-", ignore_cleanup_errors=True) as folder:
        home, wanted = Path(folder), dict(settings or {})
        own["spark.ui.enabled"] = str(ui).lower()
        own["spark.sql.warehouse.dir"] = (home / "warehouse").as_uri()
        # Spark puts its temporary files there by default.
        options = [*_JAVA_OPTIONS, f"-Djava.io.tmpdir={home}"]
        if not jars:
            # Without JDBC, Java only moves bytes: its best compiler would cost more than it saves.
            options.append("-XX:TieredStopAtLevel=1")
        own["spark.driver.defaultJavaOptions"] = " ".join(f'"{option}"' for option in options)
        conf = SparkConf(loadDefaults=False).setAll(list((own | wanted).items()))
        log = log or home.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with _environment(conf), log.open("wb") as output, _start(conf, output) as session:
            yield session


def _settings(master: str, memory: str, cores: int | None, jars: Sequence[Path]) -> dict[str, str]:
    if _MEMORY.fullmatch(memory) is None:
        raise ConfigError(f"memory {memory!r} is not a size: write one such as 4g or 800m")
    for jar in jars:
        if not jar.is_file():
            raise ConfigError(f"jar {jar} does not exist")
    found = {"spark.app.name": "txmq reconcile", "spark.master": master, **_SAME_EVERYWHERE}
    is_local = master.startswith("local")
    found["spark.driver.memory" if is_local else "spark.executor.memory"] = memory
    if cores is not None and not is_local:
        found["spark.cores.max"] = str(cores)
    hosts = {host for host, _ in _addresses(master)}
    if is_local or (hosts and hosts <= {_LOOPBACK, "localhost"}):  # Only this machine takes part.
        found["spark.driver.host"] = found["spark.driver.bindAddress"] = _LOOPBACK
    if jars:
        found["spark.jars"] = ",".join(jar.resolve().as_uri() for jar in jars)
    return found


def _addresses(master: str) -> list[tuple[str, int]]:
    """The masters of a standalone cluster; one that answers is enough."""
    if not master.startswith(_STANDALONE):
        return []
    found = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"{master!r} is not a master: write spark://host:7077")
        found.append((host.strip("[]"), int(port)))
    return found


def _check_start(master: str) -> None:
    """Check everything else that can be checked before Java starts."""
    if _PORT not in os.environ:
        check_java(os.environ)
    addresses = _addresses(master)
    if addresses and not any(_is_reached(*address) for address in addresses):
        raise ReconcileRefused(
            f"no master answers at {master}: check that the master of the cluster runs, "
            "or leave --master out to work on this machine"
        )
    if SparkSession.getActiveSession() is not None:
        raise UsageError("this process has an open Spark session; close it first")


def _is_reached(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), REACH_S).close()
        return True
    return False


@contextmanager
def _environment(conf: SparkConf) -> Iterator[None]:
    """Set environment variables, and silence PySpark's loggers: exceptions have the same texts."""
    wanted = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable}
    if conf.get("spark.driver.bindAddress") == _LOOPBACK:
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    before = {name: os.environ[name] for name in wanted if name in os.environ}
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    # Py4J logs an interrupted call to the root logger, which would otherwise add a handler.
    handler = logging.NullHandler()
    os.environ.update(wanted)
    logging.root.addHandler(handler)
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False
        logging.root.removeHandler(handler)
        for name in wanted:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _start(conf: SparkConf, output: BinaryIO) -> Iterator[SparkSession]:
    """Start a Java process and a session in it, and end both with the block.

    Its log is removed unless an error names it.
    """
    master, log = conf.get("spark.master"), Path(output.name)
    opened: Future[SparkContext] | None = None
    session: SparkSession | None = None
    has_started = is_log_named = False
    # Java writes to the log, and Ctrl-C of a terminal reaches Python alone.
    popen = {"stdout": output, "stderr": output, "start_new_session": True}
    launched = _call_in_thread(lambda: _launch(conf, popen))
    try:
        gateway = launched.result()
        opened = _call_in_thread(lambda: SparkContext(gateway=gateway, conf=conf))
        if not wait([opened], START_S).done:
            raise TimeoutError(f"there was no answer within {START_S:.0f} s")
        opened.result()
        session = SparkSession.builder.getOrCreate()
        _wait_for_a_worker(session, conf)
        has_started = True
        yield session
    except SPARK_ERRORS as error:
        is_gone = False
        if has_started:
            java = gateway.gateway_parameters
            is_gone = not _is_reached(java.address, java.port)
        if has_started and isinstance(error, OSError) and not is_gone:
            raise  # Java answers, so this is not Spark's error.
        what = "Spark failed" if has_started else f"Spark does not start with {master}"
        # The cause needs a Java that still runs.
        if launched.exception() is None:
            why = _GONE if is_gone else _cause_of(error)
        else:
            text = log.read_text(errors="replace")
            why = _plain(next(filter(_ERROR.search, text.splitlines()), text))
        output.write(traceback.format_exc().encode())
        is_log_named = True
        raise ReconcileRefused(f"{what}: {why}; its log is {log}") from None
    finally:
        # A Java that starts cannot be ended before it has started.
        if launched.exception() is None:
            _end(session, launched.result())
            if opened is not None:
                wait([opened], STOP_S)  # An unfinished one fails now, and PySpark forgets it.
        if not is_log_named:
            log.unlink(missing_ok=True)


def _call_in_thread(call: Callable[[], _Result]) -> Future[_Result]:
    """Call Java in a thread of its own, which signals do not interrupt.

    An interrupted connection to Java is unusable, and PySpark's own handler for Ctrl-C, which it
    sets in the main thread, calls Java on a connection that waits for an answer.
    """
    answer = Future[_Result]()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _wait_for_a_worker(session: SparkSession, conf: SparkConf) -> None:
    """Wait for a worker: on a standalone cluster without any, Spark would wait without end."""
    master = conf.get("spark.master", "")
    is_dynamic = session.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    if is_dynamic or not _addresses(master):
        return
    scheduler = session.sparkContext._jsc.sc()  # noqa: SLF001
    pause = threading.Event()
    for _ in range(round(WORKER_S / _POLL_S)):
        if scheduler.getExecutorMemoryStatus().size() > 1:  # The driver is counted too.
            return
        pause.wait(_POLL_S)
    raise ReconcileRefused(
        f"{master} gave no worker within {WORKER_S:.0f} s: check that a worker is alive and has "
        f"{conf.get('spark.executor.memory')} of memory free, or ask for less with --memory"
    )


def _end(session: SparkSession | None, gateway: Any) -> None:
    """Stop the session if it still answers, and end Java in any case."""
    java: Popen[bytes] | None = gateway.proc

    def stop() -> None:
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            if session is not None:
                session.stop()
        if java is not None:
            gateway.shutdown()

    try:
        if java is None or java.poll() is None:
            wait([_call_in_thread(stop)], STOP_S)
    finally:
        if java is not None:
            assert java.stdin is not None
            with suppress(OSError):
                java.stdin.close()
            try:
                # While it starts it ignores that its input closed.
                java.wait(STOP_S if session is not None else 0)
            except TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(java.pid, signal.SIGKILL)  # Java, and the shell around it.
                java.wait()
            # PySpark keeps the dead gateway in its class, and the next session would use it.
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _cause_of(error: BaseException) -> str:
    """The first cause of a failure, in one line without Java's class names."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return _GONE
    if isinstance(error, Py4JJavaError):
        text = str(error).partition("\n: ")[2]
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001  # it asks a Java that may be gone, which raises all sorts
            return _GONE
    causes = _CAUSED_BY.findall(text)
    return _plain(causes[-1] if causes else text)


def _plain(text: str) -> str:
    first = next(iter(text.strip().splitlines()), "it gives no reason").rstrip()
    line = _JAVA_NAME.sub(r"\1: ", first).rstrip(": ")
    return line if len(line) <= CAUSE_CHARS_MAX else f"{line[: CAUSE_CHARS_MAX - 1]}…"
