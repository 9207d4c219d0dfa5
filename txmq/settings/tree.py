"""Settings in a TOML file whose tables may repeat, so that its keys are not known in advance."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from txmq.errors import ConfigError
from txmq.settings.file import read_tree
from txmq.settings.loading import did_you_mean, group_of

__all__ = ["load_tree"]

S = TypeVar("S", bound=Struct)

_HELD: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_UNKNOWN: Final = re.compile(r"unknown field `(.+?)`(?: - at `\$(.*)`)?$")
_PLACE: Final = re.compile(r" - at `\$(.*)`$")


def load_tree(
    shape: type[S],
    path: Path,
    environ: Mapping[str, str],
    *,
    complaint: str,
    lenient: Collection[str] = (),
) -> S:
    """Fill a struct from a TOML file whose tables may repeat.

    Args:
        shape: The struct at its root.
        path: The file.
        environ: The values for ``${VARIABLE}``, which may occur in any text.
        complaint: The error begins with this text if the file cannot be read; its path follows.
        lenient: The tables at the root in which ``${VARIABLE}`` stays if the variable is not set.

    Raises:
        ConfigError: A key is unknown, a value is invalid, or the file cannot be read.
    """
    tree = read_tree(path, complaint)
    try:
        filled = {
            name: _fill(value, environ, path, is_lenient=name in lenient)
            for name, value in tree.items()
        }
        return msgspec.convert(filled, shape)
    except msgspec.ValidationError as error:
        hint = _hint(shape, str(error)) or _value(tree, str(error))
        raise ConfigError(f"{path}: {error}{hint}") from error


def _value(tree: Any, text: str) -> str:
    """The invalid value that an error is about, as the file has it, with variables unreplaced. If
    tables repeat, the error does not say which one it means, so all of their values are named.
    """
    found = _PLACE.search(text)
    values = [tree] if found else []
    for name in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", found[1] if found else ""):
        values = [inner for value in values for inner in _inner(value, name[0] or name[1])]
    simple = list(
        dict.fromkeys(repr(value) for value in values if not isinstance(value, dict | list))
    )
    return f", which is {' or '.join(simple)}" if simple else ""


def _inner(value: Any, name: str) -> list[Any]:
    if isinstance(value, dict):
        if name == "...":  # The error leaves out the keys of tables with free keys.
            return list(value.values())
        return [value[name]] if name in value else []
    return value if name == "..." else [value[int(name)]]


def _fill(plain: Any, environ: Mapping[str, str], path: Path, *, is_lenient: bool) -> Any:
    """Replace the variables in all texts."""
    if isinstance(plain, dict):
        return {
            name: _fill(value, environ, path, is_lenient=is_lenient)
            for name, value in plain.items()
        }
    if isinstance(plain, list):
        return [_fill(value, environ, path, is_lenient=is_lenient) for value in plain]
    if not isinstance(plain, str):
        return plain

    def held(found: re.Match[str]) -> str:
        if found[1] not in environ and is_lenient:
            return found[0]
        if found[1] not in environ:
            raise ConfigError(f"{path} asks for the variable {found[1]}, which is not set")
        return environ[found[1]]

    return _HELD.sub(held, plain)


def _hint(shape: type[Struct], text: str) -> str:
    """A hint with the known name nearest to an unknown key."""
    found = _UNKNOWN.search(text)
    if found is None:
        return ""
    group: type[Struct] | None = shape
    for name in re.findall(r"\.(\w+)", found[2] or ""):
        kinds = {field.encode_name: field.type for field in msgspec.structs.fields(group or shape)}
        group = group_of(kinds.get(name))
    known = [field.encode_name for field in msgspec.structs.fields(group or shape)]
    return did_you_mean(found[1], known)
