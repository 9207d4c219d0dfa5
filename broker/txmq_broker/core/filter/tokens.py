"""A condition cut into words, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from txmq.errors import SubscriptionInvalid

__all__ = ["DECIMAL", "END", "FLOATING", "NAME", "QUOTED", "Token", "tokens_of", "wrong"]

NAME: Final = "name"
QUOTED: Final = "quoted"
DECIMAL: Final = "decimal"
FLOATING: Final = "floating"
END: Final = "end"

_KEYWORDS: Final = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH"
KEYWORDS: Final = frozenset(_KEYWORDS.split())
# The longest match counts: numbers with a point or an exponent come before those without.
_TOKEN: Final = re.compile(
    r"[ \t\n\r\f]*(?:(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<floating>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>0|[1-9][0-9]*[lL]?)"
    r"|(?P<quoted>'[^']*(?:''[^']*)*')"
    r"|(?P<comment>--|/\*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
    r"|(?P<end>\Z))?"
)
_CLOSING: Final = frozenset((NAME, QUOTED, DECIMAL, FLOATING, ")", "TRUE", "FALSE", "NULL"))
_SHOWN_CHARS: Final = 40


class Token(NamedTuple):
    """A word: its kind (keywords and signs are their own), how it is written, where it stands."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        """How it is named to somebody who did not expect it."""
        if self.kind == END:
            return "the end"
        shown = self.text if len(self.text) <= _SHOWN_CHARS else self.text[:_SHOWN_CHARS] + "..."
        return shown if self.kind == QUOTED else f'"{shown}"'


def wrong(at: int, why: str) -> SubscriptionInvalid:
    """The refusal of an expression for what stands at a place of it."""
    return SubscriptionInvalid(f"the filter is wrong at position {at + 1}: {why}")


def tokens_of(expression: str) -> Iterator[Token]:
    """The words of an expression one by one, and its end from then on.

    Raises:
        SubscriptionInvalid: Something in it is no word.
    """
    last_line = max(expression.rfind("\n"), expression.rfind("\r"))
    at, kind = 0, ""
    while True:
        match = _TOKEN.match(expression, at)
        assert match is not None, "blanks are optional, and so is all else"
        found = match.lastgroup
        if found is None:
            raise wrong(match.end(), _strange(expression, match.end()))
        text, at = match[found], match.start(found)
        if found == "comment":
            # In the last line dashes are a comment where nothing but an operator could stand.
            if text == "/*" or at < last_line or kind in _CLOSING:
                at = _comment_end(expression, at)
                continue
            text, found = "-", "sign"
        kind = found
        if found == "sign":
            kind = text
        elif found == NAME and text.upper() in KEYWORDS:
            kind = text.upper()
        yield Token(kind, text, at)
        at += len(text)
        if text == "0" and expression[at : at + 1].isdecimal():
            raise wrong(at - 1, "a whole number does not begin with 0")


def _comment_end(expression: str, at: int) -> int:
    """The place behind a comment.

    In RocketMQ's grammar one of dashes ends with its line. In the last line they are two signs
    where a value is due; behind a value they are not looked at, which comes to the same as here.
    """
    if expression[at] == "-":
        return _line_end(expression, at)
    close = expression.find("*/", at + 2)
    if close < 0:
        raise wrong(at, "a comment begins here and does not end")
    return close + 2


def _line_end(expression: str, at: int) -> int:
    ends = [end for end in (expression.find("\n", at), expression.find("\r", at)) if end >= 0]
    return min(ends, default=len(expression))


def _strange(expression: str, at: int) -> str:
    sign = expression[at]
    if sign == "'":
        return "a text begins here and does not end; a quote inside is written twice"
    if sign in '"`\u2018\u2019\u201c\u201d':
        return "texts stand in single quotes ('), and names of properties in none"
    if sign == "!":
        return 'no word begins with "!"; "not equal" is <>'
    return f"no word begins with {sign!r}"
