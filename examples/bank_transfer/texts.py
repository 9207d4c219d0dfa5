"""Texts of other programs, as people may read them."""

from __future__ import annotations

__all__ = ["visible", "words"]


def words(error: BaseException) -> str:
    """The first line of an error, without the statement that SQLAlchemy adds."""
    seen = error
    while (inner := getattr(seen, "orig", None)) is not None:
        seen = inner
    return visible(str(seen).strip().partition("\n")[0]) or type(seen).__name__


def visible(text: str) -> str:
    """A text as one line; characters that would control a terminal or a page become numbers."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(sign: str) -> str:
    if sign.isspace():
        return " "
    return sign if sign.isprintable() else f"⟨U+{ord(sign):04X}⟩"
