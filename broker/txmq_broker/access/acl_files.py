"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from txmq.credentials import check_private
from txmq.errors import ConfigError
from txmq.extras import named_extra
from txmq.watched_files import WatchedFiles
from txmq_broker.access.accounts import AccessRules, AclFile

__all__ = ["SUFFIXES", "AclFiles", "parse", "read_text", "read_texts", "replace_text"]

log = logging.getLogger(__name__)

SUFFIXES: Final = (".yml", ".yaml")
_MODE: Final = 0o600


class AclFiles(WatchedFiles[AccessRules]):
    """The accounts in a file, or in all ``.yml`` and ``.yaml`` files below a directory.

    Args:
        path: The file or directory.
        may_lack: Whether it may be missing at first; until it is there, nobody has an account.

    Raises:
        ConfigError: A file cannot be read, others may read it, or a value in it is invalid.

    Attributes:
        texts: The texts that the rules were read from, by their names in the directory. The name is
            empty if there is one file and no directory.
        reads: How often rules were read.
    """

    def __init__(self, path: Path, *, may_lack: bool = False) -> None:
        self._path = path
        self._may_lack = may_lack
        self.texts: Mapping[str, str] = {}
        self.reads = 0
        super().__init__(lambda: _files(path), self._read, "accounts")

    def _read(self) -> AccessRules:
        path = self._path
        if self._may_lack and not self.reads and not path.exists():
            return AccessRules.of({})
        texts = read_texts(path)
        if not texts:
            raise ConfigError(f"acl {path} holds no .yml file")
        rules = _rules_of({path / name: text for name, text in texts.items()})
        if not rules.accounts:
            log.warning("%s has no account: only its white addresses are served", path)
        self.texts = texts
        self.reads += 1
        return rules

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
        texts = {one: read_text(one) for one in _files(self._path) if one not in changed}
        return _rules_of({**texts, **changed})


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)


def _rules_of(texts: Mapping[Path, str]) -> AccessRules:
    return AccessRules.of({str(one): parse(str(one), texts[one]) for one in sorted(texts)})


def read_texts(path: Path) -> dict[str, str]:
    """The texts of a file, or of all files of a directory, by their names in :class:`AclFiles`.

    Raises:
        ConfigError: A file cannot be read, or others may read it.
    """
    if not path.is_dir():
        return {"": read_text(path)}
    return {one.relative_to(path).as_posix(): read_text(one) for one in _files(path)}


def replace_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that a crash leaves the old one or the new one.

    Raises:
        OSError: The disk refuses.
    """
    path = path.resolve()
    draft = path.with_name(f".{path.name}.new")  # The broker reads no file of this name.
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
