"""Text for people: visible characters only, counts with their nouns, and no repeated log lines.

Names, ids, keys, reasons, addresses and bodies come from other programs. An escape sequence, a
change of the writing direction or a line break in one of them could hide or forge output.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import Final

from txmq.limits import REPEATED_LINES_MAX

__all__ = ["RepeatedLines", "printable", "printable_json", "quantity"]

_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_BLANKS: Final = frozenset("\t\n\r\v\f\x85\u2028\u2029")


def printable(text: str) -> str:
    """The text as one line in which every character is visible.

    A character that a terminal would obey instead of showing, such as an escape, a change of the
    writing direction or a zero-width space, appears as its number: ``⟨U+001B⟩``. Line breaks and
    tabs become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def printable_json(text: str) -> str:
    """JSON with the same meaning, in which the characters that :func:`printable` replaces are
    escaped by number. Line breaks outside of strings stay.
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


def quantity(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 message``, ``2 messages``.

    Args:
        count: The number.
        noun: The noun for one; a verb may follow it, as in ``row was``.
        plural: The words for several, if adding an "s" is not enough.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


class RepeatedLines:
    """Of equal lines, lets only the first, the tenth, the hundredth and so on through."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, line: str) -> str | None:
        """Count a line.

        Returns:
            How often it occurred, as words to append to it; ``None`` if it must not be written.
        """
        if len(self._counts) >= REPEATED_LINES_MAX and line not in self._counts:
            self._counts.clear()
        self._counts[line] += 1
        count = self._counts[line]
        if count != 10 ** (len(str(count)) - 1):
            return None
        return f" ({count} times)" if count > 1 else ""
