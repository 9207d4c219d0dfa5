"""Text that a terminal, a log or a page shows without obeying it. Pure.

Names, ids, keys, reasons, addresses and bodies come from other programs. An escape sequence, a
change of the writing direction or a line break in one of them could hide or forge output.
"""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["printable", "printable_json"]

_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_BLANKS: Final = frozenset("\t\n\r\v\f\x85\u2028\u2029")


def printable(text: str) -> str:
    """The text as one line in which every character is visible.

    A character that a terminal would obey instead of showing, such as an escape sequence, a change
    of the writing direction or a space without width, appears as its number: ``⟨U+001B⟩``. Line
    breaks and tabs become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def printable_json(text: str) -> str:
    """JSON with the same meaning, with those characters escaped by number.

    Line breaks outside of strings stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _visible(sign: str) -> str:
    if sign in _BLANKS:
        return " "
    return f"⟨U+{ord(sign):04X}⟩" if unicodedata.category(sign) in _UNSEEN else sign


def _escaped(sign: str) -> str:
    if sign == "\n" or unicodedata.category(sign) not in _UNSEEN:
        return sign
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
