"""The rows of lists of connected clients."""

from __future__ import annotations

from typing import Any, Final

from txmq.client import Admin, ConnectedClient
from txmq.errors import ConsumerOffline
from txmq.ops.columns import ListColumn

__all__ = ["CLIENT_COLUMNS", "client_row", "consumer_rows"]

CLIENT_COLUMNS: Final = (
    ListColumn("group", "group"),
    ListColumn("client", "client"),
    ListColumn("address", "address"),
    ListColumn("language", "language"),
    ListColumn("version", "version"),
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
    """The groups that consume a topic with their consumers; a row for a group without any, too.

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
