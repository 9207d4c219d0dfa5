"""Checks that a topic or a group exists; the error suggests the nearest name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from shlex import quote

from txmq.client import Admin
from txmq.client.routes import MASTER
from txmq.errors import ConsumerOffline, GroupNotFound, TopicNotFound
from txmq.protocol.topics import DLQ, RETRY

__all__ = ["check_group", "check_producer_group", "check_topic", "nearest"]


async def check_topic(admin: Admin, name: str, what: str = "topic") -> None:
    """Check that a topic exists.

    Args:
        admin: The connection to the cluster.
        name: The topic.
        what: What the error calls it.

    Raises:
        TopicNotFound: It does not exist; the text says the nearest name and what to do.
        TransportError: No name server answers.
    """
    known = await admin.topics()
    if name not in known:
        raise TopicNotFound(
            f"{what} {name!r} does not exist{nearest(name, known)}; "
            f"create it with: txmq topic create {quote(name)}"
        )


async def check_group(admin: Admin, name: str, *, cluster: str | None = None) -> None:
    """Check that a consumer group has settings, retry or dead-letter topics, offsets or consumers.

    Raises:
        GroupNotFound: It has none of them; the text says the nearest name and what to do.
        ConfigError: The cluster is unknown.
        TransportError: A name server or broker does not answer.
        BrokerRefused: A broker refuses.
    """
    topics = await admin.topics()
    if not {RETRY + name, DLQ + name}.isdisjoint(topics):
        return
    known = {topic.removeprefix(RETRY) for topic in topics if topic.startswith(RETRY)}
    clusters = {broker.cluster for broker in await admin.cluster() if MASTER in broker.addresses}
    for chosen in sorted(clusters) if cluster is None else [cluster]:
        known.update(await admin.groups(cluster=chosen))
        if name in known or await admin.group_progress(name, cluster=chosen):
            return
        try:
            await admin.group_connections(name, cluster=chosen)
        except ConsumerOffline:
            continue
        return
    raise GroupNotFound(
        f"group {name!r} does not exist{nearest(name, known)}; "
        "list all groups with: txmq group list"
    )


async def check_producer_group(admin: Admin, name: str) -> None:
    """Check that a producer group has open transactions or connected producers.

    Brokers keep nothing else about producers.

    Raises:
        GroupNotFound: It has neither; the text says the nearest group with open transactions.
        TransportError: A name server or broker does not answer.
        BrokerRefused: A broker refuses.
    """
    known: set[str] = set()
    for cluster in sorted({broker.cluster for broker in await admin.cluster()}):
        if await admin.transactions(group=name, limit=1, cluster=cluster):
            return
        if await admin.producer_connections(name, cluster=cluster):
            return
        known.update(
            transaction.group
            for transaction in await admin.transactions(limit=500, cluster=cluster)
        )
    raise GroupNotFound(
        f"producer group {name!r} has no open transactions and no connected producers"
        f"{nearest(name, known)}; list the open transactions of all groups with: txmq tx list"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that suggests the nearest of some names; empty if no name is near."""
    found = get_close_matches(name, sorted(known), n=1)
    return f"; the nearest name is {found[0]!r}" if found else ""
