"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from txmq.credentials import check_private
from txmq.errors import ConfigError
from txmq.extras import named_extra
from txmq.watched_files import WatchedFiles
from txmq_broker.access.accounts import AccessRules, AclFile

__all__ = ["AclFiles", "parse", "read_text"]

log = logging.getLogger(__name__)


class AclFiles(WatchedFiles[AccessRules]):
    """The accounts in a file, or in all ``.yml`` and ``.yaml`` files below a directory.

    Raises:
        ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: _files(path), lambda: _read(path), "accounts")
        self._path = path

    @property
    def rules(self) -> AccessRules:
        """The rules of the last files that were valid."""
        return self.value

    def paths(self) -> list[Path]:
        """The files as they are now."""
        return _files(self._path)

    def rules_with(self, changed: Mapping[Path, str]) -> AccessRules:
        """The rules of the files, some of them with another text.

        Raises:
            ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
        """
        return _rules_with(self._path, changed)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.suffix in (".yml", ".yaml"))


def _read(path: Path) -> AccessRules:
    if not _files(path):
        raise ConfigError(f"acl {path} holds no .yml file")
    rules = _rules_with(path, {})
    if not rules.accounts:
        log.warning("%s has no account: only its white addresses are served", path)
    return rules


def _rules_with(path: Path, changed: Mapping[Path, str]) -> AccessRules:
    texts = {one: read_text(one) for one in _files(path) if one not in changed}
    files = {**texts, **changed}
    return AccessRules.of({str(one): parse(str(one), files[one]) for one in sorted(files)})


def read_text(path: Path) -> str:
    """The text of a file of accounts.

    Raises:
        ConfigError: It cannot be read, or others may read it.
    """
    check_private(path)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(name: str, text: str) -> AclFile:
    """The values in the text of a file of accounts.

    Raises:
        ConfigError: It is not YAML, or a value is invalid.
    """
    with named_extra():  # A broker without accounts does without the package.
        import yaml
    try:
        values: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Its own text would show the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "some line"
        raise ConfigError(f"{name}: {where} is not YAML") from None
    try:
        return msgspec.convert(values or {}, AclFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from error
