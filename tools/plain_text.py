"""Docstrings in reST as plain Markdown, for the tools that write pages from them."""

import inspect
import re

__all__ = ["paragraph", "without_roles"]

ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w[\w.]*)`")


def without_roles(text: str) -> str:
    """The text with each role as plain code."""
    return ROLE.sub(r"`\1`", text).replace("``", "`")


def paragraph(thing: object) -> str:
    """The first paragraph of an object's docstring, as one line."""
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return without_roles(" ".join(text.split()))
