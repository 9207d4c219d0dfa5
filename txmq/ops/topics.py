"""Topics summed over all brokers, checks of new topics, and changes that hide no message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from shlex import quote
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from txmq.client import Admin, QueueStatus
from txmq.client.names import check_name
from txmq.client.routes import MASTER
from txmq.client.values import BrokerInfo
from txmq.errors import IllegalOperation, TopicExists, TopicNotFound, TxmqError
from txmq.message import Queue
from txmq.ops.queries import for_each
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.codes import Perm
from txmq.protocol.topics import OF_THE_SYSTEM, topics_of_brokers
from txmq.text import quantity

__all__ = [
    "PlannedSettings",
    "Rows",
    "TopicChange",
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
    """The reason, by broker."""


Counts = Callable[[list[str], Callable[[str], Awaitable[int | None]]], Awaitable[list[int | None]]]


async def topic_rows(admin: Admin, *, everything: bool, ask_each: Counts = for_each) -> Rows:
    """All topics by name; system topics only with ``everything``.

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
    """Those of the given topics that are not system topics."""
    own = topics_of_brokers((broker.name, broker.cluster) for broker in brokers)
    return [name for name in names if name not in own and not name.startswith(OF_THE_SYSTEM)]


async def application_topics(admin: Admin) -> list[str]:
    """The names of all topics except system, retry and dead-letter topics.

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
    """Check that no chosen broker has the topic yet.

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


NAMED_MAX: Final = 5
"""The maximum number of queues or groups that one sentence names; it counts the others."""


class PlannedSettings(NamedTuple):
    """The settings of a topic at a broker, now and after a change."""

    before: TopicConfig
    after: TopicConfig


class TopicChange(NamedTuple):
    """The settings to change; ``None`` keeps a setting."""

    topic: str
    queues: int | None
    perm: int | None
    order: bool | None
    broker: str | None
    may_shrink: bool

    @property
    def command(self) -> str:
        """The command that takes the first or the second step to remove the queues."""
        only = f" --broker {quote(self.broker)}" if self.broker is not None else ""
        return f"txmq topic update {quote(self.topic)} --queues {self.queues}{only} --shrink"

    async def make(self, admin: Admin) -> dict[str, TopicConfig]:
        """Make the change, or its first step; returns the settings in force now, by broker.

        Removing queues takes RocketMQ's two steps. The first lowers the number of queues to write.
        The second lowers the number of queues to read, once all groups have consumed the surplus
        queues.

        Raises:
            TopicNotFound: No broker has the topic, or the named broker does not.
            IllegalOperation: Messages would be hidden.
            TransportError: A broker does not answer; others may have made the change.
            BrokerRefused: A broker refuses; others may have made the change.
        """
        planned = await self.plan(admin)
        wanted = {at: change.after for at, change in planned.items()}
        await admin.update_topic(self.topic, wanted)
        return wanted

    async def plan(self, admin: Admin) -> dict[str, PlannedSettings]:
        """What :meth:`make` would change, by broker.

        Raises:
            TxmqError: As for :meth:`make`.
        """
        known = await admin.topic_config(self.topic, broker=self.broker)
        wanted = {at: self._change(config) for at, config in known.items()}
        if self.queues is not None:
            wanted = await self._set_queue_count(admin, wanted, self.queues)
        return {at: PlannedSettings(known[at], config) for at, config in wanted.items()}

    def _change(self, config: TopicConfig) -> TopicConfig:
        if self.perm is not None:
            config = replace(config, perm=int(self.perm))
        return config if self.order is None else replace(config, order=self.order)

    async def _set_queue_count(
        self, admin: Admin, configs: dict[str, TopicConfig], queues: int
    ) -> dict[str, TopicConfig]:
        shrinking = {
            at: config
            for at, config in configs.items()
            if max(config.read_queue_nums, config.write_queue_nums) > queues
        }
        if shrinking and not self.may_shrink:
            raise IllegalOperation(
                f"topic {self.topic!r} has more than {quantity(queues, 'queue')} at "
                f"{', '.join(shrinking)}. {await self._hidden(admin, shrinking)} "
                f"Shrink it in two safe steps with: {self.command}"
            )
        is_closing = any(config.write_queue_nums > queues for config in shrinking.values())
        if shrinking and not is_closing:
            await self._check_drained(admin, shrinking)
        return {
            at: replace(
                config,
                write_queue_nums=queues,
                read_queue_nums=config.read_queue_nums
                if is_closing and at in shrinking
                else queues,
            )
            for at, config in configs.items()
        }

    async def _check_drained(self, admin: Admin, configs: dict[str, TopicConfig]) -> None:
        left = await self._left(admin, configs)
        if left.lags:
            raise IllegalOperation(
                f"topic {self.topic!r} keeps its queues to read. {_sentence_of(left)} "
                f"When they are consumed, run again: {self.command}"
            )

    async def _hidden(self, admin: Admin, configs: dict[str, TopicConfig]) -> str:
        left = await self._left(admin, configs)
        if not left.stored:
            return "The others are empty."
        return f"The others would be hidden. {_sentence_of(left)}"

    async def _left(self, admin: Admin, configs: dict[str, TopicConfig]) -> _Remaining:
        assert self.queues is not None, "only a change of the number of queues comes here"
        stored = {
            found.queue: found
            for found in await admin.topic_status(self.topic)
            if found.queue.broker in configs
            and found.queue.number >= self.queues
            and found.max_offset > found.min_offset
        }
        lags: dict[str, int] = {}
        groups = await admin.topic_groups(self.topic) if stored else []
        for group in groups:
            lag = 0
            for queue, found in stored.items():
                offset = await admin.committed_offset(group, queue)
                lag += found.max_offset - max(offset or 0, found.min_offset)
            if lag > 0:
                lags[group] = lag
        if stored and not groups:
            lags[""] = sum(found.max_offset - found.min_offset for found in stored.values())
        return _Remaining(stored, lags)


class _Remaining(NamedTuple):
    """The messages in the queues to remove."""

    stored: dict[Queue, QueueStatus]
    lags: dict[str, int]
    """Messages not consumed yet, by group; under the name "" if no group consumes them."""


def _sentence_of(left: _Remaining) -> str:
    counts = {
        f"{queue.broker}:{queue.number}": found.max_offset - found.min_offset
        for queue, found in left.stored.items()
    }
    text = (
        f"{quantity(sum(counts.values()), 'message is', 'messages are')} "
        f"in {quantity(len(counts), 'queue')}: "
        f"{_few([f'{count} in {queue}' for queue, count in counts.items()])}."
    )
    if "" in left.lags:
        return f"{text} No group has consumed them."
    if left.lags:
        behind = [f"{count} by group {group!r}" for group, count in left.lags.items()]
        return f"{text} Not yet consumed: {_few(behind)}."
    return f"{text} All groups have consumed them."


def _few(texts: list[str]) -> str:
    more = [f"{len(texts) - NAMED_MAX} more"] if len(texts) > NAMED_MAX else []
    return ", ".join(texts[:NAMED_MAX] + more)
