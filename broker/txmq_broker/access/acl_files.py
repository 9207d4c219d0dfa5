"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from txmq.errors import ConfigError
from txmq.protocol.bodies import DataVersion
from txmq.security.credentials import check_private
from txmq.security.watched_files import WatchedFiles
from txmq_broker.access.accounts import AccessRules, AclFile
from txmq_broker.access.acl_yaml import load

__all__ = ["SUFFIXES", "AclFiles", "as_file", "parse", "read_text", "read_texts", "replace_text"]

log = logging.getLogger(__name__)

SUFFIXES: Final = (".yml", ".yaml")
_MODE: Final = 0o600


class FileRules(AccessRules):
    """The rules of files.

    Attributes:
        texts: The texts of the files, by their names in the directory. The name is empty if there
            is one file and no directory.
        versions: The version of each file, by its path.
    """

    __slots__ = ("texts", "versions")

    texts: Mapping[str, str]
    versions: Mapping[str, DataVersion]


class AclFiles(WatchedFiles[FileRules]):
    """The accounts in a file, or in all ``.yml`` and ``.yaml`` files below a directory.

    Args:
        path: The file or directory.
        may_lack: Whether it may be missing at first; until it exists, there are no accounts.

    Raises:
        ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
    """

    def __init__(self, path: Path, *, may_lack: bool = False) -> None:
        self._path = path
        self._may_lack = may_lack
        super().__init__(lambda: _files(path), self._read, "accounts")

    def _read(self) -> FileRules:
        path = self._path
        if self._may_lack and not self.reads and not path.exists():
            texts = {}
        elif not (texts := read_texts(path)):
            raise ConfigError(f"acl {path} holds no .yml file")
        files = sorted((path / name, text) for name, text in texts.items())
        parsed = {str(file): parse(str(file), text) for file, text in files}
        rules = FileRules.of(parsed)
        if texts and not rules.accounts:
            log.warning("%s has no account: only its white addresses are served", path)
        rules.texts = texts
        rules.versions = {name: _version(Path(name), file) for name, file in parsed.items()}
        return rules

    @property
    def rules(self) -> FileRules:
        """The rules of the last valid files."""
        return self.value

    def paths(self) -> list[Path]:
        """The current files."""
        return _files(self._path)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.rglob("*") if one.suffix in SUFFIXES)


def _version(path: Path, file: AclFile) -> DataVersion:
    """The version of a file; without a version in it, the time of its last change."""
    if file.version.timestamp:
        return file.version
    try:
        changed_s = path.stat().st_mtime
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return DataVersion(int(changed_s * 1000), file.version.counter)


def read_texts(path: Path) -> dict[str, str]:
    """The texts of a file, or of all files of a directory, by their names in :class:`AclFiles`.

    Raises:
        ConfigError: A file cannot be read, or others may read it.
    """
    try:
        files = _files(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return {
        "" if one == path else one.relative_to(path).as_posix(): read_text(one) for one in files
    }


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
    return as_file(name, load(name, text))


def as_file(name: str, values: Any) -> AclFile:
    """The values of a file of accounts.

    Raises:
        ConfigError: A value is invalid.
    """
    try:
        return msgspec.convert(values or {}, AclFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from error
    except UnicodeEncodeError:  # Only libyaml refuses half of a surrogate pair.
        raise ConfigError(f"{name}: some text is not Unicode text") from None
