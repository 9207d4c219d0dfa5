"""Validate names of topics and groups. Pure."""

from __future__ import annotations

import re
from typing import Final

from txmq.errors import LimitExceeded, LocalProtocolError
from txmq.limits import TOPIC_CHARS_MAX

__all__ = ["check_name"]

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_name(kind: str, name: str, limit: int = TOPIC_CHARS_MAX) -> None:
    """Reject an invalid name.

    Raises:
        LocalProtocolError: It is empty or contains an invalid character.
        LimitExceeded: It is too long.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LocalProtocolError(
            f"{name!r} is not a valid {kind} name; use letters, digits, '_', '-', '%' and '|'"
        )
    if len(name) > limit:
        raise LimitExceeded(f"the length of a {kind}'s name", limit, len(name))
