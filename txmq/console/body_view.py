"""A message's body as a page shows it: text, JSON or hex. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

__all__ = ["BodyView", "body_view", "first_line"]

SHOWN_BYTES: Final = 32 * 1024
"""How much of a body a page shows as text; a person reads less."""
HEX_BYTES: Final = 4 * 1024
_ROW: Final = 16
_FIRST_CHARS: Final = 80


class BodyView(NamedTuple):
    """A body in one form."""

    form: str
    """``json``, ``text`` or ``hex``."""
    forms: tuple[str, ...]
    """The forms that this body has."""
    lines: tuple[str, ...]
    size: int
    shown: int
    """The number of bytes that are shown, from the beginning."""


def body_view(body: bytes, wanted: str = "") -> BodyView:
    """The beginning of a body in the wanted form, or in the most readable one that it has."""
    found: dict[str, tuple[str, ...]] = {}
    if len(body) <= SHOWN_BYTES and (pretty := _json(body)) is not None:
        found["json"] = tuple(pretty.split("\n"))
    if (text := _text(body)) is not None:
        found["text"] = tuple(text.split("\n"))
    found["hex"] = tuple(_hex_rows(body[:HEX_BYTES]))
    form = wanted if wanted in found else next(iter(found))
    shown = min(len(body), HEX_BYTES if form == "hex" else SHOWN_BYTES)
    return BodyView(form, tuple(found), found[form], len(body), shown)


def first_line(body: bytes) -> str:
    """The beginning of a body for a row of a list: its text, or its bytes in hex."""
    text = _text(body[: 4 * _FIRST_CHARS + 4])
    if text is None:
        text = body[:_FIRST_CHARS].decode(errors="replace")
        if "\ufffd" in text[: _FIRST_CHARS // 4]:
            return body[: _FIRST_CHARS // 4].hex(" ")
    line = text.lstrip().partition("\n")[0]
    return line if len(line) <= _FIRST_CHARS else f"{line[:_FIRST_CHARS]}…"


def _json(body: bytes) -> str | None:
    try:
        if not isinstance(msgspec.json.decode(body), dict | list):
            return None
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _text(body: bytes) -> str | None:
    try:
        return body[:SHOWN_BYTES].decode()
    except UnicodeDecodeError as error:
        # The cut may have split the last character.
        if len(body) > SHOWN_BYTES and error.start >= SHOWN_BYTES - 3:
            return body[: error.start].decode()
        return None


def _hex_rows(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:06x}  {row.hex(' '):{3 * _ROW - 1}}  {signs}"
