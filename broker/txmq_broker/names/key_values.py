"""Operators' texts on a name server, by namespace and key. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from txmq.errors import ConfigError, LimitExceeded
from txmq.limits import KEY_VALUE_BYTES_MAX, KEY_VALUES_MAX

__all__ = ["ORDER_TOPICS", "KeyValueTable", "KeyValues"]

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace with each broker's number of queues for ordered messages, by topic."""


class _Written(msgspec.Struct):
    """The contents of the file, in RocketMQ's format."""

    table: dict[str, dict[str, str]] = msgspec.field(name="configTable", default_factory=dict)


class KeyValueTable(NamedTuple):
    """All texts at one time; a change makes another table."""

    spaces: dict[str, dict[str, str]]
    entries: int
    """The number of entries."""
    chars: int
    """The characters of all entries."""

    def encode(self) -> bytes:
        """The contents of the file."""
        return msgspec.json.encode(_Written(self.spaces))


class KeyValues:
    """Namespaces of texts by key. A reader sees a change only when it is durable."""

    def __init__(self, data: bytes | None = None) -> None:
        """Load the saved texts.

        Raises:
            ConfigError: The saved data is damaged.
        """
        spaces: dict[str, dict[str, str]] = {}
        if data is not None:
            try:
                spaces = msgspec.json.decode(data, type=_Written).table
            except msgspec.MsgspecError as error:
                raise ConfigError(f"the saved key-value table is damaged: {error}") from error
        sizes = [
            _size(namespace, key, value)
            for namespace, space in spaces.items()
            for key, value in space.items()
        ]
        self.durable = self.staged = KeyValueTable(spaces, len(sizes), sum(sizes))
        self._refused = 0

    @property
    def is_saved(self) -> bool:
        """Whether all changes are durable."""
        return self.staged is self.durable

    def figures(self) -> dict[str, int]:
        """What operators make the name server keep, and what it refused them since the start."""
        return {
            "key_values": self.durable.entries,
            "key_value_characters": self.durable.chars,
            "key_values_refused": self._refused,
        }

    def get(self, namespace: str, key: str) -> str | None:
        """The text of a key, or ``None``."""
        return self.space(namespace).get(key)

    def space(self, namespace: str) -> dict[str, str]:
        """All texts of a namespace, by key; empty if the namespace does not exist."""
        return self.durable.spaces.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Stage a text.

        Raises:
            LimitExceeded: The limit of entries or of their characters is reached.
        """
        spaces, count, staged_size = self.staged
        space = spaces.get(namespace, {})
        old = space.get(key)
        size = staged_size + _size(namespace, key, value)
        if old is None:
            count += 1
        else:
            size -= _size(namespace, key, old)
        # A larger table, from a version with other limits, may still shrink.
        if old is None and count > KEY_VALUES_MAX:
            raise self._full("the number of", KEY_VALUES_MAX, count)
        if size > max(KEY_VALUE_BYTES_MAX, staged_size):
            raise self._full("the characters of all", KEY_VALUE_BYTES_MAX, size)
        if value != old:
            self._stage(namespace, {**space, key: value}, count, size)

    def _full(self, what: str, limit: int, offered: int) -> LimitExceeded:
        self._refused += 1
        return LimitExceeded(
            f"nothing was stored, because {what} key-value entries", limit, offered
        )

    def delete(self, namespace: str, key: str) -> None:
        """Stage the end of a text; harmless if it does not exist."""
        spaces, count, size = self.staged
        space = spaces.get(namespace, {})
        old = space.get(key)
        if old is not None:
            rest = {name: text for name, text in space.items() if name != key}
            self._stage(namespace, rest, count - 1, size - _size(namespace, key, old))

    def _stage(self, namespace: str, space: dict[str, str], count: int, size: int) -> None:
        spaces = {**self.staged.spaces, namespace: space}
        if not space:
            del spaces[namespace]
        self.staged = KeyValueTable(spaces, count, size)

    def undo(self) -> None:
        """Forget all staged changes."""
        self.staged = self.durable


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)
