"""Changes to the text of a file of accounts that keep its comments. Pure.

A change replaces only the lines of the account or the key that it is about. A text that cannot be
edited line by line, such as one in JSON's style, is written anew as a whole, without comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from txmq.errors import ConfigError
from txmq_broker.access.acl_yaml import compose, dump, load

__all__ = ["put_account", "put_key", "remove_account"]

_ACCOUNTS: Final = "accounts"


def put_account(text: str, account: Mapping[str, Any]) -> str:
    """The text with an account added, or changed if there is one with its ``accessKey``."""
    values = _values(text)
    accounts = list(values.get(_ACCOUNTS) or ())
    at = _position(accounts, account["accessKey"])
    if at is None:
        values[_ACCOUNTS] = [*accounts, dict(account)]
        return _checked(_append(text, accounts, account), values)
    accounts[at] = dict(account)
    values[_ACCOUNTS] = accounts
    return _checked(_replace_item(text, at, dump([dict(account)])), values)


def remove_account(text: str, key: str) -> str:
    """The text without an account.

    Raises:
        KeyError: It has no such account.
    """
    values = _values(text)
    accounts = list(values.get(_ACCOUNTS) or ())
    at = _position(accounts, key)
    if at is None:
        raise KeyError(key)
    del accounts[at]
    values[_ACCOUNTS] = accounts
    if not accounts:
        return put_key(text, _ACCOUNTS, [])
    return _checked(_replace_item(text, at, ""), values)


def put_key(text: str, key: str, value: Any) -> str:
    """The text with another value of a key of the whole file."""
    values = _values(text)
    is_there = key in values
    values[key] = value
    line = dump({key: value})
    return _checked(_replace_key(text, key, line) if is_there else _ended(text) + line, values)


def _values(text: str) -> dict[str, Any]:
    return dict(load("the accounts", text) or {})


def _position(accounts: list[Any], key: str) -> int | None:
    found = (at for at, known in enumerate(accounts) if known.get("accessKey") == key)
    return next(found, None)


def _checked(text: str | None, values: dict[str, Any]) -> str:
    if text is not None:
        with suppress(ConfigError):
            if load("the edited accounts", text) == values:
                return text
    return dump(values)


def _append(text: str, accounts: list[Any], account: Mapping[str, Any]) -> str | None:
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
    for name, value in root.value if root is not None else ():
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
