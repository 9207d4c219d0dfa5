"""The options and the exit codes of all commands that reconcile."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from txmq.cli.commands import Commands
from txmq.cli.common import fail
from txmq.cli.output import note, note_lines
from txmq.errors import ConfigError, ReconcileRefused, ResourceError, StoreError, UsageError
from txmq.reconcile import Rules, read_rules
from txmq.runtime.clock import SystemClock
from txmq.settings.extras import named_extra

__all__ = [
    "NOT_RUN",
    "Config",
    "Day",
    "ReconcileCommands",
    "date_of",
    "last_finished",
    "report_failures",
    "rules_of",
    "stop_on_signals",
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
        with named_extra("spark"):
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
