"""Texts that operators keep on a name server, by namespace and key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from txmq.errors import ConfigError, LimitExceeded
from txmq.limits import ROUTE_TOPICS_MAX

__all__ = ["ORDER_TOPICS", "KeyValues"]

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that says, by topic, how many queues each broker has for ordered messages."""


class _Written(msgspec.Struct):
    """The text of the file, in the shape of RocketMQ's."""

    table: dict[str, dict[str, str]] = msgspec.field(name="configTable", default_factory=dict)


class KeyValues:
    """Namespaces of texts by key. A change that cannot be saved leaves all as it was."""

    def __init__(self, save: Callable[[bytes], None], data: bytes | None = None) -> None:
        """Start from what was saved.

        Raises:
            ConfigError: It is not what was saved.
        """
        self._save = save
        self._table: dict[str, dict[str, str]] = {}
        if data is not None:
            try:
                self._table = msgspec.json.decode(data, type=_Written).table
            except msgspec.MsgspecError as error:
                raise ConfigError(f"the saved key-value table is damaged: {error}") from error

    def get(self, namespace: str, key: str) -> str | None:
        """The text kept under a key, if there is one."""
        return self._table.get(namespace, {}).get(key)

    def space(self, namespace: str) -> dict[str, str]:
        """All texts of a namespace, by key; empty where it holds none."""
        return self._table.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a text.

        Raises:
            LimitExceeded: It is one too many.
        """
        space = self._table.get(namespace, {})
        count = sum(len(texts) for texts in self._table.values()) + 1
        # Most entries are one a topic, so there may be as many as topics.
        if key not in space and count > ROUTE_TOPICS_MAX:
            raise LimitExceeded("the number of key-value entries", ROUTE_TOPICS_MAX, count)
        self._commit(namespace, {**space, key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Let go of a text; harmless where there is none."""
        space = self._table.get(namespace, {})
        if key in space:
            self._commit(namespace, {name: text for name, text in space.items() if name != key})

    def _commit(self, namespace: str, space: dict[str, str]) -> None:
        table = {**self._table, namespace: space}
        if not space:
            del table[namespace]
        self._save(msgspec.json.encode(_Written(table)))
        self._table = table
