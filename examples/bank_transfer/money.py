"""Amounts of money: whole minor units of a currency, and never a float."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["DIGITS", "Money"]

DIGITS: Final = {"CNY": 2, "EUR": 2, "JPY": 0, "USD": 2}
"""The currencies of the banks, with their digits after the decimal point."""
WHOLE_MAX: Final = 15
"""Digits before the decimal point, so that every amount fits into the books."""

_WRITTEN: Final = re.compile(r"(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<rest>\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in minor units: 10,000.00 yuan are 1,000,000 fen.

    Raises:
        ValueError: The currency is unknown.
    """

    minor: int
    currency: str

    def __post_init__(self) -> None:
        """Check the currency."""
        if self.currency not in DIGITS:
            known = ", ".join(DIGITS)
            raise ValueError(f"{self.currency!r} is not a currency of these banks; use {known}")

    @classmethod
    def read(cls, text: str, currency: str) -> Self:
        """An amount as people write it: ``10000``, ``10,000.00``.

        Raises:
            ValueError: The text is not an amount, is too large, or has too many digits after the
                point.
        """
        nothing = cls(0, currency)
        digits = DIGITS[nothing.currency]
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            usual = str(cls(10_000 * 10**digits, currency)).removesuffix(f" {currency}")
            raise ValueError(f"{text!r} is not an amount; write one like {usual}")
        rest = found["rest"] or ""
        if len(rest) > digits:
            raise ValueError(f"{currency} has {digits} digits after the point, not {len(rest)}")
        whole = found["whole"].replace(",", "")
        if len(whole) > WHOLE_MAX:
            raise ValueError(f"{whole[:WHOLE_MAX]}... has more than {WHOLE_MAX} digits")
        return cls(int(whole + rest.ljust(digits, "0")), currency)

    def __str__(self) -> str:
        digits = DIGITS[self.currency]
        sign = "-" if self.minor < 0 else ""
        whole, rest = divmod(abs(self.minor), 10**digits)
        behind = f".{rest:0{digits}}" if digits else ""
        return f"{sign}{whole:,}{behind} {self.currency}"
