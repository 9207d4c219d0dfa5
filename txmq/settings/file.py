"""Settings files: TOML, and properties as in RocketMQ's ``broker.conf``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

from txmq.errors import ConfigError
from txmq.settings.property_lines import PropertyError, read_properties

__all__ = ["FileValue", "read_file", "read_tree"]

_TOML: Final = (".toml",)
_PROPERTIES: Final = (".conf", ".properties")
_HOW_TO_NAME: Final = (
    "the name of a TOML file ends with .toml, that of a properties file such as RocketMQ's "
    "broker.conf with .conf or .properties"
)
_TOML_ALONE: Final = re.compile(r"^[ \t]*\[|^[^#!\n=]*=[ \t]*[\"'\[]", re.MULTILINE)
_TABLE: Final = re.compile(r"\[.*\]")
_QUOTED: Final = re.compile(r"(\"|').*\1")


class FileValue(NamedTuple):
    """A value in a file, and the text that names its place in errors."""

    value: object
    origin: str


def read_file(path: Path, keys: Collection[str]) -> dict[str, FileValue]:
    """Read a settings file; its suffix decides the format, or its content if the suffix is unknown.

    Args:
        path: The file.
        keys: The keys of all settings: a TOML table is a group, unless a setting has its key.

    Raises:
        ConfigError: The file cannot be read, or is not in the format of its name.
    """
    text = _read_text(path, "cannot read settings from")
    if _is_properties(path, text):
        return _properties(path, text)
    return _flatten(path, _parse(path, text, f"; {_HOW_TO_NAME}"), keys)


def read_tree(path: Path, complaint: str) -> dict[str, Any]:
    """Read a TOML file, whatever its name, as nested tables.

    Args:
        path: The file.
        complaint: The error begins with this text if the file cannot be read; its path follows.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    return _parse(path, _read_text(path, complaint))


def _read_text(path: Path, complaint: str) -> str:
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{complaint} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}, is not UTF-8: save the file as UTF-8") from error


def _parse(path: Path, text: str, hint: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}{hint}") from error


def _is_properties(path: Path, text: str) -> bool:
    suffix = path.suffix.lower()
    if suffix in _TOML + _PROPERTIES:
        return suffix in _PROPERTIES
    if _TOML_ALONE.search(text):
        return False
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return True
    return False  # Both formats give the same values.


def _properties(path: Path, text: str) -> dict[str, FileValue]:
    found: dict[str, FileValue] = {}
    try:
        for entry in read_properties(text):
            place = f"{path}, line {entry.line}"
            value = entry.value.strip()
            if _TABLE.fullmatch(entry.name):
                raise ConfigError(f"{place}: {entry.name} is a table of TOML; {_HOW_TO_NAME}")
            if _QUOTED.fullmatch(value):
                raise ConfigError(
                    f"{place}: in a properties file the quotes of {entry.name} would be part of "
                    f"the value; leave them out. If the file is TOML: {_HOW_TO_NAME}"
                )
            found[entry.name] = FileValue(value, f"in {place}")
    except PropertyError as error:
        raise ConfigError(f"{path}, line {error.line}: {error}") from error
    return found


def _flatten(path: Path, tree: dict[str, Any], keys: Collection[str]) -> dict[str, FileValue]:
    found: dict[str, FileValue] = {}
    waiting = [("", tree)]
    for prefix, table in waiting:
        for name, value in table.items():
            key = prefix + name
            is_group = any(known.startswith(key + ".") for known in keys)
            if isinstance(value, dict) and (is_group or (value and key not in keys)):
                waiting.append((key + ".", value))
                continue
            found[key] = FileValue(value, f"in {path}")
    return found
