"""Settings: trees of frozen dataclasses, filled from a file, the environment and arguments.

A setting's key is its path through the tree, ``store.flush``. Four sources give values, each over
the one before: the dataclass's default, a TOML file, variables (``TXMQ_STORE__FLUSH``), arguments
(``store.flush=async``). A key nobody declared and a value that cannot be are errors which say where
they stand. Nothing here knows any setting by name, and nothing reads the environment unasked.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    NewType,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from txmq.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "PREFIX",
    "Alias",
    "Duration",
    "Setting",
    "Size",
    "describe",
    "load",
    "parse_duration",
    "parse_size",
    "show",
    "variable",
]

Duration = NewType("Duration", float)
"""Seconds; written as ``20s``, ``500ms``, ``3h``."""

Size = NewType("Size", int)
"""Bytes; written as ``1GiB``, ``64KiB``, ``1000``."""

S = TypeVar("S", bound="DataclassInstance")

PREFIX: Final = "TXMQ_"
"""How the variables that hold settings begin."""

FOR_TESTS: Final = "TXMQ_TEST_"
"""How the variables begin that tell tests where servers are; they are no settings."""

_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
_NEAR: Final = 0.6
_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES: Final = {
    "TiB": 1024**4, "GiB": 1024**3, "MiB": 1024**2, "KiB": 1024,
    "TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "KB": 1000, "B": 1,
}  # fmt: skip
_ANY_CASE: Final = {unit.lower(): size for unit, size in _BYTES.items()}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_TRUTHS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


class Setting(NamedTuple):
    """One setting as the reference shows it."""

    key: str
    kind: str
    default: str
    text: str


class _Given(NamedTuple):
    """A value that a source gives, and how to name the place."""

    value: object
    origin: str
    place: int
    """Of several that name one setting, the one from the latest place counts."""


def _as_it_is(value: object) -> object:
    return value


class Alias(NamedTuple):
    """A setting's name elsewhere: the key it has here, and how a value there is meant."""

    key: str
    reads: Callable[[object], object] = _as_it_is


_IN_FILE, _IN_VARIABLE = 0, 1

_NO_ALIASES: Final[Mapping[str, Alias]] = MappingProxyType({})


# Values


def parse_duration(text: str) -> Duration:
    """Seconds of ``20s``, ``500ms``, ``3h``, ``2d``, ``1h30m``; a plain number is seconds.

    Raises:
        ValueError: It is no duration.
    """
    total, at = 0.0, 0
    text = text.strip()
    while at < len(text):
        found = _AMOUNT.match(text, at)
        if found is None or found[2].lower() not in ("", *_SECONDS):
            break
        if not found[2] and (at or found.end() < len(text)):
            break  # "1h30": thirty what?
        total += float(found[1]) * _SECONDS[found[2].lower() or "s"]
        at = found.end()
    if not text or at < len(text) or not math.isfinite(total):
        raise ValueError("a duration such as 20s, 500ms, 3h or 2d")
    return Duration(total)


def parse_size(text: str) -> Size:
    """Bytes of ``64KiB``, ``1GiB``, ``4MB``; a plain number is bytes.

    Raises:
        ValueError: It is no size, or no whole number of bytes.
    """
    found = _AMOUNT.fullmatch(text.strip())
    unit = None if found is None else _ANY_CASE.get(found[2].lower() or "b")
    if found is None or unit is None or not (float(found[1]) * unit).is_integer():
        raise ValueError("a size such as 64KiB, 1GiB, 4MB or 1000")
    return Size(int(found[1]) * unit if found[1].isdecimal() else int(float(found[1]) * unit))


def show(kind: Any, value: object) -> str:
    """A value the way one would write it in a file."""
    if kind is Duration and isinstance(value, int | float):
        for unit, seconds in _SECONDS.items():
            if value and (value / seconds).is_integer():
                return f'"{int(value / seconds)}{unit}"'
    if kind is Size and isinstance(value, int):
        for unit, size in _BYTES.items():
            if value and value % size == 0 and unit.endswith("iB"):
                return f'"{value // size}{unit}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(None, each) for each in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise ValueError("a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError("a number")
    return found


def _truth(text: str) -> bool:
    found = _TRUTHS.get(text.strip().lower())
    if found is None:
        raise ValueError("true or false")
    return found


_FROM_TEXT: Final[dict[Any, Any]] = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: str,
    Duration: parse_duration,
    Size: parse_size,
}
_NUMBERS: Final[dict[Any, Any]] = {int: int, float: int | float, Duration: int | float, Size: int}


def _converted(kind: Any, value: object) -> object:
    # The value of one setting. A ValueError's text says what would be accepted.
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise ValueError(" or ".join(f'"{each}"' for each in choices))
        return value
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [each.strip() for each in value.split(",") if each.strip()]
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(_converted(get_args(kind)[0], each) for each in value)
    assert kind in _FROM_TEXT, f"settings of type {kind} are not supported"
    return _FROM_TEXT[kind](_as_text(kind, value))


def _as_text(kind: Any, value: object) -> str:
    # A file has types of its own; what fits is written out and read like the other sources' text.
    if isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return str(value)
    if kind in _NUMBERS and isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool):
        return format(Decimal(str(value)), "f")  # Without an exponent.
    if kind is str:
        raise ValueError("a text in quotes")
    return ""  # No value at all, which the reader refuses in its own words.


# Keys


def _fields(shape: type[Any]) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    kinds = get_type_hints(shape)
    for field in dataclasses.fields(shape):
        yield field.name, kinds[field.name], field


def _is_group(kind: Any) -> TypeGuard[type[DataclassInstance]]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _leaves(shape: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind, _ in _fields(shape):
        if _is_group(kind):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def variable(key: str) -> str:
    """The environment variable that holds a setting."""
    return PREFIX + key.replace(".", "__").upper()


def _unknown(key: str, origin: str, known: Collection[str]) -> ConfigError:
    inside = sorted(each for each in known if each.startswith(key + "."))
    if inside:
        hint = f"{key} is a group of settings; set one of them, such as {inside[0]} ({origin})"
        return ConfigError(hint)
    near = difflib.get_close_matches(key, known, 1, _NEAR)
    if not near:
        # Perhaps only the group was left out.
        lasts = {each.rpartition(".")[2]: each for each in known}
        near = [lasts[each] for each in difflib.get_close_matches(key, lasts, 1, _NEAR)]
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"unknown setting {key}{hint} ({origin})")


# Sources


def load(
    shape: type[S],
    *,
    file: str | Path | None = None,
    environ: Mapping[str, str] = _NO_VARIABLES,
    reserved: Collection[str] = (),
    arguments: Iterable[str] = (),
    aliases: Mapping[str, Alias] = _NO_ALIASES,
) -> S:
    """Fill a tree of settings.

    Args:
        shape: The dataclass at its root.
        file: A TOML file.
        environ: Variables; those that do not begin with ``TXMQ_`` count for nothing.
        reserved: Variables that begin so and are no settings all the same.
        arguments: Texts of the form ``key=value``.
        aliases: Names that settings have elsewhere, for a file and for arguments.

    Raises:
        ConfigError: A key is unknown, a value cannot be, or the file cannot be read.
    """
    kinds = dict(_leaves(shape))
    given: dict[str, _Given] = {}
    if file is not None:
        given |= _from_file(Path(file), kinds)
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and not name.startswith(FOR_TESTS) and name not in reserved:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            given[key] = _Given(text, f"in variable {name}", _IN_VARIABLE)
    for place, each in enumerate(arguments, _IN_VARIABLE + 1):
        key, sign, text = each.partition("=")
        if not sign:
            raise ConfigError(f"{each!r} sets nothing; write key=value, such as store.flush=async")
        given[key.strip()] = _Given(text, f"in argument {each}", place)
    said: dict[str, _Given] = {}
    values: dict[str, object] = {}
    for name, (value, origin, place) in sorted(given.items(), key=lambda each: each[1].place):
        key, reads = aliases.get(name) or Alias(name)
        if key not in kinds:
            raise _unknown(key, origin, kinds)
        twin = said.get(key)
        if twin is not None and twin.place == place and place == _IN_FILE:
            raise ConfigError(f"{name} ({origin}) is said twice: it has another name there")
        said[key] = given[name]
        try:
            values[key] = _converted(kinds[key], reads(value))
        except ValueError as problem:
            text = f"{name} cannot be {value!r} ({origin}); it takes {problem}"
            raise ConfigError(text) from problem
    return _build(shape, "", values)


def _build(shape: type[S], prefix: str, values: Mapping[str, object], base: S | None = None) -> S:
    chosen: dict[str, Any] = {}
    for name, kind, field in _fields(shape):
        key = prefix + name
        default = _default(field) if base is None else getattr(base, name)
        if _is_group(kind):
            if default is dataclasses.MISSING or any(each.startswith(key + ".") for each in values):
                inner = None if default is dataclasses.MISSING else default
                chosen[name] = _build(kind, key + ".", values, inner)
        elif key in values:
            chosen[name] = values[key]
        elif default is dataclasses.MISSING:
            raise ConfigError(f"{key} has no default and must be set, for one by {variable(key)}")
    return shape(**chosen) if base is None else dataclasses.replace(base, **chosen)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _from_file(path: Path, kinds: Mapping[str, Any]) -> dict[str, _Given]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read settings from {path}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is no TOML file: {problem}") from problem
    given: dict[str, _Given] = {}
    waiting = [("", tree)]
    for prefix, table in waiting:
        for name, value in table.items():
            key = prefix + name
            is_group = any(each.startswith(key + ".") for each in kinds)
            if isinstance(value, dict) and (is_group or (value and key not in kinds)):
                waiting.append((key + ".", value))
                continue
            given[key] = _Given(value, f"in {path}", _IN_FILE)
    return given


# The reference


def describe(shape: type[Any]) -> list[Setting]:
    """Every setting of a tree, those of a group after those above it.

    The text of a setting is the string that stands under it in the source.
    """
    return list(_described(shape, "", None))


def _described(shape: type[Any], prefix: str, base: object) -> Iterator[Setting]:
    texts = _texts_under(shape)
    groups: list[tuple[type[Any], str, object]] = []
    for name, kind, field in _fields(shape):
        default = _default(field) if base is None else getattr(base, name)
        given = None if default is dataclasses.MISSING else default
        if _is_group(kind):
            groups.append((kind, f"{prefix}{name}.", given))
        else:
            shown = "" if given is None else show(kind, given)
            yield Setting(prefix + name, _kind_name(kind), shown, texts.get(name, ""))
    for each in groups:
        yield from _described(*each)


def _kind_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{each}"' for each in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_kind_name(get_args(kind)[0])}"
    named = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return named.get(kind) or kind.__name__.lower()


def _texts_under(shape: type[Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for above, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[above.target.id] = inspect.cleandoc(text)
    return texts
