"""The options and the exit codes of all commands that reconcile."""

import os
import signal
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from txmq.cli.common import confirm, fail
from txmq.cli.output import note, note_lines
from txmq.errors import ConfigError, ReconcileRefused, ResourceError, StoreError, UsageError
from txmq.extras import named_extra
from txmq.reconcile import Rules, Run, read_rules
from txmq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from txmq.reconcile.results import Results

__all__ = [
    "NOT_RUN",
    "Account",
    "Bank",
    "By",
    "Config",
    "Day",
    "IdFile",
    "Ids",
    "Reason",
    "ReconcileGroup",
    "Unmasked",
    "check_name",
    "confirm_rows",
    "date_of",
    "ids_of",
    "report_failures",
    "requested_days",
    "rules_of",
    "run_of",
    "stop_on_signals",
    "warn_of_later_days",
]

NOT_RUN: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class ReconcileGroup(TyperGroup):
    """Commands that exit with 2 only if breaks exceed the limits, and with 3 if wrongly called."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """See typer; options of the group itself are read here."""
        with _change_exit_code():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """See typer; options of the commands in it are read here."""
        with _change_exit_code():
            return super().invoke(ctx)


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


def requested_days(
    config: Path | None,
    day: date | None,
    first: date | None = None,
    last: date | None = None,
    *,
    so_far: bool = False,
) -> tuple[Rules, list[date]]:
    """The rules, and the days to run; if none is named, the last finished day, or the running one.

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
    return rules, [day or _last_finished(rules) + timedelta(days=so_far)]


def _last_finished(rules: Rules) -> date:
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


def run_of(config: Path | None, day: date | None) -> tuple[Rules, "Results", Run]:
    """The rules, their results, and the run in force of a day: the last finished one if none is
    named.

    Raises:
        ConfigError: No file of rules is named, or the file is invalid.
        ReconcileRefused: The day has no run.
    """
    from txmq.reconcile.results import Results

    rules = rules_of(config)
    wanted, results = day or _last_finished(rules), Results(rules.directory)
    run = results.current(wanted)
    if run is None:
        raise ReconcileRefused(f"{wanted} was not reconciled yet: txmq reconcile --date {wanted}")
    return rules, results, run


def ids_of(named: Collection[str] | None, file: typer.FileText | None) -> tuple[str, ...]:
    """The ids that a user names, as arguments and in a file.

    Raises:
        ConfigError: The file has no ids.
    """
    listed = file.read().split() if file is not None else []
    if file is not None and not listed:
        raise ConfigError(f"the file {file.name} has no ids; write one in each line")
    return (*(named or ()), *listed)


def check_name(noun: str, name: str | None, known: Iterable[str]) -> None:
    """Check a name from a closed list.

    Raises:
        ConfigError: It is not in the list.
    """
    if name is not None and name not in known:
        raise ConfigError(f"{noun} {name!r} does not exist; use one of {', '.join(known)}")


def confirm_rows(count: int, nouns: str, day: str, lines: Iterable[str], *, yes: bool) -> None:
    """Before something is written for several rows, show the user ``lines`` about them, and ask.

    Raises:
        ConfigError: There is no row.
    """
    if not count:
        raise ConfigError(f"no such {nouns} on {day}; nothing was written")
    if count > 1:
        for line in lines:
            note(line)
        confirm(f"Write this for all {count} {nouns}?", yes=yes, code=NOT_RUN)


def warn_of_later_days(results: "Results") -> None:
    """After a rerun, name the later days that are outdated: the next night would be refused for
    them.
    """
    newest = results.current(results.days()[-1])
    if newest is not None and (why := results.why_outdated(newest)) is not None:
        note(f"txmq: {why}")


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """During the block SIGTERM acts as Ctrl-C does: jobs are cancelled, and Java is ended.

    SIGTERM comes from a supervisor, whose log then has a sentence that says what remains.

    Raises:
        typer.Exit: With 130 after Ctrl-C, with 143 after SIGTERM.
    """

    def terminate(number: int, frame: object) -> NoReturn:
        del frame
        signal.signal(number, signal.SIG_IGN)  # A second one would break off the cleaning up.
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
    """SIGTERM, which libraries shall treat as Ctrl-C."""


@contextmanager
def report_failures() -> Iterator[None]:
    """Turn errors of the block into one line and exit code 3.

    Raises:
        typer.Exit: With 3.
    """
    try:
        with named_extra():
            yield
    except (ConfigError, UsageError, ReconcileRefused, ResourceError, StoreError) as error:
        fail(str(error), NOT_RUN)
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # Python would write the rest at its end, fail again, and exit with another code.
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
