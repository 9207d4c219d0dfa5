"""Print docs/reference/reconcile-rules.md: every key of a reconciliation's rules, read from the
structs that they are made into.
"""

import inspect
from collections.abc import Iterator
from datetime import date
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from txmq.reconcile.rules import Constant, Namespaces, Rules
from txmq.settings.description import texts_under
from txmq.settings.loading import group_of

HEAD = """\
# The rules of a reconciliation

<!-- Printed by `python -m tools.reconcile_rules`; change the rules, not this page. -->

This page has every key of the file that `txmq reconcile --config` names.
[Write the rules](../howto/reconcile-rules.md) shows a complete file.

Relative paths begin at the folder of the file.
In each text, `${VARIABLE}` stands for the value of a variable of the environment.
Durations are `"90s"`, `"20m"`, `"2h"`, `"1d"`.
"""


class Section(NamedTuple):
    """A table of the file."""

    heading: str
    shape: type[Struct]
    text: str


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(_section, _sections(Section("The file itself", Rules, ""), "")))


def _section(section: Section) -> str:
    doc = _plain(f"{inspect.getdoc(section.shape) or ''} {section.text}")
    lines = ["", f"## {section.heading}", "", doc, "", "| key | default | value | meaning |"]
    lines.append("|---|---|---|---|")
    texts = texts_under(section.shape)
    for name, kind, default in _fields(section.shape):
        if _group(kind) is None:
            cells = f"`{name}`", _shown(default), _kind_name(kind), _plain(texts.get(name, ""))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _sections(section: Section, path: str) -> Iterator[Section]:
    yield section
    texts = texts_under(section.shape)
    for name, kind, default in _fields(section.shape):
        group = _group(kind)
        if group is None:
            continue
        shape, form = group
        inner = f"{path}{name}"
        needed = ""
        if default is NODEFAULT:
            needed = " At least one." if form == "[[{}]]" else " Required."
        below = Section(f"`{form.format(inner)}`", shape, texts.get(name, "") + needed)
        yield from _sections(below, f"{inner}.")


def _fields(shape: type[Struct]) -> Iterator[tuple[str, Any, object]]:
    for field in msgspec.structs.fields(shape):
        default = field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        yield field.encode_name, field.type, default


def _group(kind: Any) -> tuple[type[Struct], str] | None:
    """The struct that a key is made into, and how its table is headed."""
    shape = group_of(kind)
    if shape in {None, Constant, Namespaces}:
        return None
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return shape, {tuple: "[[{}]]", dict: "[{}.CNY]"}.get(get_origin(kind), "[{}]")


def _kind_name(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind_name(inner[0]) + _bounds(*inner[1:])
    if origin is Literal:
        return " or ".join(f'`"{choice}"`' for choice in inner)
    if origin in (tuple, frozenset):
        days = get_origin(inner[0]) is Literal
        return "list of days of the week" if days else f"list of {_kind_name(inner[0])}s"
    if origin is dict:
        name = _kind_name(inner[1])
        return f"table of {'lists of texts' if name == 'list of texts' else f'{name}s'}"
    if origin in (Union, UnionType):
        return " or ".join(_kind_name(part) for part in inner if part is not NoneType)
    named = {str: "text", int: "whole number", bool: "true or false", date: "date"}
    named |= {Constant: '`{ is = "…" }`', Namespaces: "`{ column = …, names = { … } }`"}
    return named[kind]


def _bounds(meta: Meta) -> str:
    if meta.pattern is not None:
        return ", a plain name"
    if meta.le is None:
        return ""
    return f", {meta.ge} to {meta.le}"


def _shown(default: object) -> str:
    match default:
        case _ if default is NODEFAULT:
            return "required"
        case "" | () | None:
            return ""
        case bool():
            return f"`{str(default).lower()}`"
        case str() | int():
            return f"`{msgspec.json.encode(default).decode()}`"
        case frozenset() | dict():
            return ", ".join(f'`"{value}"`' for value in sorted(default))
    raise TypeError(f"no format is known for {default!r}")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


if __name__ == "__main__":
    print(page(), end="")
