"""Masked account numbers for reports. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["HIDDEN", "mask"]

HIDDEN: Final = "…"
"""The replacement of all hidden characters, regardless of their number."""

_SHOWN: Final = ((12, 2, 4), (8, 2, 2), (6, 0, 2))
"""The least length, and the characters shown at the head and at the end. At least half of a number
stays hidden, and a short one stays hidden completely."""


def mask(account: str) -> str:
    """An account number without its middle; the same number always has the same mask.

    ``6222 0200 1234 0011`` becomes ``62…0011``. With the books, the mask and the transfer's key
    identify the account; with the report alone they do not. Two accounts may have the same
    mask.

    Args:
        account: The number. Spaces are ignored.
    """
    bare = "".join(account.split())
    for least, head, end in _SHOWN:
        if len(bare) >= least:
            return f"{bare[:head]}{HIDDEN}{bare[-end:]}"
    return HIDDEN
