"""The command line: one file per group of commands, joined in :mod:`txmq.cli.root`.

Exit codes are the same everywhere: 0 done, 1 refused or failed, 2 wrongly called or wrongly set up.
What a command was asked for goes to standard output, everything else to standard error.

The modules that hold commands do not put off their annotations: typer reads them when it runs.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command that the program's arguments name; typer exits by itself."""
    try:
        from txmq.cli.root import app  # Whoever uses txmq as a library has no need of typer.
    except ModuleNotFoundError as problem:
        if problem.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"txmq: the command line needs {problem.name}: pip install 'txmq[broker]'\n"
        )
        return 1
    app(prog_name="txmq")
    return 0
