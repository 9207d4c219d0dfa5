"""Counts in sentences: one message, two messages. Pure."""

from __future__ import annotations

__all__ = ["quantity"]


def quantity(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 message``, ``2 messages``.

    Args:
        count: How many.
        noun: The noun for one; a verb may follow it, as in ``row was``.
        plural: The words for several, where an "s" at the end is not enough.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
