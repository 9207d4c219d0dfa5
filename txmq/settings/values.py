"""The values of settings: how they are declared, checked, read from texts, and shown. Pure.

Settings classes derive from :class:`Settings`. The type of a field says what it accepts;
``Annotated[int, Meta(ge=1)]`` adds bounds. In code, a duration or a size is a number or a text such
as ``"20s"`` or ``"16MiB"``, and reads as seconds or bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta, Struct

from txmq.errors import ConfigError
from txmq.settings.units import (
    DURATION_EXAMPLES,
    SIZE_EXAMPLES,
    Duration,
    Size,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)

__all__ = ["Settings", "convert", "kind_name", "settings_or", "show"]

_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_TRUTHS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


if TYPE_CHECKING:
    # mypy understands the descriptors of Duration and Size only in classes that it does not know to
    # be frozen.
    Frozen = Struct
else:

    class Frozen(Struct, frozen=True):
        """Refuses changes."""


class Settings(Frozen):
    """The base of all settings classes; the constructor checks and converts the values.

    Declare subclasses with ``kw_only=True``. Their values cannot be changed;
    :func:`msgspec.structs.replace` makes a copy with other values.

    Raises:
        ConfigError: A value is invalid.
    """

    def __post_init__(self) -> None:
        """Convert each value, then check rules that involve several."""
        for name, kind in _kinds(type(self)):
            given = getattr(self, name)
            value = _checked(kind, given, name)
            if value is not given:
                msgspec.structs.force_setattr(self, name, value)
        self._check()

    def _check(self) -> None:
        """Check rules that the fields' types do not express.

        Raises:
            ConfigError: A value is invalid.
        """


S = TypeVar("S", bound=Settings)


@cache
def _kinds(shape: type[Settings]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(shape))


def settings_or(kind: type[S], given: S | None) -> S:
    """The given settings, or else the defaults.

    Raises:
        ConfigError: The settings have the wrong type.
    """
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    hint = ""
    if isinstance(given, dict):
        pairs = ", ".join(f"{name}={value!r}" for name, value in given.items())
        hint = f"; write {kind.__name__}({pairs})"
    raise ConfigError(f"settings are a {kind.__name__}, not {given!r}{hint}")


def show(kind: Any, value: Any) -> str:
    """A value as written in a settings file."""
    kind = _rule(kind).kind
    if kind in _SHOWN and not isinstance(value, str):
        shown: str = _SHOWN[kind](value)
        return f'"{shown}"' if shown[-1].isalpha() else shown
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(show(None, item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


# What a type accepts


class _Rule(NamedTuple):
    """A type without its bounds and without ``None``."""

    kind: Any
    bounds: Meta
    is_optional: bool


@cache
def _rule(kind: Any) -> _Rule:
    bounds = Meta()
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if is_optional := get_origin(kind) in {Union, UnionType}:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    return _Rule(kind, bounds, is_optional)


_NAMES: Final[Mapping[Any, str]] = MappingProxyType(
    {
        bool: "true or false",
        int: "whole number",
        float: "number",
        str: "text",
        Duration: "duration",
        Size: "size",
    }
)
_NUMBERS: Final[Mapping[Any, Any]] = MappingProxyType(
    {int: int, float: int | float, Duration: int | float, Size: int}
)
_FROM_TEXT: Final[Mapping[Any, Any]] = MappingProxyType(
    {Duration: parse_duration, Size: parse_size, Path: Path}
)
_SHOWN: Final[Mapping[Any, Any]] = MappingProxyType({Duration: show_duration, Size: show_size})
_EXAMPLES: Final[Mapping[Any, str]] = MappingProxyType(
    {Duration: DURATION_EXAMPLES, Size: SIZE_EXAMPLES}
)


def kind_name(kind: Any) -> str:
    """The name of a type with its bounds: ``whole number from 1 to 16``."""
    inner, bounds, _ = _rule(kind)
    if get_origin(inner) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(inner))
    if get_origin(inner) is tuple:
        return f"list of {kind_name(get_args(inner)[0])}"
    name = _NAMES.get(inner) or inner.__name__
    least, above, most = (
        None if bound is None else show(inner, bound).strip('"')
        for bound in (bounds.ge, bounds.gt, bounds.le)
    )
    if least is not None and most is not None:
        return f"{name} from {least} to {most}"
    limits = {"of at least": least, "above": above, "of at most": most}
    words = [f"{word} {bound}" for word, bound in limits.items() if bound is not None]
    return f"{name} {' and '.join(words)}".strip()


def _takes(kind: Any) -> str:
    inner, bounds, is_optional = _rule(kind)
    if get_origin(inner) is Literal or inner is bool:
        return kind_name(kind)
    if get_origin(inner) is tuple:
        return "a list"
    if isinstance(inner, type) and issubclass(inner, Enum):
        return " or ".join(map(str, inner))
    text = "a text in quotes" if inner is str else f"a {kind_name(kind)}"
    if inner in _EXAMPLES and not (bounds.ge or bounds.le):  # Bounds are examples, too.
        text += f" {_EXAMPLES[inner]}"
    return f"{text}, or None" if is_optional else text


def convert(kind: Any, value: object) -> Any:
    """The value of one setting, from a text or from a value in a file.

    Raises:
        ValueError: The value is invalid; the error's text says what the setting accepts.
    """
    inner = _rule(kind).kind
    is_list = get_origin(inner) is tuple
    if isinstance(value, str) and is_list:
        value = [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, list) and is_list:
        return tuple(convert(get_args(inner)[0], item) for item in value)
    return _accepted(kind, _from_text(inner, value) if isinstance(value, str) else value)


def _from_text(kind: Any, text: str) -> object:
    """Read a value where every value is a text; return the text itself if it does not fit."""
    if kind is bool:
        return _TRUTHS.get(text.strip().lower(), text)
    try:
        if kind is int and _WHOLE.fullmatch(text.strip()):
            return int(text)
        return float(text) if kind is float else text
    except ValueError:
        return text


def _checked(kind: Any, value: object, name: str) -> Any:
    try:
        return _accepted(kind, value)
    except ValueError as error:
        # A value of another class may hold secrets.
        is_plain = value is None or isinstance(value, str | int | float)
        given = repr(value) if is_plain else f"a {type(value).__name__}"
        raise ConfigError(f"{name} cannot be {given}; it takes {error}") from error


def _accepted(kind: Any, value: object) -> Any:
    """The value in the form that settings keep.

    Raises:
        ValueError: The value is invalid; the error's text says what the setting accepts.
    """
    inner, bounds, is_optional = _rule(kind)
    if value is None and is_optional:
        return None
    try:
        return _typed(inner, bounds, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(_takes(kind)) from error


def _typed(kind: Any, bounds: Meta, value: Any) -> Any:
    if isinstance(value, str) and kind in _FROM_TEXT:
        value = _FROM_TEXT[kind](value)
    wanted = get_origin(kind) or kind
    if kind in _NUMBERS:
        is_number = isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
        is_right = is_number and _is_within(kind, bounds, value)
    elif wanted is Literal:
        is_right = value in get_args(kind)
    elif isinstance(wanted, type) and not getattr(wanted, "_is_protocol", False):
        is_right = isinstance(value, wanted)
    else:
        is_right = True
    if not is_right:
        raise TypeError(value)
    return float(value) if kind in {float, Duration} else value


def _is_within(kind: Any, bounds: Meta, number: Any) -> bool:
    least = 0 if kind in _FROM_TEXT and bounds.ge is None else bounds.ge
    return (
        math.isfinite(number)
        and (least is None or number >= least)
        and (bounds.gt is None or number > bounds.gt)
        and (bounds.le is None or number <= bounds.le)
    )
