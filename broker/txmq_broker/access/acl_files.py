"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from txmq.credentials import check_private
from txmq.errors import ConfigError
from txmq.extras import named_extra
from txmq.watched_files import WatchedFiles
from txmq_broker.access.accounts import AccessRules, AclFile

__all__ = ["AclFiles"]

log = logging.getLogger(__name__)


class AclFiles(WatchedFiles[AccessRules]):
    """The accounts in a file, or in all ``.yml`` and ``.yaml`` files below a directory.

    Raises:
        ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: _files(path), lambda: _read(path), "accounts")

    @property
    def rules(self) -> AccessRules:
        """The rules of the last files that were valid."""
        return self.value


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.suffix in (".yml", ".yaml"))


def _read(path: Path) -> AccessRules:
    files = _files(path)
    if not files:
        raise ConfigError(f"acl {path} holds no .yml file")
    rules = AccessRules.of({str(one): _read_file(one) for one in files})
    if not rules.accounts:
        log.warning("%s has no account: only its white addresses are served", path)
    return rules


def _read_file(path: Path) -> AclFile:
    with named_extra():  # A broker without accounts does without the package.
        import yaml
    check_private(path)
    try:
        values: Any = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        # Its own text would show the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "some line"
        raise ConfigError(f"{path}: {where} is not YAML") from None
    try:
        return msgspec.convert(values or {}, AclFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
