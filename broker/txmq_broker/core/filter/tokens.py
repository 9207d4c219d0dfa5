"""The tokens of a condition, each with its position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from txmq.errors import SubscriptionInvalid

__all__ = ["DECIMAL", "END", "FLOATING", "NAME", "QUOTED", "Token", "invalid_filter", "tokens_of"]

NAME: Final = "name"
QUOTED: Final = "quoted"
DECIMAL: Final = "decimal"
FLOATING: Final = "floating"
END: Final = "end"

_KEYWORDS: Final = "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH"
KEYWORDS: Final = frozenset(_KEYWORDS.split())
# The longest match wins: numbers with a point or an exponent come before those without.
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
    """A token: its kind (for keywords and signs the text itself), its text and its position."""

    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        """The token in an error text."""
        if self.kind == END:
            return "the end"
        shown = self.text if len(self.text) <= _SHOWN_CHARS else self.text[:_SHOWN_CHARS] + "..."
        return shown if self.kind == QUOTED else f'"{shown}"'


def invalid_filter(at: int, why: str) -> SubscriptionInvalid:
    """The error for a position of an expression."""
    return SubscriptionInvalid(f"the filter is wrong at position {at + 1}: {why}")


def tokens_of(expression: str) -> Iterator[Token]:
    """Yield the tokens of an expression, then end tokens forever.

    Raises:
        SubscriptionInvalid: The expression has an invalid token.
    """
    last_line = max(expression.rfind("\n"), expression.rfind("\r"))
    at, kind = 0, ""
    while True:
        match = _TOKEN.match(expression, at)
        assert match is not None, "the pattern matches the empty text"
        found = match.lastgroup
        if found is None:
            raise invalid_filter(match.end(), _strange(expression, match.end()))
        text, at = match[found], match.start(found)
        if found == "comment":
            # In the last line dashes are a comment only where an operator is expected.
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
            raise invalid_filter(at - 1, "a whole number does not begin with 0")


def _comment_end(expression: str, at: int) -> int:
    """The position after a comment.

    In RocketMQ's grammar a comment of dashes needs the end of a line. So in the last line, where a
    value is expected, the dashes are two minus signs. After a value RocketMQ ignores the rest,
    which has the effect of a comment.
    """
    if expression[at] == "-":
        return _line_end(expression, at)
    close = expression.find("*/", at + 2)
    if close < 0:
        raise invalid_filter(at, "a comment begins here and does not end")
    return close + 2


def _line_end(expression: str, at: int) -> int:
    ends = [end for end in (expression.find("\n", at), expression.find("\r", at)) if end >= 0]
    return min(ends, default=len(expression))


def _strange(expression: str, at: int) -> str:
    sign = expression[at]
    if sign == "'":
        return "a text begins here and does not end; a quote inside is written twice"
    if sign in '"`\u2018\u2019\u201c\u201d':
        return "write texts in single quotes ('), and names of properties without quotes"
    if sign == "!":
        return '"!" is not allowed here; "not equal" is <>'
    return f"{sign!r} is not allowed here"
