"""The progress of a run: measured for its summary, and shown on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

from rich import progress as bars
from rich.console import Console

from txmq.reconcile.summary import Stage
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Progress", "show_progress"]

_POLL_S: Final = 0.25
_JOIN_S: Final = 5.0
"""The time in which the watching thread must end: a hung Java never answers it."""


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
        """The finished stages, in order."""
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
        """Follow Spark's own progress during the block; a separate thread asks Spark."""
        if self._bar.disable:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(_JOIN_S)

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        from txmq.reconcile.spark import SPARK_ERRORS

        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_POLL_S):
            try:
                found = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            except SPARK_ERRORS:
                return  # Spark is gone; the thread that works with it raises the error.
            total = sum(info.numTasks for info in found if info is not None)
            completed = sum(info.numCompletedTasks for info in found if info is not None)
            with suppress(IndexError, KeyError):  # No stage is running, or it has just ended.
                innermost = self._bar.task_ids[-1]
                self._bar.update(innermost, total=total or None, completed=completed)


@contextmanager
def show_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show progress on a stream, standard error if left out: a bar on a terminal, lines elsewhere,
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
        with bars.Progress(*columns, console=Console(file=stream), transient=True) as bar:
            yield Progress(lambda line: bar.console.print(line, markup=False, highlight=False), bar)
    else:
        # Not rich's console: if nobody reads the lines any more it exits with 1, a verdict.
        yield Progress(lambda line: print(f"txmq: {line}", file=stream, flush=True))
