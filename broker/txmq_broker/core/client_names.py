"""The rules for client ids and group names. Pure.

Operators read these names in tables and in the log, and retry topics contain the names of consumer
groups.
"""

from __future__ import annotations

import re
from typing import Final

from txmq.errors import InternalError
from txmq.limits import CLIENT_ID_CHARS_MAX, GROUP_CHARS_MAX

__all__ = [
    "check_client_id",
    "check_consumer_group",
    "check_producer_group",
    "producer_group_fault",
]

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SHOWN_CHARS: Final = 60


def check_consumer_group(name: str) -> None:
    """Refuse a consumer group's name that stock clients also refuse.

    Raises:
        InternalError: It is empty, too long, or has characters that a topic's name may not have.
    """
    if len(name) > GROUP_CHARS_MAX:
        raise InternalError(_too_long("consumer group", name, GROUP_CHARS_MAX))
    if not _LEGAL.fullmatch(name):
        raise InternalError(
            f"the consumer group {_start(name)} is empty or holds illegal characters; use letters, "
            "digits, '_', '-', '%' and '|'"
        )


def check_producer_group(name: str) -> None:
    """Refuse a producer group's name that cannot be displayed.

    Raises:
        InternalError: It is too long, or holds characters that are not printable.
    """
    if fault := producer_group_fault(name):
        raise InternalError(fault)


def check_client_id(name: str) -> None:
    """Refuse a client id that cannot be displayed.

    Raises:
        InternalError: It is too long, or holds characters that are not printable.
    """
    if fault := _fault("client id", name, CLIENT_ID_CHARS_MAX):
        raise InternalError(fault)


def producer_group_fault(name: str) -> str:
    """Return why a producer group's name is invalid; empty if it is valid."""
    return _fault("producer group", name, GROUP_CHARS_MAX)


def _fault(kind: str, name: str, chars_max: int) -> str:
    if len(name) > chars_max:
        return _too_long(kind, name, chars_max)
    if not name.isprintable():
        return (
            f"the {kind} {_start(name)} holds control characters, or others that are not printable"
        )
    return ""


def _too_long(kind: str, name: str, chars_max: int) -> str:
    return f"the {kind} {_start(name)} has {len(name)} characters; at most {chars_max} are allowed"


def _start(name: str) -> str:
    return ascii(name[:_SHOWN_CHARS]) + ("..." if len(name) > _SHOWN_CHARS else "")
