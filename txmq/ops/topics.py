"""Topics, summed over all brokers, and whether a new one may have its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from shlex import quote
from typing import Any, NamedTuple

from txmq.client import Admin
from txmq.client.names import check_name
from txmq.client.routes import MASTER
from txmq.client.values import BrokerInfo
from txmq.errors import TopicExists, TopicNotFound, TxmqError
from txmq.ops.queries import for_each
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.codes import Perm
from txmq.protocol.topics import OF_THE_SYSTEM, topics_of_brokers
from txmq.text import quantity

__all__ = [
    "Rows",
    "application_topics",
    "check_new_topic",
    "description_of",
    "fields_of",
    "own_topics",
    "permission_of",
    "topic_rows",
]


class Rows(NamedTuple):
    """The topics, and the brokers that the numbers do not include."""

    rows: list[dict[str, Any]]
    silent: dict[str, str]
    """Why, by broker."""


Counts = Callable[[list[str], Callable[[str], Awaitable[int | None]]], Awaitable[list[int | None]]]


async def topic_rows(admin: Admin, *, everything: bool, ask_each: Counts = for_each) -> Rows:
    """All topics by name; topics of the system only if everything is wanted.

    The numbers leave out a broker that does not answer, and the result names it.

    Raises:
        TransportError: No name server answers.
    """
    brokers = await admin.cluster()
    names = await admin.topics()
    if not everything:
        names = own_topics(names, brokers)
    silent: dict[str, str] = {}
    configs: dict[str, list[TopicConfig]] = {}
    for broker in brokers if names else ():
        if MASTER not in broker.addresses:
            silent[broker.name] = "it has no master now"
            continue
        try:
            of_broker = await admin.topics_of_broker(broker.name)
        except TxmqError as error:
            silent[broker.name] = str(error).strip()
            continue
        for name, config in of_broker.items():
            configs.setdefault(name, []).append(config)

    async def messages(name: str) -> int | None:
        try:
            queues = await admin.topic_status(name)
        except TxmqError:
            return None  # Its broker does not answer, or the topic is being deleted.
        return sum(queue.max_offset - queue.min_offset for queue in queues)

    counts = await ask_each(names, messages)
    rows = [
        {"topic": name, **_sums(configs.get(name, [])), "messages": count}
        for name, count in zip(names, counts, strict=True)
    ]
    return Rows(rows, silent)


def own_topics(names: Iterable[str], brokers: list[BrokerInfo]) -> list[str]:
    """The topics among these that are not of the system."""
    own = topics_of_brokers((broker.name, broker.cluster) for broker in brokers)
    return [name for name in names if name not in own and not name.startswith(OF_THE_SYSTEM)]


async def application_topics(admin: Admin) -> list[str]:
    """The names of all topics but those of the system, of retries and of dead letters.

    Raises:
        TransportError: No name server answers.
    """
    return own_topics(await admin.topics(), await admin.cluster())


def _sums(configs: list[TopicConfig]) -> dict[str, Any]:
    return {
        "read_queues": sum(config.read_queue_nums for config in configs),
        "write_queues": sum(config.write_queue_nums for config in configs),
        "permission": permission_of(configs),
    }


def fields_of(config: TopicConfig) -> dict[str, Any]:
    """The settings of a topic at one broker, for programs."""
    return {**_sums([config]), "order": config.order}


def permission_of(configs: Iterable[TopicConfig]) -> str:
    """The permission of a topic: ``rw``, ``r``, ``w`` or ``none``; several if brokers differ."""
    words = (
        ("r" if config.perm & Perm.READ else "") + ("w" if config.perm & Perm.WRITE else "")
        for config in configs
    )
    return ", ".join(dict.fromkeys(word or "none" for word in words))


def description_of(config: TopicConfig) -> str:
    """The queues and the permission of a topic at one broker, in words."""
    write, read = config.write_queue_nums, config.read_queue_nums
    counted = quantity(read, "queue")
    if write != read:
        counted = f"{quantity(write, 'queue')} to write, {read} to read"
    return f"{counted}, {permission_of([config])}" + (", ordered" if config.order else "")


async def check_new_topic(
    admin: Admin, name: str, queues: int, broker: str | None, cluster: str | None
) -> None:
    """Pass if no broker that is to have the topic has it already.

    Raises:
        LocalProtocolError: The topic name is invalid.
        TopicExists: A broker has it.
        TransportError: No name server answers.
    """
    check_name("topic", name)
    try:
        route = await admin.route(name)
    except TopicNotFound:
        return
    known = await admin.cluster()
    chosen = {
        at.name for at in known if broker in (None, at.name) and cluster in (None, at.cluster)
    }
    if having := sorted(chosen & set(route.addresses)):
        only = f" --broker {quote(broker)}" if broker is not None else ""
        raise TopicExists(
            f"topic {name!r} exists already at {', '.join(having)}; change it with: "
            f"txmq topic update {quote(name)} --queues {queues}{only}"
        )
