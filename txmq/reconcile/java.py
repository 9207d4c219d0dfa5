"""A check for a Java that Spark runs on, before anything is started."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmq.errors import ReconcileRefused

__all__ = ["check_java"]

LEAST: Final = 17
ANSWER_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL: Final = (
    f"install Java {LEAST} or later (Debian: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17, then export JAVA_HOME=$(brew --prefix openjdk@17))"
)


def check_java(environ: Mapping[str, str]) -> None:
    """Check that the Java that Spark would start in an environment exists and is new enough.

    Raises:
        ReconcileRefused: Java is missing or too old; the message says how to install it.
    """
    home = environ.get("JAVA_HOME", "")
    named = str(Path(home, "bin", "java")) if home else "java"
    program = shutil.which(named, path=environ.get("PATH", ""))
    if program is None:
        why = "Spark needs Java, and none was found:"
        if home:
            why = f"JAVA_HOME is {home}, which has no bin/java: correct or unset it, or"
        raise ReconcileRefused(f"{why} {_INSTALL}")
    found = None
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(  # noqa: S603  # the program that Spark would start next
            [program, "-version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
        )
        found = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    if found is None:  # A Mac has a program ``java`` even without Java.
        raise ReconcileRefused(f"{program} does not report its version: {_INSTALL}")
    if int(found[1]) < LEAST:
        raise ReconcileRefused(f"{program} is Java {found[1]}, too old for Spark: {_INSTALL}")
