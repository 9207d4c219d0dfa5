"""Masked account numbers for reports. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["HIDDEN", "RULE", "mask", "mask_all"]

HIDDEN: Final = "…"
"""The replacement of all hidden characters, regardless of their number."""

RULE: Final = (
    "Account numbers of 12 or more characters show their first 2 and last 4, those of 8 to 11 "
    "their first 2 and last 2, and shorter ones, such as a bank's own accounts, all of them."
)
_SHOWN: Final = ((12, 2, 4), (8, 2, 2))
"""The least length, and the characters shown at the head and at the end."""


def mask(account: str) -> str:
    """An account number without its middle; the same number always has the same mask.

    ``6222 0200 1234 0011`` becomes ``62…0011``. At least half of a number stays hidden, but a
    number with fewer than 8 characters is shown. With the books, the mask and the transfer's key
    identify the account; with the report alone they do not. Two accounts may have the same
    mask. Spaces are ignored.
    """
    bare = "".join(account.split())
    for least, head, end in _SHOWN:
        if len(bare) >= least:
            return f"{bare[:head]}{HIDDEN}{bare[-end:]}"
    return bare


def mask_all(accounts: str) -> str:
    """The masks of the accounts of one side of a transfer, joined by `` / `` if it has several."""
    return " / ".join(map(mask, accounts.split(" / ")))
