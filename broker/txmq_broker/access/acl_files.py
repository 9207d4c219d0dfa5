"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from txmq.credentials import check_private
from txmq.errors import ConfigError
from txmq.extras import named_extra
from txmq_broker.access.accounts import AccessRules, AclFile

__all__ = ["AclFiles", "parse", "read_text"]

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0
"""The interval at which changed files are noticed; RocketMQ's is half of it."""

_Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


class AclFiles:
    """The accounts in a file, or in all ``.yml`` and ``.yaml`` files below a directory.

    Raises:
        ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamp_now()
        self.rules = self._read()
        """The rules of the last files that were valid."""

    async def watch(self) -> None:
        """Read the files again whenever they have changed. Invalid ones change nothing."""
        while True:
            await asyncio.sleep(WATCH_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.rules = self._read()
        except ConfigError as error:
            # The text names keys and values, never a secret.
            log.error("%s; the accounts from before stay in force", error)  # noqa: TRY400
            return
        log.info("accounts read again from %s: %d", self._path, len(self.rules.accounts))

    def paths(self) -> list[Path]:
        """The files as they are now."""
        if not self._path.is_dir():
            return [self._path]
        found = self._path.rglob("*")
        return sorted(path for path in found if path.suffix in (".yml", ".yaml"))

    def rules_with(self, changed: Mapping[Path, str]) -> AccessRules:
        """The rules of the files, some of them with another text.

        Raises:
            ConfigError: A file cannot be read, others may read it, or a value in it is invalid.
        """
        texts = {path: read_text(path) for path in self.paths() if path not in changed}
        files = {**texts, **changed}
        return AccessRules.of({str(path): parse(str(path), files[path]) for path in sorted(files)})

    def _stamp_now(self) -> _Stamp:
        found: list[tuple[str, int, int, int]] = []
        for path in self.paths():
            try:
                status = path.stat()
            except OSError:
                continue  # Reading it explains why.
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_mode))
        return tuple(found)

    def _read(self) -> AccessRules:
        if not self.paths():
            raise ConfigError(f"acl {self._path} holds no .yml file")
        rules = self.rules_with({})
        if not rules.accounts:
            log.warning("%s has no account: only its white addresses are served", self._path)
        return rules


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
