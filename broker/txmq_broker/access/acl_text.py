"""Changes to the text of a file of accounts that keep its comments. Pure.

A change replaces only the lines of the account or the key that it is about. A text that cannot be
edited line by line, such as one in JSON's style, is written anew as a whole, without comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from txmq.errors import ConfigError
from txmq_broker.access.acl_yaml import compose, dump, load

__all__ = ["AclText"]

_ACCOUNTS: Final = "accounts"


class AclText(NamedTuple):
    """A text of accounts, and what it says."""

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
        """The text with an account added, or changed if there is one with its ``accessKey``."""
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
        """The text with another value of a key of the whole file."""
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
    # The end of a block is the beginning of what follows, behind its comments.
    return max(map(_last_line, children))


def _indent(lines: list[str], span: tuple[int, int]) -> str:
    line = lines[span[0]]
    return line[: len(line) - len(line.lstrip())]


def _indented(text: str, indent: str) -> str:
    return "".join(indent + line for line in text.splitlines(keepends=True))


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
