"""The rules for keys, and the time for which keys must be remembered. Pure."""

from __future__ import annotations

from txmq.errors import LimitExceeded, UsageError
from txmq.limits import KEY_CHARS_MAX

__all__ = ["check_text", "redelivery_horizon_s"]


def check_text(text: object, what: str = "key") -> str:
    """Return a key or a scope if it is valid.

    Raises:
        UsageError: It is not a printable text.
        LimitExceeded: It is too long.
    """
    # MySQL ignores spaces at the end when it compares texts.
    if not isinstance(text, str) or not text.isprintable() or text.endswith(" "):
        raise UsageError(
            f"{text!r} is not a valid {what}: use a text of printable characters that does not end "
            "in a space"
        )
    if not text and what == "key":
        raise UsageError("an empty text is not a valid key")
    if len(text) > KEY_CHARS_MAX:
        raise LimitExceeded(f"the length of a {what}", KEY_CHARS_MAX, len(text))
    return text


def redelivery_horizon_s(
    *,
    kept_s: float = 72 * 3600.0,
    retries_s: float = 4 * 3600.0 + 46 * 60.0,
    longest_stop_s: float = 24 * 3600.0,
) -> float:
    """The longest time between the handling of a message and its next delivery; with the defaults
    four days and five hours.

    A message can return while its broker keeps it (``kept_s``, a broker's ``fileReservedTime``):
    an operator resets an offset, a new consumer group starts, a dead letter is sent again. Its last
    retry comes ``retries_s`` later (a group's 16 retries). A consumer that holds it may also be
    stopped for ``longest_stop_s``.
    """
    return kept_s + retries_s + longest_stop_s
