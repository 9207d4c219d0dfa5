"""Operators' texts on a name server, by namespace and key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from txmq.errors import ConfigError, LimitExceeded
from txmq.limits import KEY_VALUE_BYTES_MAX, KEY_VALUES_MAX

__all__ = ["ORDER_TOPICS", "KeyValues"]

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace with each broker's number of queues for ordered messages, by topic."""


class _Written(msgspec.Struct):
    """The contents of the file, in RocketMQ's format."""

    table: dict[str, dict[str, str]] = msgspec.field(name="configTable", default_factory=dict)


class KeyValues:
    """Namespaces of texts by key. If saving a change fails, the change has no effect."""

    def __init__(self, save: Callable[[bytes], None], data: bytes | None = None) -> None:
        """Load the saved texts.

        Raises:
            ConfigError: The saved data is damaged.
        """
        self._save = save
        self._table: dict[str, dict[str, str]] = {}
        if data is not None:
            try:
                self._table = msgspec.json.decode(data, type=_Written).table
            except msgspec.MsgspecError as error:
                raise ConfigError(f"the saved key-value table is damaged: {error}") from error
        sizes = [
            _size(namespace, key, value)
            for namespace, space in self._table.items()
            for key, value in space.items()
        ]
        self.count = len(sizes)
        """The number of entries."""
        self.size = sum(sizes)
        """The characters of all entries."""
        self._refused = 0

    def figures(self) -> dict[str, int]:
        """What operators make the name server keep, and what it refused them since the start."""
        return {
            "key_values": self.count,
            "key_value_characters": self.size,
            "key_values_refused": self._refused,
        }

    def get(self, namespace: str, key: str) -> str | None:
        """The text of a key, or ``None``."""
        return self._table.get(namespace, {}).get(key)

    def space(self, namespace: str) -> dict[str, str]:
        """All texts of a namespace, by key; empty if the namespace does not exist."""
        return self._table.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a text.

        Raises:
            LimitExceeded: The limit of entries or of their characters is reached.
        """
        space = self._table.get(namespace, {})
        old = space.get(key)
        count, size = self.count, self.size + _size(namespace, key, value)
        if old is None:
            count += 1
        else:
            size -= _size(namespace, key, old)
        # A larger table, from a version with other limits, may still shrink.
        if old is None and count > KEY_VALUES_MAX:
            raise self._full("the number of", KEY_VALUES_MAX, count)
        if size > max(KEY_VALUE_BYTES_MAX, self.size):
            raise self._full("the characters of all", KEY_VALUE_BYTES_MAX, size)
        if value != old:
            self._commit(namespace, {**space, key: value})
            self.count, self.size = count, size

    def _full(self, what: str, limit: int, offered: int) -> LimitExceeded:
        self._refused += 1
        return LimitExceeded(
            f"nothing was stored, because {what} key-value entries", limit, offered
        )

    def delete(self, namespace: str, key: str) -> None:
        """Delete a text; harmless if it does not exist."""
        space = self._table.get(namespace, {})
        old = space.get(key)
        if old is not None:
            self._commit(namespace, {name: text for name, text in space.items() if name != key})
            self.count, self.size = self.count - 1, self.size - _size(namespace, key, old)

    def _commit(self, namespace: str, space: dict[str, str]) -> None:
        table = {**self._table, namespace: space}
        if not space:
            del table[namespace]
        self._save(msgspec.json.encode(_Written(table)))
        self._table = table


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)
