"""Edits files of accounts: comments stay, and the result is always valid."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from txmq.errors import ConfigError
from txmq.runtime.clock import Clock
from txmq_broker.access.accounts import AccessRules, AclFile
from txmq_broker.access.acl_files import AclFiles, as_file, read_text, replace_text
from txmq_broker.access.acl_yaml import compose, dump, load

__all__ = ["AclEditor", "AclText"]


class AclEditor:
    """Changes accounts in the files that hold them. New accounts go to the first file.

    A change is in force once ``files`` are read again. Reading and changing many accounts is slow,
    and a change may wait for a lock, so a server calls this in a thread.

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
            elif key not in self.files.rules.accounts:  # If known, another broker just removed it.
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
                raise ConfigError(
                    f"{file} is not a file of accounts; the files are {', '.join(paths)}"
                )
            path = paths[file] if file else self._first()
            changed = texts[path].put_key("globalWhiteRemoteAddresses", addresses)
            self._store(files, path, changed)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock out other brokers that share the files."""
        if not self.files.paths():
            raise ConfigError("the file of accounts is gone; put it back")
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
        """The texts of all files, and their values."""
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


_ACCOUNTS: Final = "accounts"


class AclText(NamedTuple):
    """A text of accounts, and its values."""

    text: str
    values: dict[str, Any]

    @classmethod
    def of(cls, name: str, text: str) -> AclText:
        """Read a text.

        Raises:
            ConfigError: It is not YAML.
        """
        return cls(text, load(name, text) or {})

    def put_account(self, account: Mapping[str, Any]) -> AclText:
        """The text with an account added, or replaced if it has one with this ``accessKey``."""
        accounts = list(self.values.get(_ACCOUNTS) or ())
        at = _position(accounts, account["accessKey"])
        if at is None:
            text = _append(self.text, accounts, account)
            return self._changed(text, _ACCOUNTS, [*accounts, dict(account)])
        accounts[at] = dict(account)
        return self._changed(
            _replace_item(self.text, at, dump([dict(account)])), _ACCOUNTS, accounts
        )

    def remove_account(self, key: str) -> AclText:
        """The text without an account.

        Raises:
            KeyError: It has no such account.
        """
        accounts = list(self.values.get(_ACCOUNTS) or ())
        at = _position(accounts, key)
        if at is None:
            raise KeyError(key)
        del accounts[at]
        if not accounts:
            return self.put_key(_ACCOUNTS, [])
        return self._changed(_replace_item(self.text, at, ""), _ACCOUNTS, accounts)

    def put_key(self, key: str, value: Any) -> AclText:
        """The text with a new value of a top-level key."""
        line = dump({key: value})
        is_there = key in self.values
        text = _replace_key(self.text, key, line) if is_there else _ended(self.text) + line
        return self._changed(text, key, value)

    def _changed(self, text: str, key: str, value: Any) -> AclText:
        values = {**self.values, key: value}
        with suppress(ConfigError):
            if load("the edited accounts", text) == values:
                return AclText(text, values)
        return AclText(dump(values), values)


def _position(accounts: list[Any], key: str) -> int | None:
    found = (at for at, known in enumerate(accounts) if known.get("accessKey") == key)
    return next(found, None)


def _append(text: str, accounts: list[Any], account: Mapping[str, Any]) -> str:
    if not accounts:
        return _replace_key(_ended(text), _ACCOUNTS, dump({_ACCOUNTS: [dict(account)]}))
    lines = _ended(text).splitlines(keepends=True)
    last = _items(text)[-1]
    item = _indented(dump([dict(account)]), _indent(lines, last))
    return "".join([*lines[: last[1]], item, *lines[last[1] :]])


def _replace_item(text: str, at: int, item: str) -> str:
    lines = _ended(text).splitlines(keepends=True)
    span = _items(text)[at]
    return "".join([*lines[: span[0]], _indented(item, _indent(lines, span)), *lines[span[1] :]])


def _replace_key(text: str, key: str, line: str) -> str:
    lines = _ended(text).splitlines(keepends=True)
    root = compose(text)
    for name, value in root.value if root is not None and root.id == "mapping" else ():
        if name.value == key:
            first, last = name.start_mark.line, max(name.end_mark.line, _last_line(value))
            return "".join([*lines[:first], line, *lines[last + 1 :]])
    return "".join(lines) + line


def _items(text: str) -> list[tuple[int, int]]:
    """The lines of each account: the first one, and the one after the last."""
    root = compose(text)
    (accounts,) = (value for name, value in root.value if name.value == _ACCOUNTS)
    return [(item.start_mark.line, _last_line(item) + 1) for item in accounts.value]


def _last_line(node: Any) -> int:
    if isinstance(node.value, str) or node.flow_style or not node.value:
        end = node.end_mark
        is_past = end.column == 0 and end.line > node.start_mark.line
        return int(end.line - 1 if is_past else end.line)
    inner = node.value
    children = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
    # PyYAML ends a block where the next node begins, so after any comments in between.
    return max(map(_last_line, children))


def _indent(lines: list[str], span: tuple[int, int]) -> str:
    line = lines[span[0]]
    return line[: len(line) - len(line.lstrip())]


def _indented(text: str, indent: str) -> str:
    return "".join(indent + line for line in text.splitlines(keepends=True))


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
