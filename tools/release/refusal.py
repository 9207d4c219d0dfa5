"""The error that ends a release."""

from collections.abc import Sequence
from pathlib import Path
from subprocess import run


class ReleaseRefused(Exception):
    """Something is wrong with what would be released; the text says what, and what to do."""


def checked(command: Sequence[str | Path], what: str, **options: object) -> str:
    """The output of a command.

    Raises:
        ReleaseRefused: It failed; the text ends with the last lines of its output.
    """
    done = run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ReleaseRefused("\n".join([f"{what} failed:", *lines[-20:]]))
    return done.stdout
