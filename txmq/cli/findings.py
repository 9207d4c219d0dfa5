"""The findings of an inspection as lines, and the bar of a command that reads a whole log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from txmq.cli.output import as_json, say
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq_broker.offline.inspection.findings import Finding, InspectionSummary, OffsetRange

__all__ = ["holder_of", "offsets_text", "print_finding", "progress_bar", "summary_text"]

_RANGES_SHOWN: Final = 8


class ProgressBar:
    """The bytes of a log on standard error, where that is a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("log", total=total)
        # A bar that is off still costs more than the reading.
        self.advance = (lambda _: None) if progress.disable else self._advance

    def begin(self, total: int) -> None:
        """Set the number of bytes to come, where it becomes known late."""
        self._progress.update(self._task, total=total)

    def _advance(self, size: int) -> None:
        self._progress.advance(self._task, size)


@contextmanager
def progress_bar(total: int, *, is_shown: bool = True) -> Iterator[ProgressBar]:
    """A bar that disappears at the end."""
    columns = (TextColumn("log"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        disable=not (is_shown and sys.stderr.isatty()),
        # Lines for a terminal go above the bar; those for a file or a pipe must get there.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        yield ProgressBar(progress, total)


def holder_of(folder: Path) -> str:
    """The process that has a directory locked, for error texts."""
    try:
        number = (folder / "lock").read_text().strip()
    except OSError:
        number = ""
    return f"process {number}" if number.isdecimal() else "another process"


def print_finding(finding: Finding, *, json: bool) -> None:
    """Print a finding for people, or for programs."""
    as_json(finding) if json else say(_finding_text(finding))


def _finding_text(finding: Finding) -> str:
    where = finding.file
    if finding.offset is not None:
        where += f", byte {finding.offset}"
    if finding.position is not None:
        where += f", position {finding.position}"
    if finding.size is not None:
        where += f", {quantity(finding.size, 'byte')}"
    text = f"{finding.severity.value} {finding.kind}: {where}: {finding.text}"
    if finding.offsets:
        text += f". Messages: {offsets_text(finding.offsets)}"
    return text


def offsets_text(offsets: list[OffsetRange]) -> str:
    """Runs of offsets on one line."""
    parts = [
        f"{run.topic}/{run.queue} {run.first}" + (f"-{run.last}" if run.last > run.first else "")
        for run in offsets[:_RANGES_SHOWN]
    ]
    more = len(offsets) - _RANGES_SHOWN
    return ", ".join(parts) + (f" and {more} more (--json names them)" if more > 0 else "")


def summary_text(summary: InspectionSummary) -> str:
    """The totals of an inspection on one line."""
    read = (
        f"read positions {summary.start} to {summary.end} in {quantity(summary.files, 'file')}: "
        f"{quantity(summary.messages, 'message')}, {quantity(summary.halves, 'half message')}, "
        f"{quantity(summary.decisions, 'decision')}, "
        f"{quantity(summary.open_transactions, 'open transaction')}"
    )
    if not summary.damages and not summary.losses:
        return f"{read}; whole"
    losses = quantity(summary.losses, "loss", "losses")
    return f"{read}; {quantity(summary.damages, 'damage')}, {losses}"
