"""The progress of a run: measured for its summary, and shown on a terminal or in a log."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, TextIO
from urllib.request import ProxyHandler, build_opener

from rich import progress as bars
from rich.console import Console

from txmq.reconcile.summary import Stage
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Progress", "pages_of", "show_progress"]

_DESCRIPTION: Final = "spark.job.description"
_POLL_S: Final = 1.0
_JOIN_S: Final = 5.0
"""The time limit for Spark's pages to answer: a hung Java never does."""


class Progress:
    """Measures the stages of a run, and shows each finished one as a line; on a terminal, a bar
    moves as Spark's tasks end.
    """

    def __init__(
        self,
        show: Callable[[str], object] | None = None,
        bar: bars.Progress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.stages: tuple[Stage, ...] = ()
        """The finished stages of the current run, in order."""
        self._spark: SparkSession | None = None
        self._show = show
        self._bar = bar or bars.Progress(disable=True)
        self._clock = clock or SystemClock()

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Measure a stage, which ends with the block; a stage that fails is not counted."""
        stage = Stage(name)
        began = self._clock.monotonic()
        row = self._bar.add_task(name, total=None)
        try:
            with self._describing(name):
                yield stage
        finally:
            self._bar.remove_task(row)
        stage.seconds = round(self._clock.monotonic() - began, 3)
        self.stages += (stage,)
        if self._show is not None:
            rows = f", {stage.rows:,} row{'' if stage.rows == 1 else 's'}" if stage.rows else ""
            self._show(f"{name}: {stage.seconds:.1f} s{rows}")

    @contextmanager
    def tracking(self, spark: SparkSession) -> Iterator[None]:
        """During the block, Spark's pages name each job's stage, and the bar shows its tasks."""
        self._spark = spark
        try:
            with nullcontext() if self._bar.disable else _tasks(spark, self._show_tasks):
                yield
        finally:
            self._spark = None

    def _describing(self, name: str) -> AbstractContextManager[None]:
        """Describe the block's jobs on Spark's pages by a setting of the session. Unlike
        ``setJobDescription``, this also works over Spark Connect.
        """
        if self._spark is None:
            return nullcontext()
        from txmq.reconcile.spark import setting

        return setting(self._spark, _DESCRIPTION, name)

    def _show_tasks(self, completed: int, total: int) -> None:
        with suppress(IndexError, KeyError):  # No stage is running, or it has just ended.
            self._bar.update(self._bar.task_ids[-1], total=total or None, completed=completed)


@contextmanager
def _tasks(spark: SparkSession, show: Callable[[int, int], None]) -> Iterator[None]:
    """Show how many tasks of the running job have ended, and how many it has."""
    from pyspark.sql import is_remote

    if is_remote():

        def handle(stages: Iterable[Any], **_: object) -> None:
            found = list(stages)
            show(sum(one.num_completed_tasks for one in found), sum(one.num_tasks for one in found))

        handler: Any = handle  # Spark's types ask for a class, its docs for a function.
        spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)
        return
    if (pages := pages_of(spark)) is None:
        yield  # Without Connect, only Spark's pages know its tasks.
        return
    address = f"{pages}/api/v1/applications/{spark.conf.get('spark.app.id')}/stages?status=active"
    direct, ended = build_opener(ProxyHandler({})), threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            with suppress(OSError, HTTPException, ValueError):
                with direct.open(address, timeout=_JOIN_S) as answer:
                    found = json.load(answer)
                completed = sum(one["numCompleteTasks"] for one in found)
                show(completed, sum(one["numTasks"] for one in found))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(_JOIN_S)


def pages_of(spark: SparkSession) -> str | None:
    """The address of Spark's pages, if this process serves them."""
    from pyspark.sql import is_remote

    if is_remote() or spark.conf.get("spark.ui.enabled", "true") != "true":
        return None
    return f"http://{spark.conf.get('spark.driver.host')}:{spark.conf.get('spark.ui.port', '4040')}"


@contextmanager
def show_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show progress on a stream, by default standard error: a bar on a terminal, lines elsewhere,
    nothing if quiet.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield Progress()
    elif stream.isatty():
        columns = (
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=None),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
        )
        # A separate handle of the terminal: while Spark starts, standard error goes into its log.
        with (
            os.fdopen(os.dup(stream.fileno()), "w") as screen,
            bars.Progress(*columns, console=Console(file=screen), transient=True) as bar,
        ):
            yield Progress(lambda line: bar.console.print(line, markup=False, highlight=False), bar)
    else:
        # Not rich's console: on a closed pipe it exits with 1, which is a verdict.
        yield Progress(lambda line: print(f"txmq: {line}", file=stream, flush=True))
