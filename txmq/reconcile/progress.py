"""The progress of a run: measured for its summary, and shown on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

from txmq.reconcile.summary import Stage
from txmq.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "ActiveStage",
    "LineProgress",
    "Progress",
    "SilentProgress",
    "TerminalProgress",
    "show_progress",
]

LOOK_S: Final = 0.25
LEAVE_S: Final = 5.0
"""How long the end of a run waits for the watching thread: a hung Java never answers it."""


class ActiveStage:
    """The stage that is running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        """The number of rows, set by the code that runs the stage."""


class Progress(Protocol):
    """How a job reports its stages."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The finished stages, in order."""
        ...

    def stage(self, name: str) -> AbstractContextManager[ActiveStage]:
        """Measure a stage, which ends with the block; a stage that fails is not counted."""
        ...


class SilentProgress:
    """Measures the stages, and shows nothing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See :attr:`Progress.stages`."""
        return tuple(self._stages)

    @contextmanager
    def stage(self, name: str) -> Iterator[ActiveStage]:
        """See :meth:`Progress.stage`."""
        underway = ActiveStage(name)
        began = self._clock.monotonic()
        with self.show_active(underway):
            yield underway
        seconds = round(self._clock.monotonic() - began, 3)
        done = Stage(name, seconds, underway.rows)
        self._stages.append(done)
        self.show_done(done)

    @contextmanager
    def tracking(self, spark: SparkSession) -> Iterator[None]:
        """Allow asking Spark for its progress during the block."""
        del spark
        yield

    @contextmanager
    def show_active(self, underway: ActiveStage) -> Iterator[None]:
        """Show a running stage during the block."""
        del underway
        yield

    def show_done(self, done: Stage) -> None:
        """Show a finished stage."""


class LineProgress(SilentProgress):
    """A line for each finished stage, for logs."""

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._stream = stream

    def show_done(self, done: Stage) -> None:
        """See :meth:`SilentProgress.show_done`."""
        self._stream.write(f"txmq: {stage_line(done)}\n")
        self._stream.flush()


class TerminalProgress(SilentProgress):
    """A bar that moves as Spark's tasks end, and a line for each finished stage."""

    def __init__(self, bar: Bar, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bar = bar
        self._row: TaskID | None = None

    @contextmanager
    def show_active(self, underway: ActiveStage) -> Iterator[None]:
        """See :meth:`SilentProgress.show_active`; the innermost of nested stages moves."""
        outer, self._row = self._row, self._bar.add_task(underway.name, total=None)
        try:
            yield
        finally:
            self._bar.remove_task(self._row)
            self._row = outer

    def show_done(self, done: Stage) -> None:
        """See :meth:`SilentProgress.show_done`."""
        self._bar.console.print(stage_line(done), markup=False, highlight=False)

    @contextmanager
    def tracking(self, spark: SparkSession) -> Iterator[None]:
        """See :meth:`SilentProgress.tracking`; a thread of its own asks Spark."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(LEAVE_S)

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        from txmq.reconcile.causes import SPARK_ERRORS

        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(LOOK_S):
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
def show_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[SilentProgress]:
    """Show progress: a bar on a terminal, lines elsewhere, nothing if quiet.

    Args:
        quiet: Show nothing.
        stream: Where to show it; standard error if left out.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield SilentProgress()
        return
    if not stream.isatty():
        yield LineProgress(stream)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        yield TerminalProgress(bar)


def stage_line(done: Stage) -> str:
    """A stage in a line."""
    rows = f", {done.rows:,} row{'' if done.rows == 1 else 's'}" if done.rows else ""
    return f"{done.name}: {done.seconds:.1f} s{rows}"
