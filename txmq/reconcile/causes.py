"""The cause of a failure inside Spark, in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

__all__ = ["SPARK_ERRORS", "cause_of", "last_words"]

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (Py4JError, PySparkException, OSError)
"""The exceptions raised when Spark or the connection to its Java fails."""

LENGTH_MAX: Final = 400
"""Longer texts, such as plans and stacks, belong in the log."""
_CAUSED_BY: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_JAVA_NAME: Final = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" )?(?:[a-z_][\w$]*\.)+([A-Z][\w$]*)(?:: ?|$)"
)
_ERROR: Final = re.compile(r"Error|Exception|Invalid|Could not|refused")
_GONE: Final = (
    "its Java process ended; if the machine killed it for lack of memory, give it less with "
    "--memory"
)


def cause_of(error: BaseException) -> str:
    """The first cause of a failure, in one line without Java's class names.

    Args:
        error: One of :data:`SPARK_ERRORS`, while Spark still runs, which is asked for the text.
    """
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return _GONE
    if isinstance(error, Py4JJavaError):
        text = str(error).partition("\n: ")[2]
    else:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001  # it asks a Java that may be gone, which raises all sorts
            return _GONE
    causes = _CAUSED_BY.findall(text)
    return _plain(causes[-1] if causes else text)


def last_words(log: Path) -> str:
    """The error in the log of a Java that did not start."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if _ERROR.search(line)]
    return _plain((errors or lines or [""])[0])


def _plain(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else "it gives no reason"
    line = _JAVA_NAME.sub(r"\1: ", line).rstrip(": ")
    return line if len(line) <= LENGTH_MAX else f"{line[: LENGTH_MAX - 1]}…"
