"""``txmq log``: verifies, repairs, shows and exports the log of a stopped broker.

These commands read the broker's directory themselves and need no broker. They import its store only
when they run, as ``txmq serve`` does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, NamedTuple
from urllib.parse import quote

import msgspec
import typer

from txmq.cli.commands import Answer, Commands
from txmq.cli.common import (
    FAILED,
    WRONGLY_CALLED,
    AsJson,
    Yes,
    confirm,
    fail,
    flag,
    has_terminal,
    moment_of,
    option,
)
from txmq.cli.log_lines import (
    BodyForm,
    locked,
    offsets_text,
    plain_body,
    print_finding,
    progress_bar,
    record_fields,
    record_line,
    summary_text,
)
from txmq.cli.output import as_json, note, say
from txmq.errors import TxmqError
from txmq.ops.directories import hint_of_brokers
from txmq.ops.moments import LATEST
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk, Lock, ReadOnlyDisk
from txmq.text import printable_json, quantity

if TYPE_CHECKING:
    from txmq_broker.offline.inspection.findings import Finding, InspectionSummary
    from txmq_broker.offline.inspection.log_records import Broken, Item, LogRecord, Selection
    from txmq_broker.offline.inspection.repair import Repair
    from txmq_broker.store.log.reader import Gap, LogReader

__all__ = ["app"]

app = Commands("Verify, repair, show and export the log of a stopped broker.")

Data = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The broker's directory; the broker is stopped."),
]


class Wanted(NamedTuple):
    """Which records to read."""

    topic: str | None = option("Only this topic.")
    queue: int | None = option("Only this queue of it.", min=0)
    since: str = option(
        "Stored then or later: 2024-05-01T12:00, 2h (ago), earliest.", default="earliest"
    )
    until: str = option("Stored then or earlier, likewise; latest is the end.", default="latest")
    key: str | None = option("Only messages with this key or id.")
    transaction: str | None = option("Only this transaction, and its decision.", metavar="XID")
    start: int = option("Begin at this position of the log.", "--from", default=0, min=0)
    end: int | None = option("Stop before this position.", "--to", min=0)
    kind: list[str] | None = option(
        "message, half, decision, delayed, recall, loss; may be repeated."
    )
    limit: int | None = option("Stop after this many records.", min=1)

    def selection(self) -> "Selection":
        """The selection that these options make.

        Raises:
            typer.Exit: A kind does not exist.
        """
        from txmq_broker.offline.inspection.log_records import RecordKind, Selection

        known = [kind.value for kind in RecordKind]
        for name in self.kind or ():
            if name not in known:
                fail(f"--kind {name!r} does not exist; use {', '.join(known)}", WRONGLY_CALLED)
        since_ms, until_ms = moment_of(self.since, "--since"), moment_of(self.until, "--until")
        default = Selection()
        return Selection(
            kinds=frozenset(RecordKind(name) for name in self.kind or ()),
            topic=self.topic or "",
            queue=self.queue,
            key=self.key or "",
            transaction=self.transaction or "",
            since_ms=SystemClock().wall_ms() if since_ms == LATEST else since_ms,
            until_ms=default.until_ms if until_ms == LATEST else until_ms,
            start=self.start,
            end=default.end if self.end is None else self.end,
        )


_FOLDERS: Final = ("log", "index", "config")
_ROUNDS_MAX: Final = 20
"""The maximum number of repair rounds; each round removes something, so few are ever needed."""


@app.command()
def verify(
    *,
    data: Data,
    repair: bool = flag("Then offer the repairs that let the broker start.", "--repair"),
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Read everything in the directory, and report all damage and loss.

    It changes nothing without --repair, which shows what each repair would lose, and asks first.
    The exit code is 0 if everything is intact, 1 if something is damaged or lost, and 2 if the
    directory cannot be read.
    """
    if yes and not repair:
        fail("--yes answers the questions of --repair; add --repair", WRONGLY_CALLED)
    if repair and not yes and not has_terminal():
        fail(
            "--repair asks before it changes anything, and standard input is not a terminal; "
            "add --yes to carry out every repair",
            WRONGLY_CALLED,
        )
    with _open_directory(data, is_writer=repair) as disk:
        findings, summary = _inspect(disk, json=json)
        for _ in range(_ROUNDS_MAX if repair else 0):
            if not _repair(disk, findings, data, yes=yes):
                break
            note("looking again")
            findings, summary = _inspect(disk, json=json)
    if summary.damages or summary.losses:
        raise typer.Exit(FAILED)


@app.command()
def dump(
    *,
    data: Data,
    wanted: Wanted,
    body: bool = flag("Show the bodies, too.", "--body"),
    json: AsJson = False,
) -> None:
    """Show the records of the log, oldest first, one per line.

    It skips damaged parts and names them on standard error; the exit code is then 1.
    """
    run = _LogPass(wanted)
    form: BodyForm = "plain" if body else "none"

    def write(found: "LogRecord") -> None:
        if json:
            as_json(record_fields(found, form))
        else:
            say(record_line(found, with_body=body))

    with _open_directory(data) as disk:
        run.read(disk, write, has_bar=not sys.stdout.isatty())
    if run.code:
        raise typer.Exit(run.code)


@app.command()
def export(
    *,
    data: Data,
    to_file: Path | None = option(
        "Write lines of JSON here; it must not exist yet.", "--file", metavar="FILE"
    ),
    bodies: Path | None = option(
        "Write each body to a file of its own: TOPIC/QUEUE-OFFSET.", metavar="DIR"
    ),
    wanted: Wanted,
    raw: bool = flag("Write compressed bodies as they are stored.", "--raw"),
) -> Answer:
    """Write messages to a file, one line of JSON each, or each body to a separate file.

    By default it writes the messages that consumers could read, including those of committed
    transactions; --kind chooses other records. A text body is in "body", any other in
    "body_base64".
    """
    if (to_file is None) == (bodies is None):
        fail("name either --file FILE or --bodies DIR", WRONGLY_CALLED)
    run = _LogPass(wanted, is_export=True)
    target = to_file or bodies
    assert target is not None, "one of both was given"
    with ExitStack() as stack:
        disk = stack.enter_context(_open_directory(data))
        try:
            if to_file is not None:
                file = stack.enter_context(to_file.open("xb"))
                write = _line_writer(file, raw=raw)
            else:
                target.mkdir(parents=True)
                write = _body_writer(target, raw=raw)
            run.read(disk, write, has_bar=True)
        except FileExistsError as error:
            fail(f"{error.filename} exists; name another, or remove it", WRONGLY_CALLED)
        except OSError as error:
            what = error.filename or target
            fail(f"{what} cannot be written or read: {error.strerror or error}", WRONGLY_CALLED)
    return Answer(
        {"to": str(target), "records": run.count, "passed_over": run.passed_over},
        f"{quantity(run.count, 'record')} written to {target}",
        run.code,
    )


# The directory


@contextmanager
def _open_directory(data: Path, *, is_writer: bool = False) -> Iterator[LocalDisk]:
    """Lock a broker's directory for the block, or end the program with the reason."""
    if not data.is_dir():
        fail(f"{data} is not a directory; name a broker's directory", WRONGLY_CALLED)
    if not any((data / folder).is_dir() for folder in _FOLDERS):
        fail(
            f"{data} is not a broker's directory: it has no {_FOLDERS[0]} in it"
            f"{hint_of_brokers(data)}",
            WRONGLY_CALLED,
        )
    disk = _LockedDisk(data.absolute()) if is_writer else ReadOnlyDisk(data.absolute())
    lock = LocalDisk(data).lock if is_writer else disk.lock
    with locked(disk, lock, "stop it first") as held:
        yield held


class _LockedDisk(LocalDisk):
    """A directory that this process has locked; parts of the broker may lock it again."""

    def lock(self) -> Lock:
        return _NoLock()


class _NoLock:
    def release(self) -> None:
        """Do nothing: the command holds the real lock."""


def _log_size(disk: LocalDisk) -> int:
    size = 0
    for name in disk.names("log"):
        file = disk.open(f"log/{name}")
        size += file.size()
        file.close()
    return size


# Verify and repair


def _inspect(disk: LocalDisk, *, json: bool) -> "tuple[list[Finding], InspectionSummary]":
    from txmq_broker.offline.inspection.directory_inspection import Inspection

    findings: list[Finding] = []
    with progress_bar(_log_size(disk)) as bar:
        inspection = Inspection(disk, bar.advance)
        for finding in inspection.findings():
            findings.append(finding)
            print_finding(finding, json=json)
    summary = inspection.summary
    as_json(summary) if json else say(summary_text(summary))
    return findings, summary


def _repair(disk: LocalDisk, findings: "list[Finding]", data: Path, *, yes: bool) -> bool:
    """Offer repairs for the findings; returns whether one was carried out."""
    from txmq_broker.offline.inspection.repair import plan

    repairs = plan(findings)
    for repair in repairs:
        note(_repair_text(disk, repair))
        confirm("carry it out?", yes=yes)
        try:
            side = repair.carry_out(disk, SystemClock().wall_ms())
        except (OSError, TxmqError) as error:
            fail(f"the repair failed, and can be tried again: {error!s}")
        note("done" if side is None else f"done; what was cut is in {data / side}")
    if not repairs and any(finding.refuses_start for finding in findings):
        note("no repair is known for the rest; restore the named files from a backup")
    return bool(repairs)


def _repair_text(disk: LocalDisk, repair: "Repair") -> str:
    from txmq_broker.offline.inspection.repair import AcceptLoss, Cut

    size, records, offsets = repair.loss(disk)
    if isinstance(repair, Cut):
        what = f"cut the log at position {repair.position}"
        lost = (
            "keeps everything before, leaves everything behind in a copy under cut/, and so loses "
            f"{quantity(size, 'byte')} with {quantity(records, 'readable record')}"
        )
    elif isinstance(repair, AcceptLoss):
        what = "go on without what is missing, and record the loss in the log"
        lost = "gives no offset a second time"
        if records:
            lost += f" and goes on without {quantity(records, 'message')}"
    else:
        what = f"delete {repair.path}"
        lost = f"goes on without {quantity(records, 'message')}" if records else "loses nothing"
    named = f": {offsets_text(offsets)}" if offsets else ""
    return f"repair: {what}; it {lost}{named}"


# Reading


class _LogPass:
    """One pass over the log, with counts of records and of damaged parts."""

    def __init__(self, wanted: Wanted, *, is_export: bool = False) -> None:
        self._selection = wanted.selection()
        self._limit = wanted.limit
        self._is_export = is_export
        self.count = 0
        self.passed_over = 0

    def read(self, disk: LocalDisk, write: Callable[["LogRecord"], None], *, has_bar: bool) -> None:
        """Pass every selected record to a function."""
        from txmq_broker.offline.inspection.log_records import select
        from txmq_broker.store.log.identity import log_to_read
        from txmq_broker.store.log.reader import LogReader

        log = LogReader(disk, log_to_read(disk))
        log.open()
        try:
            wanted, is_default = self._records_to_read()
            with progress_bar(log.end - log.start, is_shown=has_bar) as bar:
                for item in select(log, wanted, bar.advance):
                    found = self._record(log, item, is_default=is_default)
                    if found is None:
                        continue
                    write(found)
                    self.count += 1
                    if self.count == self._limit:
                        break
        finally:
            log.close()

    def _records_to_read(self) -> "tuple[Selection, bool]":
        """The records to read, and whether they are an export's default: messages, and the
        decisions that commit messages.
        """
        from txmq_broker.offline.inspection.log_records import RecordKind

        selection = self._selection
        if not self._is_export or selection.kinds - {RecordKind.MESSAGE}:
            return selection, False
        kinds = frozenset({RecordKind.MESSAGE, RecordKind.DECISION})
        return selection._replace(kinds=kinds), True

    def _record(self, log: "LogReader", item: "Item", *, is_default: bool) -> "LogRecord | None":
        from txmq_broker.offline.inspection.log_records import Broken, committed_message
        from txmq_broker.store.log.reader import Gap

        if isinstance(item, Gap | Broken):
            self._pass_over(item)
            return None
        if item.decision is None or not is_default:
            return item
        found = committed_message(log, item)
        if found is None and item.decision.queue_offset >= 0:
            self.passed_over += 1
            note(
                f"passed over the message committed at position {item.position}: its half message "
                f"at {item.decision.half_position} cannot be read"
            )
        return found

    def _pass_over(self, item: "Gap | Broken") -> None:
        from txmq_broker.store.log.reader import Gap

        if isinstance(item, Gap) and item.is_torn:
            note(
                f"the log ends at position {item.position}: a crash left the rest unfinished, and "
                "the broker cuts it when it starts"
            )
            return
        self.passed_over += 1
        size = item.end - item.position
        why = "damaged" if isinstance(item, Gap) else item.reason
        note(
            f"passed over {quantity(size, 'byte')} from position {item.position} to {item.end}: "
            f"{why}; txmq log verify says more"
        )

    @property
    def code(self) -> int:
        """The exit code: 1 if it passed over damage."""
        return FAILED if self.passed_over else 0


def _line_writer(file: BinaryIO, *, raw: bool) -> "Callable[[LogRecord], None]":
    form: BodyForm = "stored" if raw else "plain"

    def write(found: "LogRecord") -> None:
        line = printable_json(msgspec.json.encode(record_fields(found, form)).decode())
        file.write(line.encode() + b"\n")

    return write


def _body_writer(folder: Path, *, raw: bool) -> "Callable[[LogRecord], None]":
    def write(found: "LogRecord") -> None:
        record = found.record
        if record is None or found.decision is not None:
            return
        inside = folder / _file_name(found.topic)
        inside.mkdir(exist_ok=True)
        place = f"{found.queue}-{found.offset}" if found.offset >= 0 else f"at-{found.position}"
        if (inside / place).exists():
            # A damaged log may name one offset twice.
            place += f"-at-{found.position}"
        body = record.body if raw else plain_body(record)[0]
        with (inside / place).open("xb") as file:
            file.write(body)

    return write


def _file_name(topic: str) -> str:
    """A folder name for a topic: a log from elsewhere may have a topic named ``../..``."""
    name = quote(topic, safe="%") if topic else "%00"
    return name.replace(".", "%2E") if not name.strip(".") else name
