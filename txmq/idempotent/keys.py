"""What is a key, and how long one is needed. Pure."""

from __future__ import annotations

from txmq.errors import LimitExceeded, UsageError
from txmq.limits import KEY_CHARS_MAX

__all__ = ["named", "redelivery_horizon_s"]


def named(given: object, what: str = "key") -> str:
    """A key or a scope, if it is one.

    Raises:
        UsageError: It is none.
        LimitExceeded: It is too long.
    """
    # For MySQL what ends in spaces is the same without them.
    if not isinstance(given, str) or not given.isprintable() or given.endswith(" "):
        raise UsageError(f"{given!r} is no {what}: it is a text of characters that can be seen")
    if not given and what == "key":
        raise UsageError("an empty text is no key")
    if len(given) > KEY_CHARS_MAX:
        raise LimitExceeded(f"the length of a {what}", KEY_CHARS_MAX, len(given))
    return given


def redelivery_horizon_s(
    *,
    kept_s: float = 72 * 3600.0,
    retries_s: float = 4 * 3600.0 + 46 * 60.0,
    longest_stop_s: float = 24 * 3600.0,
) -> float:
    """How long after it was handled a message can come again; with the defaults four days
    and five hours.

    A message comes again while its broker keeps it (``kept_s``, a broker's ``fileReservedTime``):
    an offset is reset, a consumer group starts anew, a dead letter is sent again. The last of its
    retries come ``retries_s`` later (a group's 16 retries), and a consumer may have been stopped
    with one in its hands.
    """
    return kept_s + retries_s + longest_stop_s
