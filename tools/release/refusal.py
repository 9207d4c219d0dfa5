"""The error that ends a release."""

from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired, run
from typing import Final

COMMAND_S: Final = 1200
"""Even the installation of Spark on a busy machine ends before."""


class ReleaseRefused(Exception):
    """Something is wrong with what would be released; the text says what, and what to do."""


def checked(command: Sequence[str | Path], what: str, **options: object) -> str:
    """The output of a command.

    Raises:
        ReleaseRefused: It failed, or does not end; the text has the last lines of its output.
    """
    try:
        done = run(
            command, capture_output=True, text=True, check=False, timeout=COMMAND_S, **options
        )
    except TimeoutExpired as error:
        raise ReleaseRefused(f"{what} did not end within {COMMAND_S} s") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise ReleaseRefused("\n".join([f"{what} failed:", *lines[-20:]]))
    return done.stdout
