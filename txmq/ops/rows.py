"""Lists as commands and the console show them: their columns, and the fields of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from txmq.client import Admin, ConnectedClient
from txmq.errors import ConsumerOffline, RequestNotSupported
from txmq.ops.moments import time_text
from txmq.protocol.operations import AuditedRequest, DelayedEntry, PlainAccount
from txmq.settings.description import describe

__all__ = [
    "ACCOUNT_COLUMNS",
    "CLIENT_COLUMNS",
    "DELAYED_COLUMNS",
    "PERMISSIONS",
    "SOURCES",
    "ListColumn",
    "account_row",
    "act_text",
    "client_row",
    "consumer_rows",
    "delayed_row",
    "delayed_rows",
    "person_of",
    "setting_rows",
    "setting_texts",
]


class ListColumn(NamedTuple):
    """A column of a list."""

    heading: str
    """Its name, for people and for ``--sort``."""
    field: str = ""
    """Its name in rows and in JSON, if that is not the heading."""
    show: Callable[[Any], object] = lambda value: "" if value is None else value
    """The text of a value, for people."""
    order: Callable[[Any], Any] | None = None
    """Makes the sort key of a value, if that is not its number or its text."""

    @property
    def key(self) -> str:
        """Its name in rows and in JSON."""
        return self.field or self.heading.replace(" ", "_")

    def value_in(self, row: Any) -> Any:
        """This column's value in a row, which is a mapping or an object."""
        return row[self.key] if isinstance(row, Mapping) else getattr(row, self.key)

    def cell(self, row: Any) -> object:
        """The text of a row's value, for people."""
        return self.show(self.value_in(row))

    def sort_key(self, row: Any) -> tuple[bool, Any]:
        """A key by which rows can be sorted."""
        value = self.value_in(row)
        if self.order is not None:
            value = self.order(value)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)  # Settings and figures are texts on the wire.
        if isinstance(value, int | float):
            return True, value
        return False, str(self.show(value))


PERMISSIONS: Final = ("PUB", "SUB", "PUB|SUB", "DENY")


def _joined(texts: list[str]) -> str:
    return ", ".join(texts)


ACCOUNT_COLUMNS: Final = (
    ListColumn("broker"),
    ListColumn("account"),
    ListColumn("admin", "admin", lambda admin: "yes" if admin else "no"),
    ListColumn("topics", "topics", _joined),
    ListColumn("other topics"),
    ListColumn("groups", "groups", _joined),
    ListColumn("other groups"),
    ListColumn("unsigned from"),
)
"""The columns of :func:`account_row`."""


def account_row(broker: str, account: PlainAccount) -> dict[str, Any]:
    """The row of an account of a broker; no request reveals its secret."""
    return {
        "broker": broker,
        "account": account.access_key,
        "admin": account.admin,
        "topics": account.topic_perms or [],
        "other_topics": account.default_topic_perm or "DENY",
        "groups": account.group_perms or [],
        "other_groups": account.default_group_perm or "DENY",
        "unsigned_from": account.white_remote_address or "",
    }


CLIENT_COLUMNS: Final = (
    ListColumn("group"),
    ListColumn("client"),
    ListColumn("address"),
    ListColumn("language"),
    ListColumn("version"),
)
"""The columns of :func:`client_row`."""


def client_row(group: str, client: ConnectedClient) -> dict[str, Any]:
    """The row of a client of a group."""
    return {
        "group": group,
        "client": client.id,
        "address": client.address,
        "language": client.language,
        "version": client.version,
    }


async def consumer_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """A row for each consumer of a topic, by group, and one for each group without consumers.

    Raises:
        TopicNotFound: No broker has the topic.
        TransportError: A broker does not answer.
        BrokerRefused: A broker refuses.
    """
    clusters = await admin.clusters_of(topic)
    rows: list[dict[str, Any]] = []
    for group in await admin.topic_groups(topic):
        online: dict[str, dict[str, Any]] = {}
        for cluster in clusters:
            try:
                found = await admin.group_connections(group, cluster=cluster)
            except ConsumerOffline:
                continue
            for client in found.clients:
                expression = found.subscriptions.get(topic)
                online[client.id] = client_row(group, client) | {"expression": expression}
        rows += online.values() or [_without_clients(group)]
    return rows


def _without_clients(group: str) -> dict[str, Any]:
    row = dict.fromkeys(("client", "address", "language", "version", "expression"))
    return {"group": group, **row}


DELAYED_COLUMNS: Final = (
    ListColumn("due", "due_ms", time_text),
    ListColumn("level", "level", lambda level: level or "own time"),
    ListColumn("topic"),
    ListColumn("id"),
    ListColumn("keys"),
    ListColumn("bytes", "size"),
    ListColumn("broker"),
    ListColumn("recall handle"),
)
"""The columns of :func:`delayed_row`."""


def delayed_row(broker: str, entry: DelayedEntry) -> dict[str, Any]:
    """The row of a delayed message at a broker."""
    return {
        "broker": broker,
        "due_ms": entry.due_ms,
        "level": entry.level,
        "topic": entry.topic or entry.problem,
        "id": entry.message_id,
        "keys": entry.keys,
        "tags": entry.tags,
        "size": entry.size,
        "stored_ms": entry.stored_ms,
        "place": entry.offset_msg_id,
        "recall_handle": entry.recall_handle,
        "problem": entry.problem,
    }


async def delayed_rows(
    admin: Admin, broker: str | None, *, level: int | None, from_ms: int, limit: int
) -> list[dict[str, Any]]:
    """The delayed messages that are due first, at one broker or at all.

    Raises:
        ConfigError: The broker is unknown.
        RequestNotSupported: A broker is not a txmq broker.
        TransportError: A name server or a broker does not answer.
        BrokerRefused: A broker refuses.
    """
    names = [info.name for info in await admin.cluster()] if broker is None else [broker]
    rows: list[dict[str, Any]] = []
    for name in names:
        page = await admin.delayed(name, level=level, from_ms=from_ms, limit=limit)
        rows += [delayed_row(name, entry) for entry in page.messages]
    rows.sort(key=lambda row: row["due_ms"])
    return rows[:limit]


def person_of(entry: AuditedRequest) -> str:
    """Who sent a request: its account, or else the operator that it names."""
    return entry.account or entry.fields.get("operator", "")


def act_text(entry: AuditedRequest) -> str:
    """An entry as one line."""
    fields = " ".join(f"{name}={text}" for name, text in entry.fields.items())
    who = f"{entry.account or 'no account'} at {entry.peer}"
    result = f"  refused: {entry.refused}" if entry.refused else ""
    return f"{time_text(entry.at_ms)} {who}: {entry.request} {fields}{result}"


SOURCES: Final = {
    "default": "default",
    "start": "set at the start",
    "change": "changed since the start",
    "": "",
}
"""What the sources of :func:`setting_rows` mean."""


async def setting_rows(admin: Admin, broker: str) -> list[dict[str, Any]]:
    """The settings of a broker by name.

    Brokers of Apache RocketMQ name neither defaults nor sources; these fields are then ``None``
    or empty.

    Raises:
        ConfigError: The broker is unknown.
        TransportError: A name server or the broker does not answer.
        BrokerRefused: The broker refuses.
    """
    try:
        settings = await admin.broker_settings(broker)
    except RequestNotSupported:
        found = await admin.broker_config(broker)
        unknown = {"key": "", "default": None, "source": "", "can_change": None}
        return [
            {"broker": broker, "setting": name, "value": value, **unknown}
            for name, value in sorted(found.items())
        ]
    return [
        {
            "broker": broker,
            "setting": entry.name,
            "value": entry.value,
            "key": entry.key,
            "default": entry.default,
            "source": entry.source,
            "can_change": entry.can_change,
        }
        for entry in sorted(settings, key=lambda entry: entry.name)
    ]


@cache
def setting_texts() -> dict[str, str]:
    """What each setting of a txmq broker does, by its key; empty without the broker's package."""
    try:
        from txmq_broker.config import BrokerSettings
    except ImportError:
        return {}
    return {
        setting.key: " ".join(setting.text.replace("``", "").split())
        for setting in describe(BrokerSettings)
    }
