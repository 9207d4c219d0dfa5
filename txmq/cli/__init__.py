"""The command line: one file per group of commands, joined in :mod:`txmq.cli.root`.

:mod:`txmq.cli.commands` makes commands of functions: their options, ``--json``, lists, ``--watch``.

Exit codes are the same everywhere: 0 done, 1 refused or failed, 2 wrongly called or wrongly set up.
Results go to standard output, everything else to standard error.

Modules with commands evaluate their annotations at once, because typer reads them when it runs.
"""

from __future__ import annotations

import sys
from traceback import format_exception
from types import TracebackType

from txmq.runtime.process import restore_interrupt
from txmq.text import printable

__all__ = ["main", "print_failure"]


def main() -> int:
    """Run the command that the program's arguments name; typer exits by itself."""
    sys.excepthook = print_failure  # Before typer is imported, because typer keeps this hook.
    restore_interrupt()
    try:
        from txmq.cli.root import app  # A program that uses txmq as a library needs no typer.
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(f"txmq: the command line needs {error.name}: pip install 'txmq[cli]'\n")
        return 1
    app(prog_name="txmq")
    return 0


def print_failure(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of a bug; text in it that came over the wire is escaped."""
    for line in "".join(format_exception(kind, error, trace)).rstrip("\n").split("\n"):
        sys.stderr.write(printable(line) + "\n")
