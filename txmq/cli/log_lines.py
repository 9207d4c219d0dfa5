"""Prints records of a broker's log, the findings of an inspection, and a progress bar.

A record is one line for people, or lossless JSON.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from txmq.cli.common import WRONGLY_CALLED, fail
from txmq.cli.output import as_json, body_fields, say
from txmq.errors import ConfigError, RemoteProtocolError
from txmq.ops.moments import time_text
from txmq.protocol.codes import SysFlag
from txmq.protocol.record import host_text
from txmq.text import quantity

if TYPE_CHECKING:
    from txmq.protocol.record import Record
    from txmq.runtime.disk import LocalDisk, Lock
    from txmq_broker.offline.inspection.findings import Finding, InspectionSummary, OffsetRange
    from txmq_broker.offline.inspection.log_records import LogRecord

__all__ = [
    "BodyForm",
    "locked",
    "offsets_text",
    "plain_body",
    "print_finding",
    "progress_bar",
    "record_fields",
    "record_line",
    "summary_text",
]

BodyForm = Literal["none", "plain", "stored"]
"""No body, the body that its producer sent, or the stored bytes."""

_ALGORITHMS = {SysFlag.LZ4: "lz4", SysFlag.ZSTD: "zstd"}
_ALGORITHM_BITS = 0x700
_RANGES_SHOWN: Final = 8


def record_line(found: LogRecord, *, with_body: bool) -> str:
    """A record on one line for people."""
    place = f"{found.topic or '?'}/{found.queue}"
    if found.offset >= 0:
        place += f"@{found.offset}"
    if found.loss is not None:
        place = f"{len(found.loss.offsets)} topics"
    parts = [f"{found.position:>14}", time_text(found.time_ms), f"{found.kind:8}", place]
    parts += _special_parts(found)
    if found.tag:
        parts.append(f"tag={found.tag}")
    if found.keys:
        parts.append(f"keys={','.join(found.keys)}")
    if found.unique:
        is_transaction = found.kind in ("half", "decision")
        parts.append(f"{'xid' if is_transaction else 'id'}={found.unique}")
    if found.epoch:
        parts.append(f"epoch={found.epoch}")
    if found.record is not None and found.decision is None:
        parts.append(f"body={len(found.record.body)}B")
        if with_body:
            parts.append(_body_text(found.record))
    return "  ".join(parts)


def _special_parts(found: LogRecord) -> list[str]:
    """The parts of a line for a record that is not a plain message."""
    decision, parts = found.decision, []
    if decision is not None:
        by = f"{decision.kind.name} by {decision.source.name}"
        parts = [by.lower().replace("_", "-"), f"half={decision.half_position}"]
        if decision.reason:
            parts.append(f"reason={decision.reason}")
    elif found.loss is not None:
        parts = [f"reason={found.loss.reason}"]
    elif found.kind == "delayed" and found.record is not None:
        parts = [f"due={time_text(found.record.prepared_position)}"]
    return parts


def _body_text(record: Record) -> str:
    body, _ = plain_body(record)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"


def plain_body(record: Record) -> tuple[bytes, str]:
    """The body that the producer sent; if it cannot be decompressed, the stored bytes and why."""
    try:
        return record.plain_body(), ""
    except (RemoteProtocolError, ConfigError) as error:
        return record.body, str(error)


def record_fields(found: LogRecord, form: BodyForm) -> dict[str, object]:
    """All fields of a record, for a line of JSON.

    A body that is text is in ``body``, any other in ``body_base64``. ``compressed`` names the
    algorithm of the stored bytes; the body is decompressed unless ``stored`` is set.
    """
    fields: dict[str, object] = {
        "kind": found.kind,
        "position": found.position,
        "size": found.size,
        "epoch": found.epoch,
        "topic": found.topic,
        "queue": found.queue,
        "offset": found.offset if found.offset >= 0 else None,
        "stored_ms": found.time_ms,
    }
    decision, record = found.decision, found.record
    if decision is not None:
        fields |= {
            "decision": decision.kind.name,
            "source": decision.source.name,
            "reason": decision.reason,
            "half_position": decision.half_position,
            "half_offset": decision.half_offset,
            "op_offset": decision.offset,
        }
    if found.loss is not None:
        return fields | {"reason": found.loss.reason, "next_offsets": found.loss.offsets}
    fields |= {"id": found.unique, "tag": found.tag, "keys": found.keys}
    if record is None or decision is not None:
        return fields
    if found.kind == "delayed":
        fields["due_ms"] = record.prepared_position
        fields["waits_in"] = {
            "topic": record.topic, "queue": record.queue_id, "offset": record.queue_offset,
        }  # fmt: skip
    if found.kind == "half":
        fields["half_offset"] = record.queue_offset
    named = record.property_map()
    fields |= {
        "offset_id": record.offset_id,
        "properties": named,
        "born_ms": record.born_ms,
        "born_host": host_text(record.born_host),
        "store_host": host_text(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "attempts": record.attempts,
        "prepared_position": record.prepared_position,
        "body_size": len(record.body),
    }
    pairs = "\x02".join(f"{name}\x01{value}" for name, value in named.items())
    if pairs != record.properties.removesuffix("\x02"):
        # The text has more than the map, such as a name that occurs twice.
        fields["properties_text"] = record.properties
    if record.sys_flag & SysFlag.COMPRESSED:
        fields["compressed"] = _ALGORITHMS.get(SysFlag(record.sys_flag & _ALGORITHM_BITS), "zlib")
    if form != "none":
        fields |= _body_fields(record, form)
    return fields


def _body_fields(record: Record, form: BodyForm) -> dict[str, object]:
    fields: dict[str, object] = {}
    body, fault = (record.body, "") if form == "stored" else plain_body(record)
    if fault:
        fields["unreadable"] = fault
    if fault or (form == "stored" and record.sys_flag & SysFlag.COMPRESSED):
        fields["stored"] = True
    return fields | body_fields(body)


class ProgressBar:
    """Shows the progress in bytes on standard error, if that is a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("log", total=total)
        # Even a disabled bar would cost more than the reading.
        self.advance = (lambda _: None) if progress.disable else self._advance

    def begin(self, total: int) -> None:
        """Set the total number of bytes, if it becomes known later."""
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
        # Lines for a terminal go above the bar; lines for a file or a pipe must reach it.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        yield ProgressBar(progress, total)


@contextmanager
def locked(disk: LocalDisk, lock: Callable[[], Lock], advice: str) -> Iterator[LocalDisk]:
    """Hold the lock of a directory inside this context; errors of its files end the program.

    Args:
        disk: The directory.
        lock: Takes the lock.
        advice: What to do while another process holds it.

    Raises:
        typer.Exit: The directory is in use, or cannot be used.
    """
    # The commands report what the store would log.
    logging.getLogger("txmq_broker").addHandler(logging.NullHandler())
    held: Lock | None = None
    try:
        held = lock()
        yield disk
    except BlockingIOError:
        try:
            number = Path(disk.root, "lock").read_text().strip()
        except OSError:
            number = ""
        holder = f"process {number}" if number.isdecimal() else "another process"
        fail(f"{disk.root} is in use by {holder}; {advice}", WRONGLY_CALLED)
    except BrokenPipeError:
        raise  # The reader of the output has closed its end; typer ends the program.
    except OSError as error:
        what = error.filename or disk.root
        fail(f"{what} cannot be used: {error.strerror or error}", WRONGLY_CALLED)
    finally:
        if held is not None:
            held.release()


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
