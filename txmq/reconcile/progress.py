"""The progress of a run: measured for its summary, and shown on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from rich import progress as bars
from rich.console import Console

from txmq.reconcile.summary import Stage
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ActiveStage", "LineProgress", "Progress", "TerminalProgress", "show_progress"]

_POLL_S: Final = 0.25
_JOIN_S: Final = 5.0
"""The time in which the watching thread must end: a hung Java never answers it."""


class ActiveStage:
    """The stage that is running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        """The number of rows, set by the code that runs the stage."""


class Progress:
    """Measures the stages of a run, and shows nothing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The finished stages, in order."""
        return tuple(self._stages)

    @contextmanager
    def stage(self, name: str) -> Iterator[ActiveStage]:
        """Measure a stage, which ends with the block; a stage that fails is not counted."""
        active = ActiveStage(name)
        began = self._clock.monotonic()
        with self.show_active(active):
            yield active
        seconds = round(self._clock.monotonic() - began, 3)
        done = Stage(name, seconds, active.rows)
        self._stages.append(done)
        self.show_done(done)

    @contextmanager
    def tracking(self, spark: SparkSession) -> Iterator[None]:
        """Follow Spark's own progress during the block."""
        del spark
        yield

    @contextmanager
    def show_active(self, active: ActiveStage) -> Iterator[None]:
        """Show a running stage during the block."""
        del active
        yield

    def show_done(self, done: Stage) -> None:
        """Show a finished stage."""


class LineProgress(Progress):
    """A line for each finished stage, for logs."""

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._stream = stream

    def show_done(self, done: Stage) -> None:
        """See :meth:`Progress.show_done`."""
        self._stream.write(f"txmq: {stage_line(done)}\n")
        self._stream.flush()


class TerminalProgress(Progress):
    """A bar that moves as Spark's tasks end, and a line for each finished stage."""

    def __init__(self, bar: bars.Progress, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bar = bar
        self._row: bars.TaskID | None = None

    @contextmanager
    def show_active(self, active: ActiveStage) -> Iterator[None]:
        """See :meth:`Progress.show_active`; the innermost of nested stages moves."""
        outer, self._row = self._row, self._bar.add_task(active.name, total=None)
        try:
            yield
        finally:
            self._bar.remove_task(self._row)
            self._row = outer

    def show_done(self, done: Stage) -> None:
        """See :meth:`Progress.show_done`."""
        self._bar.console.print(stage_line(done), markup=False, highlight=False)

    @contextmanager
    def tracking(self, spark: SparkSession) -> Iterator[None]:
        """See :meth:`Progress.tracking`; a separate thread asks Spark."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(_JOIN_S)

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        from txmq.reconcile.causes import SPARK_ERRORS

        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_POLL_S):
            try:
                found = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            except SPARK_ERRORS:
                return  # Spark is gone; the thread that works with it raises the error.
            row = self._row
            if row is None or row not in self._bar.task_ids:
                continue
            infos = [info for info in found if info is not None]
            total = sum(info.numTasks for info in infos)
            completed = sum(info.numCompletedTasks for info in infos)
            self._bar.update(row, total=total or None, completed=completed)


@contextmanager
def show_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show progress: a bar on a terminal, lines elsewhere, nothing if quiet.

    Args:
        quiet: Show nothing.
        stream: The output; standard error if left out.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield Progress()
        return
    if not stream.isatty():
        yield LineProgress(stream)
        return
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=None),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(file=stream), transient=True) as bar:
        yield TerminalProgress(bar)


def stage_line(done: Stage) -> str:
    """Describe a finished stage in one line."""
    rows = f", {done.rows:,} row{'' if done.rows == 1 else 's'}" if done.rows else ""
    return f"{done.name}: {done.seconds:.1f} s{rows}"
