"""The Spark session of ``txmq reconcile``: quiet, set up alike everywhere, stopped at the end."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from txmq.errors import ConfigError, ReconcileRefused, UsageError

__all__ = ["SPARK_ERRORS", "open_spark", "setting"]

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (Py4JError, PySparkException, OSError)
"""The exceptions raised when Spark or the connection to it fails."""

REACH_S: Final = 10.0
"""The limit for connecting to a master or a server."""
WORKER_S: Final = 60.0
"""The limit for a cluster to run its first task."""
RETRIES: Final = 5
"""Spark Connect's own 15 retries would hide for ten minutes that its server is gone."""
RETRY_MS_MAX: Final = 10_000
CAUSE_CHARS_MAX: Final = 400
"""Longer texts, such as plans and stacks, belong in the log."""
_LOOPBACK: Final = "127.0.0.1"
_CONNECT_PORT: Final = 15002
_SAME_EVERYWHERE: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark writes whole stacks to standard error with these, and then raises the same error."""
_PYTHON_ERROR: Final = re.compile(r"^Traceback .*\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_CAUSED_BY: Final = re.compile(r"^Caused by: (.+)", re.MULTILINE)
_CLASS_NAME: Final = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?(?:[a-z_][\w$]*\.)+([A-Z][\w$]*)(?:: ?|$)"
)
_ERROR: Final = re.compile(r"Error|Exception|Invalid|Could not|Unable|not (?:set|found)|No such")
_JAVA: Final = (
    "; Spark needs Java 17 or later (Debian: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17, then export JAVA_HOME=$(brew --prefix openjdk@17))"
)
_GONE: Final = (
    "it has ended; if the machine killed its Java for lack of memory, give it less with --memory"
)


@contextmanager
def open_spark(
    master: str | None = None,
    *,
    remote: str | None = None,
    memory: str = "4g",
    cores: int | None = None,
    jars: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    ui: bool = False,
) -> Iterator[SparkSession]:
    """Open a Spark session, and stop it at the end of the block.

    The output of its Java, which ends with this process, goes into a log file. The file is removed
    if all went well.

    Args:
        master: The cluster's master; by default, this machine.
        remote: A Spark Connect server instead, by default ``SPARK_REMOTE``; it has its own Java.
        memory: For Java here, or for each executor of a cluster.
        cores: How many cores to use; by default, all.
        jars: JDBC drivers and other libraries.
        settings: Spark settings, which override ours.
        log: Path of the log file; by default, a temporary file.
        ui: True for Spark's web pages.

    Raises:
        ConfigError: The arguments contradict each other, or an address is invalid.
        UsageError: This process has a Spark session already.
        ReconcileRefused: Spark cannot be started, or failed in the block.
    """
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote and (master or cores or jars or ui):
        raise ConfigError(
            "the Spark Connect server has its own master, cores, jars and pages: "
            "leave out --master, --cores, --jar and --ui, or --remote and SPARK_REMOTE"
        )
    place = remote or master or f"local[{cores or '*'}]"
    name = place.partition(";")[0]  # A server's address may hold a token.
    _check_address(name, is_server=bool(remote))
    _check_jars(jars)
    if SparkSession.getActiveSession() is not None:
        raise UsageError("this process has an open Spark session; close it first")
    with TemporaryDirectory(prefix="txmq-spark-", ignore_cleanup_errors=True) as folder, _quiet():
        home, wanted = Path(folder), _SAME_EVERYWHERE | dict(settings or {})
        if not remote:
            wanted = _settings(place, memory, cores, jars, home, ui=ui) | wanted
        log = log or home.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        session, is_gone, is_log_named = None, False, False
        failed = f"Spark does not start with {name}"
        try:
            with _signals_later(), _output_to(log):
                session = _session(place, wanted, is_server=bool(remote))
            if "://" in place:
                _wait_for_a_worker(session, name)
            failed = "Spark failed"
            yield session
        except SPARK_ERRORS as error:
            is_gone = session is not None and not _answers(session)
            if isinstance(error, OSError) and session is not None and not is_gone:
                raise  # Spark answers, so this is not Spark's error.
            why = _GONE if is_gone else _cause_of(error, log)
            with log.open("a") as file:
                file.write(traceback.format_exc())
            is_log_named = True
            raise ReconcileRefused(f"{failed}: {why}; its log is {log}") from None
        finally:
            if session is not None and not is_gone:
                with warnings.catch_warnings():
                    # A signal may have interrupted PySpark's call. Java ends with this process.
                    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM")
                    session.stop()
            if not is_log_named:
                log.unlink(missing_ok=True)


@contextmanager
def setting(session: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the session during the block."""
    before = session.conf.get(name, None)
    session.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(*SPARK_ERRORS):  # Spark is gone, and the block raised an error that says so.
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)


def _check_jars(jars: Sequence[Path]) -> None:
    for jar in jars:
        if not jar.is_file():
            raise ConfigError(f"jar {jar} does not exist")


def _check_address(place: str, *, is_server: bool) -> None:
    """Check that a standalone master or a Connect server answers: Spark would try for minutes."""
    scheme, _, rest = place.partition("://")
    if is_server and scheme != "sc":
        raise ConfigError(f"{place!r} is not a Spark Connect server: write sc://host:15002")
    if scheme not in ("spark", "sc"):
        return
    default = _CONNECT_PORT if is_server else None
    addresses = []
    for text in rest.partition("/")[0].split(","):
        with suppress(ValueError):
            parts = urlsplit(f"//{text}")
            addresses.append((parts.hostname, parts.port or default))
    if not addresses or not all(host and port for host, port in addresses):
        raise ConfigError(f"{place!r} is not an address of Spark: write {scheme}://host:7077")
    for address in addresses:  # One of several masters is enough.
        with suppress(OSError):
            socket.create_connection(address, REACH_S).close()
            return
    raise ReconcileRefused(
        f"{place} does not answer: check that Spark runs there, or leave out --master and --remote "
        "to work on this machine"
    )


def _settings(
    master: str, memory: str, cores: int | None, jars: Sequence[Path], home: Path, *, ui: bool
) -> dict[str, str]:
    """The settings of a Spark that is started here."""
    options = (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Djava.io.tmpdir={home}",
        "-XX:-UsePerfData",  # It would leave a file in /tmp.
    )
    found = {
        "spark.app.name": "txmq reconcile",
        "spark.master": master,
        "spark.driver.defaultJavaOptions": " ".join(f'"{option}"' for option in options),
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if ui:
        with socket.create_server((_LOOPBACK, 0)) as free:
            found["spark.ui.port"] = str(free.getsockname()[1])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)  # Only this machine takes part.
        found["spark.driver.memory"] = memory
    else:
        found["spark.executor.memory"] = memory
        if cores is not None:
            found["spark.cores.max"] = str(cores)
    if jars:
        found["spark.jars"] = ",".join(jar.resolve().as_uri() for jar in jars)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence loggers whose texts also arrive as exceptions."""
    handler, loggers = logging.NullHandler(), [PySparkLogger.getLogger(name) for name in _LOGGERS]
    # Py4J logs an interrupted call to the root logger, which would otherwise add a handler.
    logging.root.addHandler(handler)
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        for logger in loggers:
            logger.disabled = False


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send the output of programs that the block starts to a file: they inherit our descriptors."""
    before = {number: os.dup(number) for number in (1, 2)}
    with log.open("wb") as file:
        for number in before:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in before.items():
            os.dup2(copy, number)
            os.close(copy)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Hold signals back while Spark starts: an interrupted PySpark leaves its Java running.

    At the end, PySpark's own handler of Ctrl-C is removed, too: it would call Java on a connection
    that waits for an answer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: object) -> None:
        del frame
        came.append(number)
        signal.signal(number, signal.SIG_DFL)  # A second one ends this process at once.

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _session(place: str, wanted: Mapping[str, str], *, is_server: bool) -> SparkSession:
    if is_server:
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # The warning also arrives as an exception, and again when this process ends.
        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
        session = SparkSession.builder.remote(place).getOrCreate()
        policy = DefaultPolicy(max_retries=RETRIES, max_backoff=RETRY_MS_MAX)
        session.client.set_retry_policies([policy])
        for name, value in wanted.items():
            session.conf.set(name, value)  # The builder would ignore what the server forbids.
        return session
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.config(map=dict(wanted)).getOrCreate()


def _wait_for_a_worker(session: SparkSession, place: str) -> None:
    """Run a small job: in a cluster without workers, the first real job would wait forever."""
    is_late = threading.Event()

    def interrupt() -> None:
        is_late.set()
        session.interruptAll()

    timer = threading.Timer(WORKER_S, interrupt)
    timer.daemon = True
    timer.start()
    try:
        session.range(1).collect()
    except SPARK_ERRORS:
        if not is_late.is_set():
            raise
        raise ReconcileRefused(
            f"{place} gave no worker within {WORKER_S:.0f} s: check that a worker is alive and has "
            "the memory free, or ask for less with --memory"
        ) from None
    finally:
        timer.cancel()


def _answers(session: SparkSession) -> bool:
    with suppress(Exception):  # If Java is gone, this can raise anything.
        session.conf.get("spark.app.id")
        return True
    return False


def _cause_of(error: Exception, log: Path) -> str:
    """The first cause of a failure, in one line without the names of packages."""
    text, hint = str(error).partition("JVM stacktrace:")[0], ""
    if isinstance(error, PySparkException) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        text = log.read_text(errors="replace")
        hint = "" if "Exception in thread" in text else _JAVA
        text = next(filter(_ERROR.search, text.splitlines()), text)
    elif causes := _PYTHON_ERROR.findall(text) or _CAUSED_BY.findall(text):
        text = causes[-1]
    elif isinstance(error, Py4JError):
        text = text.partition("\n: ")[2] or text
    first = next(iter(text.strip().splitlines()), "it gives no reason").rstrip()
    line = _CLASS_NAME.sub(r"\1: ", first).rstrip(": ")
    return (line if len(line) <= CAUSE_CHARS_MAX else f"{line[: CAUSE_CHARS_MAX - 1]}…") + hint
