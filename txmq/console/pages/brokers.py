"""The broker that a page is about, and the others to choose from."""

from __future__ import annotations

from typing import NamedTuple

from txmq.client.values import BrokerInfo
from txmq.console.visits import Visit
from txmq.errors import ConnectFailed, UsageError

__all__ = ["BrokerChoice", "choose_broker", "known_brokers"]


class BrokerChoice(NamedTuple):
    """One broker, and all brokers of the cluster."""

    name: str
    names: list[str]


async def known_brokers(visit: Visit) -> list[BrokerInfo]:
    """The brokers of the console's cluster.

    Raises:
        TransportError: No name server answers.
    """
    return [
        broker
        for broker in await visit.admin.cluster()
        if visit.settings.cluster in {None, broker.cluster}
    ]


async def choose_broker(visit: Visit) -> BrokerChoice:
    """The broker in the address of a page, or the first one.

    Raises:
        UsageError: The cluster has no such broker.
        ConnectFailed: The name server knows no broker yet.
        TransportError: No name server answers.
    """
    names = [broker.name for broker in await known_brokers(visit)]
    wanted = visit.text("broker")
    if not names:
        raise ConnectFailed("the name server knows no broker yet; start one with: txmq serve")
    if wanted and wanted not in names:
        raise UsageError(f"{wanted!r} is not a broker of this cluster; choose {' or '.join(names)}")
    return BrokerChoice(wanted or names[0], names)
