"""Changes files of accounts: a change that does not leave valid rules behind has no effect."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from txmq.errors import ConfigError
from txmq.runtime.clock import Clock
from txmq_broker.access.accounts import AccessRules, AclFile
from txmq_broker.access.acl_files import AclFiles, as_file, read_text, replace_text
from txmq_broker.access.acl_text import AclText

__all__ = ["AclEditor"]


class AclEditor:
    """Changes accounts in the files that hold them. New accounts go to the first file.

    A change is in force once ``files`` were read again. Reading and changing many accounts takes
    long, and a lock may keep a change waiting, so a server calls this in a thread.

    All methods raise :class:`~txmq.errors.ConfigError` if the change is refused or cannot be
    written; then nothing was changed.
    """

    def __init__(self, files: AclFiles, clock: Clock) -> None:
        self.files = files
        self._clock = clock

    def put_account(self, changes: Mapping[str, Any]) -> None:
        """Create an account, or change the given values of an existing one.

        Args:
            changes: The values by their names in the file, with ``accessKey``; a new account needs
                ``secretKey``.

        Raises:
            ConfigError: See the class.
        """
        key = changes["accessKey"]
        with self._exclusive():
            texts, files = self._read()
            path = _file_of(key, files)
            known = {} if path is None else _account(key, files[path])
            account = {**known, **changes}
            if "secretKey" not in account:
                raise ConfigError(f"account {key} does not exist, and a new one needs a secretKey")
            path = path or self._first()
            self._store(files, path, texts[path].put_account(account))

    def remove_account(self, key: str) -> None:
        """Remove an account.

        Raises:
            ConfigError: See the class.
        """
        with self._exclusive():
            texts, files = self._read()
            path = _file_of(key, files)
            if path is not None:
                self._store(files, path, texts[path].remove_account(key))
            elif key not in self.files.rules.accounts:  # Else another broker has just removed it.
                raise ConfigError(f"no account has the accessKey {key}")

    def put_addresses(self, addresses: list[str], file: str = "") -> None:
        """Replace the addresses that need no account.

        Raises:
            ConfigError: See the class.
        """
        with self._exclusive():
            texts, files = self._read()
            paths = {str(path): path for path in files}
            if file and file not in paths:
                raise ConfigError(f"{file} is no file of accounts; there are {', '.join(paths)}")
            path = paths[file] if file else self._first()
            changed = texts[path].put_key("globalWhiteRemoteAddresses", addresses)
            self._store(files, path, changed)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other brokers that share the files from changing them at the same time."""
        if not self.files.paths():
            raise ConfigError("there is no file of accounts any more; put one back")
        try:
            folder = os.open(self._first().resolve().parent, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"the folder of the accounts cannot be opened: {error}") from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _first(self) -> Path:
        return self.files.paths()[0]

    def _read(self) -> tuple[dict[Path, AclText], dict[Path, AclFile]]:
        """The texts of all files, and what they say."""
        texts = {path: AclText.of(str(path), read_text(path)) for path in self.files.paths()}
        return texts, {path: as_file(str(path), text.values) for path, text in texts.items()}

    def _store(self, files: Mapping[Path, AclFile], path: Path, changed: AclText) -> None:
        counter = files[path].version.counter + 1
        # In RocketMQ's format, which its brokers and tools read too.
        counted = [{"counter": counter, "timestamp": self._clock.wall_ms()}]
        text, values = changed.put_key("dataVersion", counted)
        all_files = {**files, path: as_file(str(path), values)}
        rules = AccessRules.of({str(one): all_files[one] for one in sorted(all_files)})
        had_admin = any(account.is_admin for account in self.files.rules.accounts.values())
        if had_admin and not any(account.is_admin for account in rules.accounts.values()):
            raise ConfigError(
                "no administrator would be left to change accounts, so nothing was changed; make "
                "another account an administrator first"
            )
        try:
            replace_text(path, text)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}; nothing was changed"
            ) from error


def _file_of(key: str, files: Mapping[Path, AclFile]) -> Path | None:
    for path, file in files.items():
        if any(account.access_key == key for account in file.accounts or ()):
            return path
    return None


def _account(key: str, file: AclFile) -> dict[str, Any]:
    (found,) = (account for account in file.accounts or () if account.access_key == key)
    values: dict[str, Any] = msgspec.to_builtins(found)
    return {name: value for name, value in values.items() if value is not None}
