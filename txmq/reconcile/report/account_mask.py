"""Account numbers as far as a report may show them. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["HIDDEN", "mask"]

HIDDEN: Final = "…"
"""What stands for all that is not shown, however much that is."""

_SHOWN: Final = ((12, 2, 4), (8, 2, 2), (6, 0, 2))
"""From how many characters on, how many are shown at the head and at the end. At least half of a
number stays hidden, and of a short one all of it."""


def mask(account: str) -> str:
    """An account number with its middle left out; the same for the same number, always.

    ``6222 0200 1234 0011`` becomes ``62…0011``. With the books, the mask and the transfer's key
    identify the account; with the report alone they do not. Two accounts may have the same
    mask.

    Args:
        account: The number. Spaces in it count for nothing.
    """
    bare = "".join(account.split())
    for least, head, end in _SHOWN:
        if len(bare) >= least:
            return f"{bare[:head]}{HIDDEN}{bare[-end:]}"
    return HIDDEN
