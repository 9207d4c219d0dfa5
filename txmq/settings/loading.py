"""Settings: trees of frozen structs, filled from a file, the environment and arguments.

A setting's key is its path through the tree, ``store.flush``. Four sources give values: the
struct's default, a file, variables (``TXMQ_STORE__FLUSH``), arguments (``store.flush=async``). A
later source overrides an earlier one. Files and arguments may also use another system's name for a
setting. An unknown key or an invalid value is an error that names its place. This module knows no
setting by name, and reads only the environment that the caller passes.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from txmq.errors import ConfigError
from txmq.settings.file import read_file
from txmq.settings.values import convert

__all__ = [
    "PREFIX",
    "Alias",
    "Derived",
    "ForeignName",
    "OneValue",
    "Unused",
    "default_of",
    "did_you_mean",
    "group_of",
    "is_group",
    "kinds_of",
    "load",
    "rebuild",
    "variable",
]

S = TypeVar("S", bound=Struct)

PREFIX: Final = "TXMQ_"
"""The prefix of variables that hold settings."""

FOR_TESTS: Final = "TXMQ_TEST_"
"""The prefix of variables that tell tests where servers are; they are not settings."""

_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
_NEAR: Final = 0.6
"""How alike a misspelt name and a known one must be for a hint."""


class _SourceValue(NamedTuple):
    """A value from a source, and the text that names its place."""

    name: str
    value: object
    origin: str
    place: int
    """If several sources set one setting, the one with the highest place wins."""


def _as_it_is(value: object) -> object:
    return value


class Alias(NamedTuple):
    """A foreign name of a setting: its key here, and a function that reads the foreign value."""

    key: str
    reads: Callable[[object], object] = _as_it_is
    text: str = ""
    """A remark for the reference page."""


class Derived(NamedTuple):
    """A foreign name whose value sets several settings here, or depends on other settings.

    ``reads`` receives the value, a function that looks up a setting's value so far, and a function
    that notifies the operator. It returns the settings by their keys.
    """

    keys: tuple[str, ...]
    reads: Callable[[object, Callable[[str], Any], Callable[[str], None]], Mapping[str, object]]
    text: str


class OneValue(NamedTuple):
    """A foreign name that accepts one value only; the broker cannot keep what others promise."""

    value: str
    why: str


class Unused(NamedTuple):
    """A foreign name that has no effect here, whatever its value."""

    why: str


ForeignName = Alias | Derived | OneValue | Unused

_IN_FILE, _IN_VARIABLE = 0, 1

_NO_NAMES: Final[Mapping[str, ForeignName]] = MappingProxyType({})


def _ignore(notice: str) -> None:
    del notice


# Keys


def is_group(kind: Any) -> TypeGuard[type[Struct]]:
    """Whether a setting is a group of others."""
    return isinstance(kind, type) and issubclass(kind, Struct)


def _leaves(shape: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(shape):
        if is_group(field.type):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def kinds_of(shape: type[Any]) -> dict[str, Any]:
    """The type of every setting, by its key."""
    return dict(_leaves(shape))


def variable(key: str) -> str:
    """The environment variable that holds a setting."""
    return PREFIX + key.replace(".", "__").upper()


def _unknown(
    key: str, origin: str, kinds: Collection[str], foreign: Collection[str]
) -> ConfigError:
    inside = sorted(known for known in kinds if known.startswith(key + "."))
    if inside:
        hint = f"{key} is a group of settings; set one of them, such as {inside[0]} ({origin})"
        return ConfigError(hint)
    hint = did_you_mean(key, (*foreign, *kinds))
    if not hint:
        # Perhaps the key lacks only its group.
        lasts = {known.rpartition(".")[2]: known for known in kinds}
        near = lasts.get(_nearest(key, lasts))
        hint = f"; did you mean {near}?" if near else ""
    return ConfigError(f"unknown setting {key}{hint} ({origin})")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that suggests the nearest of some names; empty if no name is near."""
    near = _nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    """The nearest of some names, ignoring case; empty if no name is near."""
    lowered = {word.lower(): word for word in sorted(known)}
    near = difflib.get_close_matches(name.lower(), lowered, 1, _NEAR)
    return lowered[near[0]] if near else ""


# Sources


def load(
    shape: type[S],
    *,
    file: str | Path | None = None,
    environ: Mapping[str, str] = _NO_VARIABLES,
    reserved: Collection[str] = (),
    arguments: Iterable[str] = (),
    aliases: Mapping[str, ForeignName] = _NO_NAMES,
    notice: Callable[[str], None] = _ignore,
) -> S:
    """Fill a tree of settings.

    Args:
        shape: The struct at its root.
        file: A file in TOML or properties, see :mod:`txmq.settings.file`.
        environ: Variables; those that do not begin with ``TXMQ_`` are ignored.
        reserved: Variables that begin with ``TXMQ_`` and are not settings.
        arguments: Texts of the form ``key=value``.
        aliases: Foreign names of settings, for a file and for arguments. Names in a file are read
            in this order, because some depend on others.
        notice: Receives notices for the operator, such as names that have no effect.

    Raises:
        ConfigError: A key is unknown, a value is invalid, or the file cannot be read.
    """
    kinds = kinds_of(shape)
    ranks = {name: rank for rank, name in enumerate(aliases)}
    given = _all_given(file, kinds, environ, reserved, arguments)
    unused = [source for source in given if isinstance(aliases.get(source.name), Unused)]
    given.sort(key=lambda source: (source.place, ranks.get(source.name, -1)))
    found = _Values(shape, kinds, notice)
    for source in given:
        known = aliases.get(source.name) or Alias(source.name)
        if isinstance(known, Alias) and known.key not in kinds:
            raise _unknown(known.key, source.origin, kinds, aliases)
        try:
            found.take(source, known)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            text = f"{source.name} cannot be {source.value!r} ({source.origin}); it takes {error}"
            raise ConfigError(text) from error
    if unused:
        notice(_unused_notice(unused, file))
    try:
        return _build(shape, "", found.values)
    except ConfigError as error:
        raise ConfigError(f"{error}{found.places(str(error))}") from error


def _all_given(
    file: str | Path | None,
    kinds: Mapping[str, Any],
    environ: Mapping[str, str],
    reserved: Collection[str],
    arguments: Iterable[str],
) -> list[_SourceValue]:
    given: list[_SourceValue] = []
    if file is not None:
        given += [
            _SourceValue(name, value, origin, _IN_FILE)
            for name, (value, origin) in read_file(Path(file), kinds).items()
        ]
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and not name.startswith(FOR_TESTS) and name not in reserved:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            given.append(_SourceValue(key, text, f"in variable {name}", _IN_VARIABLE))
    for place, argument in enumerate(arguments, _IN_VARIABLE + 1):
        key, sign, text = argument.partition("=")
        if not sign:
            raise ConfigError(
                f"{argument!r} is not a setting; write key=value, such as store.flush=async"
            )
        given.append(_SourceValue(key.strip(), text, f"in argument {argument}", place))
    return given


class _Values:
    """The values read so far, each with its source."""

    def __init__(
        self, shape: type[Any], kinds: Mapping[str, Any], notice: Callable[[str], None]
    ) -> None:
        self._shape = shape
        self._kinds = kinds
        self._notice = notice
        self.values: dict[str, object] = {}
        self._sources: dict[str, tuple[_SourceValue, ForeignName]] = {}

    def take(self, source: _SourceValue, known: ForeignName) -> None:
        """Take one name and value of a source.

        Raises:
            ValueError: The value is invalid.
        """
        if isinstance(known, Unused):
            return
        if isinstance(known, OneValue):
            if str(source.value).strip().lower() != known.value.lower():
                raise ValueError(f"{known.value or 'no value'}: {known.why}")
            return
        if isinstance(known, Alias):
            values: Mapping[str, object] = {known.key: known.reads(source.value)}
        else:
            values = known.reads(source.value, self._so_far, self._notice)
        for key, value in values.items():
            converted = convert(self._kinds[key], value)
            self._check_twin(key, converted, source, known)
            self.values[key] = converted
            self._sources[key] = (source, known)

    def _so_far(self, key: str) -> Any:
        return self.values[key] if key in self.values else _default_at(self._shape, key)

    def _check_twin(
        self, key: str, value: object, source: _SourceValue, known: ForeignName
    ) -> None:
        twin = self._sources.get(key)
        if twin is None or twin[0].place != source.place or source.place != _IN_FILE:
            return
        both_derived = isinstance(known, Derived) and isinstance(twin[1], Derived)
        if not both_derived and value != self.values[key]:
            raise ConfigError(
                f"{key} is set twice: by {twin[0].name} ({twin[0].origin}) "
                f"and by {source.name} ({source.origin}); leave one out"
            )

    def places(self, text: str) -> str:
        """The places of the settings that an error names, unless the error has them already."""
        places = [
            f"{source.name}={source.value} {source.origin}"
            for key, (source, _) in self._sources.items()
            if (source.place == _IN_FILE or source.name != key)
            and re.search(rf"\b{key.rpartition('.')[2]}\b", text)
        ]
        return f" ({'; '.join(places)})" if places else ""


_UNUSED_SHOWN: Final = 20


def _unused_notice(unused: list[_SourceValue], file: str | Path | None) -> str:
    where = f"{file}: " if all(source.place == _IN_FILE for source in unused) else ""
    names = ", ".join(source.name for source in unused[:_UNUSED_SHOWN])
    if len(unused) > _UNUSED_SHOWN:
        names += f" and {len(unused) - _UNUSED_SHOWN} more"
    count = "1 setting has" if len(unused) == 1 else f"{len(unused)} settings have"
    return f"{where}{count} no meaning here: {names}; `txmq config reference` says why"


def rebuild(settings: S, values: Mapping[str, object]) -> S:
    """Settings with new values for some keys; the values must be converted already.

    Raises:
        ConfigError: The values cannot work together.
    """
    return _build(type(settings), "", values, settings)


def _build(shape: type[S], prefix: str, values: Mapping[str, object], base: S | None = None) -> S:
    chosen: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        key = prefix + field.name
        default = default_of(field, base)
        if is_group(field.type):
            if default is NODEFAULT or any(known.startswith(key + ".") for known in values):
                inner = None if default is NODEFAULT else default
                chosen[field.name] = _build(field.type, key + ".", values, inner)
        elif key in values:
            chosen[field.name] = values[key]
        elif default is NODEFAULT:
            raise ConfigError(f"{key} has no default; set it, for example by {variable(key)}")
    return shape(**chosen) if base is None else msgspec.structs.replace(base, **chosen)


def default_of(field: FieldInfo, base: object = None) -> Any:
    """The value of a setting that no source gives: the one in ``base``, or else the default."""
    if base is not None:
        return getattr(base, field.name)
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _default_at(shape: type[Any], key: str) -> Any:
    name, *rest = key.split(".")
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    return functools.reduce(getattr, rest, default_of(fields[name]))


def group_of(kind: Any) -> type[Struct] | None:
    """The struct in a type: the type itself, or one in its list, table, union or ``Annotated``."""
    if is_group(kind):
        return kind
    inner = get_args(kind)
    if get_origin(kind) is dict:
        return group_of(inner[1])
    if get_origin(kind) is Literal or str in inner:
        return None
    return group_of(inner[0]) if inner else None
