"""``txmq reconcile``: reconciles a day; explains, assigns and signs its results.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

import csv
import io
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec
import typer
from rich.console import Console
from typer.core import TyperGroup

from txmq.cli.commands import Answer, Commands
from txmq.cli.common import AsJson, Yes, confirm, fail, flag, option
from txmq.cli.output import as_json, flush, note, note_lines, say, shortened, table
from txmq.errors import ConfigError, ReconcileRefused, ResourceError, StoreError, UsageError
from txmq.reconcile import Class, Result, Rules, Run, read_rules
from txmq.reconcile.report.words import amount, mask, mask_sides, moment, signed
from txmq.runtime.clock import SystemClock
from txmq.settings.extras import named_extra
from txmq.text import printable, quantity

if TYPE_CHECKING:
    from txmq.reconcile.archive import ItemFilter
    from txmq.reconcile.results import Results, Role

__all__ = [
    "app",
    "as_csv",
    "report_failures",
    "requested_days",
    "stop_on_signals",
    "warn_of_later_days",
]

NOT_RUN: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class _ReconcileGroup(TyperGroup):
    """Commands that exit with 2 only if breaks exceed the limits, and with 3 if wrongly called."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """See typer; options of the group itself are read here."""
        with _change_exit_code():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """See typer; options of the commands in it are read here."""
        with _change_exit_code():
            return super().invoke(ctx)


class ReconcileCommands(Commands):
    """A command of reconciliation with commands below it."""

    def __init__(self) -> None:
        super().__init__(cls=_ReconcileGroup, invoke_without_command=True)


@contextmanager
def _change_exit_code() -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        # The error's class depends on typer's version; its exit code does not.
        if getattr(error, "exit_code", None) == 2:
            error.exit_code = NOT_RUN  # type: ignore[attr-defined]  # it was there
        raise


def date_of(text: str) -> date:
    """Parse a date.

    Raises:
        typer.BadParameter: The text is not a date.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date; write one such as 2026-03-31") from None


Day = Annotated[
    date | None,
    typer.Option(
        "--date",
        parser=date_of,
        metavar="DATE",
        help="The business date; the last finished one if left out.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="TXMQ_RECONCILE_CONFIG", help="The rules, a TOML file."),
]


def last_finished(rules: Rules) -> date:
    """The last business date that is over."""
    return rules.day.of(SystemClock().wall_ms()) - timedelta(days=1)


def rules_of(config: Path | None, *, reads_banks: bool = False) -> Rules:
    """The rules in a file. Only a command that reads the banks needs their passwords.

    Raises:
        ConfigError: No file is named, or the file is invalid.
    """
    if config is None:
        raise ConfigError(
            "the rules are missing; write --config recon.toml, or set TXMQ_RECONCILE_CONFIG"
        )
    return read_rules(config, reads_banks=reads_banks)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """During the block SIGTERM acts like Ctrl-C: jobs are cancelled, and Java is stopped.

    SIGTERM comes from a supervisor, so a sentence for its log says what remains to be done.

    Raises:
        typer.Exit: With 130 after Ctrl-C, with 143 after SIGTERM.
    """

    def terminate(number: int, frame: object) -> NoReturn:
        del frame
        signal.signal(number, signal.SIG_IGN)  # A second one would interrupt the clean-up.
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except _Terminated:
        note(
            "txmq: SIGTERM stopped this before it was finished; a date that has no verdict above "
            "has no result of this run: start it again"
        )
        raise typer.Exit(TERMINATED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which libraries should treat like Ctrl-C."""


@contextmanager
def report_failures() -> Iterator[None]:
    """Turn errors of the block into one line and exit code 3.

    Raises:
        typer.Exit: With 3.
    """
    try:
        with named_extra("spark"):
            yield
    except (ConfigError, UsageError, ReconcileRefused, ResourceError, StoreError) as error:
        fail(str(error), NOT_RUN)
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # Python would write the rest at exit, fail again, and exit with another code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with suppress(BrokenPipeError):
            note("txmq: nobody reads the output any more, so the command ended")
        raise typer.Exit(NOT_RUN) from None
    except OSError as error:
        # Arrow's texts name the file, and what its store answered.
        why = " ".join(str(error).split())
        fail(
            f"a file system failed: {why}; each date has its former result or the whole new one: "
            "try again when the file system works",
            NOT_RUN,
        )
    except Exception:  # noqa: BLE001  # Python would exit with 1, and that is a verdict.
        note_lines(traceback.format_exc().rstrip("\n"))
        raise typer.Exit(NOT_RUN) from None


# Breaks, proofs and signatures

Cell: TypeAlias = str | int | Decimal | None

breaks_app = ReconcileCommands()
proofs_app = ReconcileCommands()

By = Annotated[str, typer.Option("--by", help="The name of the person who decides.")]
Reason = Annotated[str, typer.Option("--reason", help="The explanation.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Their ids, or the beginnings of the ids.")]
IdFile = Annotated[
    typer.FileText | None,
    typer.Option("--file", help="Only the ids in this file, one in each line."),
]
Bank = Annotated[str | None, typer.Option("--bank", help="Only of this bank.")]
Account = Annotated[
    str | None, typer.Option("--account", help="Only of this account, as it is in the books.")
]
Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show account numbers as they are.")]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Only this class, such as double-credit.")
]
ProofName = Annotated[
    str | None, typer.Option("--proof", help="Only this proof, such as account-table.")
]
_TEXTS: Final = {
    "key": ("transfer", True), "id_doubt": ("id doubt", False), "suggestion": ("suggestion", False),
    "payer": ("payer", True), "payee": ("payee", True), "owner": ("owner", False),
    "due": ("due", False), "overdue": ("", False),
}  # fmt: skip
"""The last columns of the list: the heading of each, and whether it is shown without any value."""
_AMOUNTS: Final = ("amount", "debited", "returned", "credited", "ordered")
_EXPORTED: Final = (
    *("break_id", "class", "was", "status", "first_seen", "age_days", "currency", *_AMOUNTS),
    *("key", "id_doubt", "suggestion"),
    *("debit_bank", "credit_bank", "payer", "payee", "message_id", "message_state"),
    *("delivery", "decided_by", "reason", "explained_by", "explanation"),
    *("owner", "ticket", "due", "overdue", "comments"),
)
_DIFFERENCES: Final = (
    *("id", "proof", "bank", "account", "since", "difference", ""),
    *("explained by", "until", "hint"),
)
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins with one of these for a formula."""
_ROLES: Final[dict[str | None, "Role"]] = {"preparer": "preparer", "reviewer": "reviewer"}


class DayRun(NamedTuple):
    """A reconciled date, and its rules."""

    day: Day = None
    config: Config = None

    def read(self) -> "tuple[Rules, Results, Run]":
        """The rules, their results, and the run in force; for the last finished date by default.

        Raises:
            ReconcileRefused: The date was not reconciled yet.
        """
        from txmq.reconcile.results import Results

        rules = rules_of(self.config)
        wanted, results = self.day or last_finished(rules), Results(rules.directory)
        run = results.current(wanted)
        if run is None:
            raise ReconcileRefused(
                f"{wanted} was not reconciled yet: txmq reconcile --date {wanted}"
            )
        return rules, results, run


class BreakChoice(NamedTuple):
    """Which breaks to choose, apart from their class."""

    bank: Bank = None
    account: Account = None
    older_than: int | None = option("Only older; business days.", metavar="DAYS")
    file: IdFile = None

    def filter(self, class_: str | None, status: str | None = None) -> "ItemFilter":
        """The filter for items of the archive.

        Raises:
            ConfigError: The class does not exist.
        """
        from txmq.reconcile.archive import ItemFilter

        _check_name("class", class_, list(Class))
        return ItemFilter(class_, status, self.bank, self.account, self.older_than)


@breaks_app.callback()
def breaks(
    ctx: typer.Context,
    *,
    day_run: DayRun,
    class_: ClassName = None,
    status: str | None = option("Only these.", metavar="new|open|changed|reopened|explained"),
    choice: BreakChoice,
    everything: bool = flag("Also items in flight, and explained ones.", "--all"),
    unmasked: Unmasked = False,
    export: Path | None = option("Write them to this .csv file."),
    json: AsJson = False,
) -> None:
    """List the breaks of a business date, oldest first; explain, withdraw or assign them."""
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        wanted, named = choice.filter(class_, status), _ids_of(None, choice.file)
        rules, results, run = day_run.read()
        items = _find(results, run, wanted, named, is_complete=everything)
        found = _with_notes(items if unmasked else list(map(mask_sides, items)), rules)
        if export is not None:
            _export(found, run, export)
            return
        words = [name for name in _TEXTS if _TEXTS[name][1] or any(one[name] for one in found)]
        headings = "break", "class", "status", "days", "amount", ""
        rows = (
            (
                *(item[name] for name in ("break_id", "class", "status", "age_days")),
                amount(item["amount"], run.result.places(item["currency"])),
                item["currency"],
                *(shortened(item[name] or "") for name in words),
            )
            for item in found
        )
        empty = f"no such breaks on {run.result.business_date}"
        columns = (*headings, *(_TEXTS[name][0] for name in words))
        Answer(found, lambda: table(columns, rows, empty=empty)).show(json=json)


@breaks_app.command("explain")
def explain_breaks(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    day_run: DayRun,
    class_: ClassName = None,
    choice: BreakChoice,
    yes: Yes = False,
) -> None:
    """Explain breaks. From the next run they no longer count as breaks, until their facts change.

    This also explains the differences of their transfers in the proofs clearing and double-entry.
    """
    with report_failures():
        from txmq.reconcile.differences import differences_in
        from txmq.reconcile.explanations import Difference, Explanation, Explanations

        wanted, named = choice.filter(class_), _ids_of(ids, choice.file)
        rules, results, run = day_run.read()
        items = _choose(results, run, wanted, named, yes=yes)
        rows = differences_in(rules.directory, run, is_complete=True)
        differences = msgspec.convert(rows, list[Difference])
        said = by, reason, SystemClock().wall_ms(), differences
        made = [Explanation.of(item, *said) for item in items]
        Explanations(rules.directory).add(made)
        for done in made:
            say(
                f"{done.break_id} counts as explained from the next run on, as long as it is "
                f"{done.class_} and its facts do not change"
            )


@breaks_app.command()
@proofs_app.command()
def withdraw(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The whole id.")],
    *,
    by: By,
    reason: str = option("Why the explanation is wrong.", default=...),
    config: Config = None,
) -> None:
    """Withdraw an explanation."""
    with report_failures():
        from txmq.reconcile.explanations import Explanations

        directory = rules_of(config).directory
        Explanations(directory).withdraw(id_, by, reason, SystemClock().wall_ms())
        say(f"{id_} is not explained any more from the next run on")


@breaks_app.command()
def assign(
    ids: Ids = None,
    *,
    by: By,
    owner: str = option("Who works on it.", default=""),
    ticket: str = option("The link to a ticket.", default=""),
    due: date | None = option("When it should be done.", parser=date_of, metavar="DATE"),
    comment: str = option("A comment; all are kept.", default=""),
    day_run: DayRun,
    class_: ClassName = None,
    choice: BreakChoice,
    yes: Yes = False,
) -> None:
    """Give breaks an owner, a ticket or a due date, or comment on them; this changes no result."""
    with report_failures():
        from txmq.reconcile.explanations import BreakNote, Explanations

        news = owner, ticket, due.isoformat() if due else "", comment
        if not any(news) or not by.strip():
            raise ConfigError("give your name, and --owner, --ticket, --due or --comment")
        wanted, named = choice.filter(class_), _ids_of(ids, choice.file)
        rules, results, run = day_run.read()
        items = _choose(results, run, wanted, named, yes=yes)
        now_ms = SystemClock().wall_ms()
        Explanations(rules.directory).add(
            [BreakNote(item["break_id"], by.strip(), now_ms, *news) for item in items]
        )
        say(f"noted for {quantity(len(items), 'break')}")


def _find(
    results: "Results",
    run: Run,
    wanted: "ItemFilter",
    ids: Sequence[str],
    *,
    is_complete: bool = False,
) -> list[dict[str, Any]]:
    """The items that match; with ids, also items that are in flight or explained."""
    from txmq.reconcile.archive import find_items, items_of

    items = items_of(results, run, wanted, is_complete=is_complete or bool(ids))
    return find_items(items, ids) if ids else items


def _choose(
    results: "Results", run: Run, wanted: "ItemFilter", ids: Sequence[str], *, yes: bool
) -> list[dict[str, Any]]:
    """The breaks that match. If there are several, the user sees their sums and confirms first."""
    if not ids and set(wanted) == {None}:
        raise ConfigError("name breaks by their ids, or choose them with --class, --bank, …")
    items = _find(results, run, wanted, ids)
    _confirm_rows(len(items), "breaks", run.result.business_date, _lines(items, run), yes=yes)
    return items


def _lines(items: list[dict[str, Any]], run: Run) -> Iterator[str]:
    """A line for each break, and the sums of each currency."""
    counts, sums = Counter[str](), Counter[str]()
    for item in items:
        yield f"{item['break_id']} {item['class']} of {shortened(item['key'])}"
        counts[item["currency"]] += 1
        sums[item["currency"]] += item["amount"]
    for currency, sum_ in sorted(sums.items()):
        worth = amount(sum_, run.result.places(currency))
        yield f"{quantity(counts[currency], 'break')}: {worth} {currency} at risk"


def _with_notes(items: list[dict[str, Any]], rules: Rules) -> list[dict[str, Any]]:
    """Breaks with their owners, tickets, due dates and comments."""
    from txmq.reconcile.explanations import BreakNotes, Explanations

    day, notes = rules.day, Explanations(rules.directory).notes()
    today, found = day.of(SystemClock().wall_ms()).isoformat(), []
    for item in items:
        owner, ticket, due, comments = notes.get(item["break_id"], BreakNotes())
        lines = (f"{moment(one.at_ms, day.zone)} {one.by}: {one.comment}" for one in comments)
        more = {"owner": owner, "ticket": ticket, "due": due, "comments": "\n".join(lines)}
        found.append(item | more | {"overdue": "overdue" if due and due < today else ""})
    return found


def _export(items: Sequence[Mapping[str, Any]], run: Run, path: Path) -> None:
    if path.suffix != ".csv":
        raise ConfigError(f"the file {path} is not .csv: name one that is")
    rows = [
        [
            Decimal(item[name]).scaleb(-run.result.places(item["currency"]))
            if name in _AMOUNTS
            else item[name]
            for name in _EXPORTED
        ]
        for item in items
    ]
    try:
        path.write_bytes(as_csv(_EXPORTED, rows))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    say(f"{quantity(len(items), 'break')} in {path}")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Rows under headings, as CSV in UTF-8 with a byte order mark.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    out = io.StringIO()
    csv.writer(out).writerows([columns, *(map(_csv_cell, row) for row in rows)])
    return out.getvalue().encode("utf-8-sig")


def _csv_cell(value: Cell) -> Cell:
    text = printable(value) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


@proofs_app.callback()
def proofs(
    ctx: typer.Context,
    *,
    day_run: DayRun,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    file: IdFile = None,
    everything: bool = flag("Also explained ones.", "--all"),
    unmasked: Unmasked = False,
    json: AsJson = False,
) -> None:
    """List the unexplained differences in a date's proofs.

    A hint names a break with the same account and amount, or entries of earlier dates that the
    book may have lost; a person decides whether they are the reason.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures():
        from txmq.reconcile.differences import (
            ABOUT_PROOFS,
            OF_ACCOUNTS,
            differences_in,
            old_entries_like,
        )

        _check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, _ids_of(None, file)
        rules, results, run = day_run.read()
        rows = differences_in(rules.directory, run, *wanted, is_complete=everything)
        hints = old_entries_like(results, run, rows, rules.day.history)
        for row in rows:
            row["hint"] = hints.get(row["id"], row["hint"])
        for row in () if unmasked else rows:
            if row["proof"] in OF_ACCOUNTS:
                row["account"] = mask(row["account"])
        shown = (
            (
                *(shortened(row[name] or "") for name in ("id", "proof", "bank", "account")),
                row["first_seen"],
                _amounts(row, run.result),
                *(row[name] or "" for name in ("currency", "explained_by", "until", "hint")),
            )
            for row in rows
        )
        empty = f"no such differences on {run.result.business_date}"
        Answer(rows, lambda: table(_DIFFERENCES, shown, empty=empty)).show(json=json)


@proofs_app.command("explain")
def explain_proofs(
    ids: Ids = None,
    *,
    by: By,
    reason: Reason,
    until: date | None = option(
        "The last business date on which it counts.", parser=date_of, metavar="DATE"
    ),
    day_run: DayRun,
    proof: ProofName = None,
    bank: Bank = None,
    account: Account = None,
    file: IdFile = None,
    yes: Yes = False,
) -> None:
    """Explain differences in proofs, from the next run until their amounts change.

    With --until, differences that are not corrected count again after that date.
    """
    with report_failures():
        from txmq.reconcile.differences import ABOUT_PROOFS, differences_in
        from txmq.reconcile.explanations import Difference, Explanations, ProofExplanation

        _check_name("proof", proof, ABOUT_PROOFS)
        wanted = proof, bank, account, _ids_of(ids, file)
        if not any(wanted):
            raise ConfigError("name differences by their ids, or choose them with --proof, …")
        rules, _, run = day_run.read()
        rows = differences_in(rules.directory, run, *wanted)
        first, now_ms = run.result.business_date, SystemClock().wall_ms()
        lines = (f"{row['id']} {row['proof']}: {_amounts(row, run.result)}" for row in rows)
        _confirm_rows(len(rows), "differences", first, lines, yes=yes)
        last = until.isoformat() if until else None
        chosen = msgspec.convert(rows, list[Difference])
        said = by, reason, now_ms, first, last
        made = [ProofExplanation.of(difference, *said) for difference in chosen]
        Explanations(rules.directory).add(made)
        dates = f"for the dates {first} to {last}" if last else f"for all dates from {first} on"
        for done in made:
            say(
                f"{done.difference.id} counts as explained from the next run on, "
                f"{dates}, as long as its amount does not change"
            )


def _amounts(row: Mapping[str, Any], result: Result) -> str:
    places = result.places(row["currency"])
    return ", ".join(signed(amount, places) for amount in row["amounts"])


def signoff(
    *,
    day_run: DayRun,
    role: str | None = option("The role of the signer.", "--as", metavar="preparer|reviewer"),
    by: str = option("The name of the signer.", default=""),
    text: str = option("A note to keep with the signature.", "--note", default=""),
    despite: str = option(
        "Why you sign although there are breaks or failed proofs; needed if there are.",
        default="",
        metavar="REASON",
    ),
    show: bool = flag("Show who has signed.", "--show"),
    json: AsJson = False,
) -> None:
    """Sign a day's result: one person prepares it, another one reviews it."""
    with report_failures():
        rules, results, run = day_run.read()
        if not show:
            if role not in _ROLES:
                raise ConfigError("choose a role: --as preparer or --as reviewer, or only --show")
            results.verify(run)
            signed = results.sign(_ROLES[role], run, by, SystemClock().wall_ms(), text, despite)
            _publish(rules, results, msgspec.structs.replace(run, sign_off=signed))
        _show_signatures(run, results, json=json)


def _publish(rules: Rules, results: "Results", run: Run) -> None:
    """Add the signatures wherever the result is stored."""
    from txmq.reconcile.report.page import page

    results.write_files(run, {"report.html": page(run), "summary.json": run.as_json()})
    if rules.recon is not None:
        from txmq.reconcile.schema import ReconSchema

        with closing(ReconSchema(rules.recon)) as schema:
            schema.sign(run)


def _show_signatures(run: Run, results: "Results", *, json: bool) -> None:
    state, given = results.signature_state(run), results.signatures(run.result.business_date)
    outdated = results.why_outdated(run)
    if json:
        about = {"state": state, "outdated": outdated, "result_digest": run.result_digest}
        as_json({**about, "signatures": given})
        return
    say(f"{run.result.business_date}: {state}, {run.result.verdict}, {run.result_digest}")
    if outdated is not None:
        say(outdated)
    rows = []
    for one in given:
        which = "this one" if one.result_digest == run.result_digest else "another one"
        at = moment(one.at_ms, run.result.zone)
        rows.append([one.role, one.by, at, which, one.note, one.despite])
    if rows:
        table(("as", "by", "at", "result", "note", "despite"), rows)


def _ids_of(named: Collection[str] | None, file: typer.FileText | None) -> tuple[str, ...]:
    """The ids that a user names, as arguments and in a file."""
    listed = file.read().split() if file is not None else []
    if file is not None and not listed:
        raise ConfigError(f"the file {file.name} has no ids; write one in each line")
    return (*(named or ()), *listed)


def _check_name(noun: str, name: str | None, known: Iterable[str]) -> None:
    if name is not None and name not in known:
        raise ConfigError(f"{noun} {name!r} does not exist; use one of {', '.join(known)}")


def _confirm_rows(count: int, nouns: str, day: str, lines: Iterable[str], *, yes: bool) -> None:
    """Before something is written for several rows, show the user ``lines`` about them, and ask."""
    if not count:
        raise ConfigError(f"no such {nouns} on {day}; nothing was written")
    if count > 1:
        for line in lines:
            note(line)
        confirm(f"Write this for all {count} {nouns}?", yes=yes, code=NOT_RUN)


# Runs

_CODES: Final = {"clean": 0, "within limits": 1, "over limits": 2}


app = ReconcileCommands()
app.add_typer(breaks_app, name="breaks")
app.add_typer(proofs_app, name="proofs")
app.command()(signoff)


Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class SparkOptions(NamedTuple):
    """How to start Spark."""

    master: str | None = option(
        "Spark's cluster, such as spark://host:7077; this machine if left out."
    )
    remote: str | None = option(
        "A Spark Connect server that runs already, such as sc://host:15002.", envvar="SPARK_REMOTE"
    )
    memory: Annotated[
        str,
        typer.Option(
            "--memory", help="Java's heap on this machine, or the memory of each executor."
        ),
    ] = "4g"
    cores: int | None = option("The number of cores; all if left out.", min=1)
    jar: list[Path] | None = option("The library of a JDBC driver; may be repeated.")
    spark: list[str] | None = option("A setting of Spark's; may be repeated.", metavar="KEY=VALUE")

    def session(self, rules: Rules, day: date, *, ui: bool = False) -> AbstractContextManager[Any]:
        """Starts Spark for the block; its log is next to the results if these are on this machine.

        Raises:
            ConfigError: An option is invalid.
        """
        from txmq.reconcile.spark import open_spark
        from txmq.reconcile.storage import open_folder

        home = open_folder(rules.directory).local
        return open_spark(
            self.master,
            remote=self.remote,
            memory=self.memory,
            cores=self.cores,
            jars=self.jar or [],
            settings=dict(map(_setting, self.spark or [])),
            log=home and home / "logs" / f"spark-{day}.log",
            ui=ui,
        )


_TO_EXTRACT: Final = SparkOptions(memory="1g")


@app.callback()
def reconcile(
    ctx: typer.Context,
    *,
    day: Day = None,
    config: Config = None,
    first: date | None = option(
        "The first of several dates.", "--from", parser=date_of, metavar="DATE"
    ),
    last: date | None = option(
        "The last of several dates.", "--to", parser=date_of, metavar="DATE"
    ),
    extract: str | None = option("Read no ledger, and use this extract.", metavar="ID"),
    reuse: bool = flag("Read no ledger, and use the latest extract.", "--reuse-extract"),
    so_far: bool = flag("The running business date, up to now. It cannot be signed.", "--so-far"),
    spark: SparkOptions,
    ui: bool | None = option(
        "Serve Spark's web pages during the run; only on a terminal if left out.",
        "--ui/--no-ui",
        show_default=False,
    ),
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Reconcile a business date, or several in their order: both banks' books and the broker's log.

    Exit codes: 0 all agree; 1 there are breaks, within the limits; 2 there are breaks over the
    limits; 3 the run failed, or an option is invalid. With several dates the worst code counts, and
    the first date that fails ends the command.
    """
    if ctx.invoked_subcommand is not None:
        return
    with report_failures(), stop_on_signals():
        rules, days = requested_days(config, day, first, last, so_far=so_far)
        if extract is not None and (reuse or len(days) > 1):
            raise ConfigError("--extract names the one extract of one date")
        wants_ui = sys.stderr.isatty() and not (quiet or spark.remote) if ui is None else ui
        session = spark.session(rules, days[0], ui=wants_ui)
        code = _run_all(rules, days, session, extract, reuse=reuse, quiet=quiet, json=json)
    raise typer.Exit(code)


@app.command(name="extract")
def extract_(
    *,
    day: Day = None,
    config: Config = None,
    spark: SparkOptions = _TO_EXTRACT,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Only read the ledgers of a business date into an extract, and print its control totals."""
    with report_failures(), stop_on_signals():
        from txmq.reconcile.extract.extraction import extract_day
        from txmq.reconcile.progress import show_progress
        from txmq.reconcile.storage import open_folder

        rules, (wanted,) = requested_days(config, day)
        session = spark.session(rules, wanted)
        with ExitStack() as stack:
            progress = stack.enter_context(show_progress(quiet=quiet))
            with progress.stage("start Spark"):
                opened = stack.enter_context(session)
            with progress.stage("extract") as stage:
                manifest = extract_day(opened, rules, wanted, open_folder(rules.directory))
                stage.rows = manifest.rows
        if json:
            as_json(manifest)
            return
        say(f"extract {manifest.extract_id} of {manifest.business_date}")
        for line in manifest.notes:
            say(f"note: {line}")
        rows = []
        for one in manifest.controls:
            amounts = ", ".join(f"{sum_} {name}" for name, sum_ in sorted(one.amounts.items()))
            ends = ("" if end is None else end for end in (one.least, one.most))
            rows.append([one.source, one.table, one.rows, amounts, *ends, one.hash_total])
        table(("source", "table", "rows", "amounts", "least id", "most", "hash total"), rows)


def requested_days(
    config: Path | None,
    day: date | None,
    first: date | None = None,
    last: date | None = None,
    *,
    so_far: bool = False,
) -> tuple[Rules, list[date]]:
    """The rules, and the days to run: by default the last finished one, or the running one.

    Raises:
        ConfigError: The options contradict each other.
    """
    if (first is None) != (last is None) or (first is not None and day is not None):
        raise ConfigError("write --date for one day, or --from and --to for several")
    if so_far and (day is not None or first is not None):
        raise ConfigError("--so-far names the running date: leave out --date, --from and --to")
    rules = rules_of(config, reads_banks=True)
    if first is not None and last is not None:
        if last < first:
            raise ConfigError(f"--to {last} is before --from {first}")
        return rules, [first + timedelta(days=index) for index in range((last - first).days + 1)]
    running = last_finished(rules) + timedelta(days=1)
    return rules, [running if so_far else day or last_finished(rules)]


def _run_all(
    rules: Rules,
    days: list[date],
    session: AbstractContextManager[Any],
    extract: str | None,
    *,
    reuse: bool,
    quiet: bool,
    json: bool,
) -> int:
    """Run the days in order; returns the worst exit code."""
    from txmq.reconcile.day import reconcile as reconcile_day
    from txmq.reconcile.progress import pages_of, show_progress
    from txmq.reconcile.results import Results, open_results

    codes = []
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress(quiet=quiet))
        with open_results(rules.directory):
            pass  # Fail because of another run or an unwritable directory before Spark starts.
        results = Results(rules.directory)
        with progress.stage("start Spark"):
            spark = stack.enter_context(session)
        if not quiet and (pages := pages_of(spark)):
            note(f"txmq: Spark's pages: {pages}")
        stack.enter_context(progress.tracking(spark))
        for day in days:
            extract_id = results.latest_extract(day) if reuse else extract
            reconciled = reconcile_day(
                spark, rules=rules, date=day, extract_id=extract_id, progress=progress
            )
            done = reconciled.write()
            reconciled.release()
            _show_run(done, f"{results.folder_of(done)}/report.html", json=json)
            codes.append(_CODES[done.result.verdict])
        warn_of_later_days(results)
    return max(codes)


def warn_of_later_days(results: "Results") -> None:
    """After a rerun, name the later days that it made outdated: the next night's run would be
    refused because of them.
    """
    newest = results.current(results.days()[-1])
    if newest is not None and (why := results.why_outdated(newest)) is not None:
        note(f"txmq: {why}")


def _show_run(run: Run, report: str, *, json: bool) -> None:
    from txmq.reconcile.report.terminal import show

    if json:
        as_json(msgspec.Raw(msgspec.json.format(run.as_json(), indent=-1)))
    else:
        show(run, _VerdictConsole(markup=False, highlight=False, emoji=False), report)
    flush()  # Show each of several days as soon as it is done.


class _VerdictConsole(Console):
    """Raises if the output is closed: rich would exit with 1, which is the code of a verdict."""

    def on_broken_pipe(self) -> None:
        """See rich."""
        raise BrokenPipeError


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f"{text!r} is not a setting of Spark's; write spark.some.key=value")
    return key, value
