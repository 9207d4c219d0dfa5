"""How far a run is: measured for its summary, and shown to whoever waits for it."""

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

__all__ = ["Lines", "OnTerminal", "Progress", "Silent", "Underway", "shown"]

LOOK_S: Final = 0.25
LEAVE_S: Final = 5.0
"""A Java that hangs does not answer; whoever ends it must not wait for that."""


class Underway:
    """A stage that is being worked on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        """Whoever works on it may say how many there were."""


class Progress(Protocol):
    """What a job tells of itself."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is done, in its order."""
        ...

    def stage(self, name: str) -> AbstractContextManager[Underway]:
        """A part of the work, which is done when the block ends; one that fails is not counted."""
        ...


class Silent:
    """Measures, and shows nothing."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See :attr:`Progress.stages`."""
        return tuple(self._stages)

    @contextmanager
    def stage(self, name: str) -> Iterator[Underway]:
        """See :meth:`Progress.stage`."""
        underway = Underway(name)
        began = self._clock.monotonic()
        with self.showing(underway):
            yield underway
        seconds = round(self._clock.monotonic() - began, 3)
        done = Stage(name, seconds, underway.rows)
        self._stages.append(done)
        self.show(done)

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """While inside, Spark may be asked how far it is."""
        del spark
        yield

    @contextmanager
    def showing(self, underway: Underway) -> Iterator[None]:
        """While inside, a stage is worked on."""
        del underway
        yield

    def show(self, done: Stage) -> None:
        """A stage is done."""


class Lines(Silent):
    """A line for each stage that is done, for logs."""

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._stream = stream

    def show(self, done: Stage) -> None:
        """See :meth:`Silent.show`."""
        self._stream.write(f"txmq: {told(done)}\n")
        self._stream.flush()


class OnTerminal(Silent):
    """A bar that moves as Spark's tasks end, and a line for each stage that is done."""

    def __init__(self, bar: Bar, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bar = bar
        self._row: TaskID | None = None

    @contextmanager
    def showing(self, underway: Underway) -> Iterator[None]:
        """See :meth:`Silent.showing`; of stages within each other the innermost moves."""
        outer, self._row = self._row, self._bar.add_task(underway.name, total=None)
        try:
            yield
        finally:
            self._bar.remove_task(self._row)
            self._row = outer

    def show(self, done: Stage) -> None:
        """See :meth:`Silent.show`."""
        self._bar.console.print(told(done), markup=False, highlight=False)

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """See :meth:`Silent.watching`; a thread of its own asks, and the work does not wait."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(LEAVE_S)

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        from txmq.reconcile.causes import SPARKS_OWN

        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(LOOK_S):
            try:
                found = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
            except SPARKS_OWN:
                return  # Spark is gone, and whoever works with it says so.
            row = self._row
            if row is None or row not in self._bar.task_ids:
                continue
            infos = [info for info in found if info is not None]
            total = sum(info.numTasks for info in infos)
            completed = sum(info.numCompletedTasks for info in infos)
            self._bar.update(row, total=total or None, completed=completed)


@contextmanager
def shown(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Silent]:
    """Progress as it suits who is there: a bar on a terminal, else lines, or nothing.

    Args:
        quiet: Whether nobody wants to see it.
        stream: Where it is shown; standard error where it is left out.
    """
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield Silent()
        return
    if not stream.isatty():
        yield Lines(stream)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        yield OnTerminal(bar)


def told(done: Stage) -> str:
    """A stage in a line."""
    rows = f", {done.rows:,} row{'' if done.rows == 1 else 's'}" if done.rows else ""
    return f"{done.name}: {done.seconds:.1f} s{rows}"
