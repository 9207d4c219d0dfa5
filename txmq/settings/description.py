"""Describes a tree of settings for the reference page."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct

from txmq.settings.loading import default_of, is_group
from txmq.settings.values import kind_name, show

__all__ = ["Setting", "describe", "texts_under"]


class Setting(NamedTuple):
    """One setting, as the reference page shows it."""

    key: str
    kind: str
    default: str
    text: str


def describe(shape: type[Any]) -> list[Setting]:
    """Every setting of a tree; groups follow the plain settings of their level.

    The text of a setting is the string below it in the source.
    """
    return list(_described(shape, "", None))


def _described(shape: type[Any], prefix: str, base: object) -> Iterator[Setting]:
    texts = texts_under(shape)
    groups: list[tuple[type[Any], str, object]] = []
    for field in msgspec.structs.fields(shape):
        default = default_of(field, base)
        given = None if default is NODEFAULT else default
        if is_group(field.type):
            groups.append((field.type, f"{prefix}{field.name}.", given))
        else:
            shown = "" if given is None else show(field.type, given)
            text = texts.get(field.name, "")
            yield Setting(prefix + field.name, kind_name(field.type), shown, text)
    for group in groups:
        yield from _described(*group)


def texts_under(shape: type[Struct]) -> dict[str, str]:
    """The text below each attribute in the source."""
    texts: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if base is Struct or not issubclass(base, Struct):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for above, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[above.target.id] = inspect.cleandoc(text)
    return texts
