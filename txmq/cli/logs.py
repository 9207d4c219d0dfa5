"""The format of a program's log: ``key=value`` for people, JSON lines for machines.

In both formats, the ``extra`` of a logging call becomes fields of its line.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from txmq.text import printable, printable_json

__all__ = ["Form", "JsonFormatter", "Level", "TextFormatter", "configure"]

Form = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

_PLAIN: Final = re.compile(r"[^\s\"=\\]+")
_OF_A_RECORD: Final = frozenset(
    (*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName")
)


def configure(form: Form, level: Level, **fields: object) -> None:
    """Write every log record of this process to standard error.

    Args:
        form: The format.
        level: The lowest level that is written.
        fields: Fields of every record.
    """

    def complete(record: logging.LogRecord) -> bool:
        vars(record).update(fields)
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(complete)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """``time LEVEL logger message key=value`` on one line; tracebacks follow on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        parts = [_time_of(record), f"{record.levelname:7}", record.name, _one_line(record)]
        parts += [f"{name}={_quote(value)}" for name, value in _fields_of(record).items()]
        lines = [" ".join(parts)]
        if record.exc_info:
            lines += map(printable, self.formatException(record.exc_info).split("\n"))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields_of(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return printable_json(msgspec.json.encode(line, enc_hook=str).decode())


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OF_A_RECORD}


def _one_line(record: logging.LogRecord) -> str:
    # Clients choose ids and reasons: they must not forge a second record or control the terminal.
    return printable(record.getMessage().replace("\r", "\\r").replace("\n", "\\n"))


def _quote(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and printable(text) == text:
        return text
    return printable_json(msgspec.json.encode(text).decode())
