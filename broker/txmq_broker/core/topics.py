"""Topics: their names, queues, permissions, creation and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from txmq.errors import InternalError, NoPermission, TopicNotFound
from txmq.limits import TOPIC_CHARS_MAX, TOPICS_MAX
from txmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from txmq.protocol.codes import Perm
from txmq.protocol.copies import TopicChanges
from txmq.protocol.record import topic_field
from txmq.protocol.topics import (
    DLQ,
    HALF_TOPIC,
    OF_THE_SYSTEM,
    OP_TOPIC,
    PARKED_TOPIC,
    RETRY,
    SCHEDULE_TOPIC,
    TRACES,
    WHEEL_TOPIC,
)
from txmq_broker.config import BrokerSettings, TopicDefaults
from txmq_broker.store.delay_lines import WHEEL_QUEUES
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.queue_store import ConsumeQueue, topic_seed

__all__ = [
    "TEMPLATE",
    "Topic",
    "TopicCensus",
    "Topics",
    "check_name",
    "config_for_group",
    "queue_counts",
    "queues_to_write",
]

TEMPLATE: Final = "TBW102"
"""The topic whose settings new topics inherit; clients use its route for unknown topics."""

CLOSED_TO_CLIENTS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        WHEEL_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        PARKED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics that only the broker writes to."""

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)

_CHANGES_REMEMBERED: Final = 10_000
"""Changed topics that are remembered; a follower that lacks older changes receives all topics."""


def check_name(name: str) -> None:
    """Refuse a topic's name that cannot be stored or displayed.

    Raises:
        InternalError: It is empty, too long, or has illegal characters (the same code as RocketMQ).
    """
    if not _LEGAL.fullmatch(name):
        raise InternalError(f"the topic name {name[:200]!r} is empty or holds illegal characters")
    if len(name) > TOPIC_CHARS_MAX:
        raise InternalError(f"a topic name has at most {TOPIC_CHARS_MAX} characters")


class Topic:
    """A topic, with the precomputed values that the hot path needs."""

    __slots__ = (
        "config",
        "key_seed",
        "name",
        "name_field",
        "put_bytes",
        "put_count",
        "queues",
    )

    def __init__(self, config: TopicConfig, queues: list[ConsumeQueue]) -> None:
        self.config = config
        self.name = config.topic_name
        self.name_field = topic_field(self.name)
        self.key_seed = topic_seed(self.name)
        self.queues = queues
        self.put_count = 0
        self.put_bytes = 0

    @property
    def is_writeable(self) -> bool:
        """True if messages may be sent to it."""
        return bool(self.config.perm & Perm.WRITE)

    @property
    def is_readable(self) -> bool:
        """True if messages may be pulled from it."""
        return bool(self.config.perm & Perm.READ)


class Topics:
    """All topics of this broker."""

    def __init__(self, store: MessageStore, defaults: TopicDefaults) -> None:
        self._store = store
        self.defaults = defaults
        self.by_name: dict[str, Topic] = {}
        self.sendable: dict[str, Topic] = {}
        """The topics that clients may send to without further checks, for the hot path."""
        self._system: set[str] = set()
        self.refused = 0
        """The number of requests that would have exceeded a limit of topics."""
        self.puts_forgotten = 0
        self.bytes_forgotten = 0
        self.version = DataVersion()
        self._configs: dict[str, TopicConfig] = {}
        """The settings of all topics in one table, which is cheap to copy."""
        self._settled_version = self.version
        self._before: dict[str, TopicConfig | None] = {}
        """The former settings of topics that changed since the last save; ``None`` for new ones."""
        self._changed_at: dict[str, int] = {}
        """The version in which each of the last changed topics changed, the oldest first."""
        self._remembers_from = 0
        """The version since which all changes are remembered."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def load(self, saved: TopicConfigs, system: Iterable[TopicConfig]) -> None:
        """Load the saved topics and create the system topics."""
        self.version = saved.data_version
        self._remembers_from = self.version.counter
        for config in saved.topic_config_table.values():
            self._put(config)
        for config in system:
            name = config.topic_name
            self._system.add(name)
            known = self.by_name.get(name)
            # Settings may have changed since: more delay levels, or other defaults for new topics.
            if (
                known is None
                or (name == SCHEDULE_TOPIC and len(known.queues) < config.read_queue_nums)
                or (name == TEMPLATE and known.config != config)
            ):
                self._put(config)

    def saved(self) -> TopicConfigs:
        """All topics in the form that is saved and registered with name servers."""
        return TopicConfigs(data_version=self.version, topic_config_table=self._configs.copy())

    def unsaved(self) -> dict[str, TopicConfig | None]:
        """The topics that changed since the last save; ``None`` for deleted ones."""
        return {name: self._configs.get(name) for name in self._before}

    def changes_since(self, version: DataVersion) -> TopicChanges | None:
        """The changes after a version, or ``None`` if that is too long ago."""
        if version.counter < self._remembers_from:
            return None
        changes = TopicChanges(self.version)
        for name, counter in reversed(self._changed_at.items()):
            if counter <= version.counter:
                break
            config = self._configs.get(name)
            if config is None:
                changes.deleted.append(name)
            else:
                changes.changed[name] = config
        return changes

    def settle(self) -> None:
        """Mark the current topics as saved."""
        self._before.clear()
        self._settled_version = self.version

    def undo(self) -> None:
        """Restore the topics that were saved last; a restart must know all topics with messages."""
        for name, config in self._before.items():
            if config is None:
                self._drop(name)
            else:
                self._put(config)
        self._before.clear()
        self.version = self._settled_version

    def adopt(self, saved: TopicConfigs) -> None:
        """Replace all topics with those of another copy of this broker."""
        table, before = saved.topic_config_table, self.version
        self.version = saved.data_version
        if self.version != before and self.version.counter <= before.counter:
            # A new leader may be behind the former one, and then reuses its versions.
            self._changed_at.clear()
            self._remembers_from = before.counter + 1
        for name in [name for name in self.by_name if name not in table]:
            self._drop(name)
            self._remember(name)
        for name, config in table.items():
            if self._configs.get(name) is not config:
                self._put(config)
                self._remember(name)

    def get(self, name: str) -> Topic:
        """A topic that must exist.

        Raises:
            TopicNotFound: It does not exist.
        """
        found = self.by_name.get(name)
        if found is None:
            raise TopicNotFound(f"topic[{name}] not exist, apply first please!")
        return found

    def is_system(self, name: str) -> bool:
        """Return true if a topic belongs to the broker itself."""
        return name in self._system or name in CLOSED_TO_CLIENTS or name.startswith("rmq_sys_")

    def put(self, config: TopicConfig, now_ms: int) -> Topic:
        """Create or change a topic.

        Raises:
            InternalError: Its name or its number of queues is invalid.
            NoPermission: The limit of topics is reached.
        """
        check_name(config.topic_name)
        queues = (config.read_queue_nums, config.write_queue_nums)
        if min(queues) < 0 or not 1 <= max(queues) <= QUEUES_MAX:
            raise InternalError(f"a topic has from 1 to {QUEUES_MAX} queues")
        if config.topic_name not in self.by_name and len(self.by_name) >= TOPICS_MAX:
            self.refused += 1
            raise NoPermission(
                f"this broker has {len(self.by_name)} topics, and {TOPICS_MAX} is the limit; "
                f"{config.topic_name} was not created; delete other topics first"
            )
        self._changed(config.topic_name, now_ms)
        return self._put(config)

    def _put(self, config: TopicConfig) -> Topic:
        name = config.topic_name
        count = max(config.read_queue_nums, config.write_queue_nums)
        queues = [self._store.queue(name, number) for number in range(count)]
        topic = self.by_name.get(name)
        if topic is None:
            topic = self.by_name[name] = Topic(config, queues)
        else:
            topic.config, topic.queues = config, queues
        self._configs[name] = config
        # Sends to a retry topic need further checks.
        is_plain = name not in CLOSED_TO_CLIENTS and not name.startswith(RETRY)
        if topic.is_writeable and is_plain:
            self.sendable[name] = topic
        else:
            self.sendable.pop(name, None)
        return topic

    def _drop(self, name: str) -> None:
        self.by_name.pop(name, None)
        self.sendable.pop(name, None)
        self._configs.pop(name, None)

    def _changed(self, name: str, now_ms: int) -> None:
        """Note that a topic is about to change."""
        self.version = DataVersion(timestamp=now_ms, counter=self.version.counter + 1)
        self._before.setdefault(name, self._configs.get(name))
        self._remember(name)

    def _remember(self, name: str) -> None:
        self._changed_at.pop(name, None)
        self._changed_at[name] = self.version.counter
        if len(self._changed_at) > _CHANGES_REMEMBERED:
            oldest = self._changed_at.pop(next(iter(self._changed_at)))
            self._remembers_from = max(self._remembers_from, oldest)

    def remove(self, name: str, now_ms: int) -> bool:
        """Delete a topic; returns whether it existed."""
        topic = self.by_name.get(name)
        if topic is None:
            return False
        self._changed(name, now_ms)
        self._drop(name)
        # The broker's totals must not fall when a topic is deleted.
        self.puts_forgotten += topic.put_count
        self.bytes_forgotten += topic.put_bytes
        return True

    def config_for_sending(self, name: str, template_name: str, queues_wanted: int) -> TopicConfig:
        """The settings of a topic that the first send to it creates.

        Raises:
            TopicNotFound: The template does not exist or does not allow new topics.
            InternalError: The name is illegal.
        """
        check_name(name)
        template = self.by_name.get(template_name)
        if template is None or not template.config.perm & Perm.INHERIT:
            raise TopicNotFound(f"topic[{name}] not exist, apply first please!")
        if template_name == TEMPLATE and not self.defaults.auto_create:
            raise TopicNotFound(f"topic[{name}] not exist, and sending does not create topics")
        count = max(1, min(queues_wanted, template.config.write_queue_nums))
        perm = template.config.perm & ~int(Perm.INHERIT)
        return TopicConfig(name, count, count, perm)

    def for_sending(self, name: str) -> Topic | None:
        """A topic that a client may send to, or ``None`` if it does not exist.

        Raises:
            NoPermission: Only the broker writes to it, or it is closed for writing.
        """
        if name in CLOSED_TO_CLIENTS:
            raise NoPermission(f"the topic {name} is the broker's own")
        found = self.by_name.get(name)
        if found is not None and not found.is_writeable:
            raise NoPermission(f"the topic {name} does not permit sending")
        return found


def config_for_group(name: str, queues: int) -> TopicConfig:
    """The settings of a group's retry or dead-letter topic; the latter is not for consuming."""
    perm = int(Perm.WRITE) if name.startswith(DLQ) else _READ_WRITE
    return TopicConfig(name, queues, queues, perm)


def queues_to_write(topic: Topic) -> int:
    """The number of writable queues of a topic.

    Raises:
        NoPermission: There are none.
    """
    count = topic.config.write_queue_nums
    if not count:
        raise NoPermission(f"the topic {topic.name} has no queue to write to")
    return count


QUEUES_MAX: Final = 4096
"""Queues of one topic at one broker; clients keep some state for each."""


def system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """The topics that every broker has from the start."""
    broker, cluster, defaults = settings.name, settings.cluster, settings.topics
    levels = len(settings.delay.levels_ms())
    inherit = _READ_WRITE | int(Perm.INHERIT)
    topics = [
        TopicConfig("SELF_TEST_TOPIC", 1, 1, _READ_WRITE),
        TopicConfig(cluster, 16, 16, inherit),
        TopicConfig(broker, 1, 1, inherit),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1, _READ_WRITE),
        TopicConfig(HALF_TOPIC, 1, 1, _READ_WRITE),
        TopicConfig(OP_TOPIC, 1, 1, _READ_WRITE),
        TopicConfig(PARKED_TOPIC, 1, 1, _READ_WRITE),
        TopicConfig(SCHEDULE_TOPIC, levels, levels, _READ_WRITE),
        TopicConfig(WHEEL_TOPIC, WHEEL_QUEUES, WHEEL_QUEUES, _READ_WRITE),
        TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1, _READ_WRITE),
        TopicConfig("BenchmarkTest", 16, 16, _READ_WRITE),
    ]
    if defaults.traces:
        # Clients send their traces there, even if sending does not create topics.
        topics.append(TopicConfig(TRACES, 1, 1, _READ_WRITE))
    if defaults.auto_create:
        topics.append(TopicConfig(TEMPLATE, defaults.queues, defaults.queues, inherit))
    return topics


def queue_counts(topics: TopicConfigs) -> dict[str, int]:
    """The number of queues of each topic, including read-only and write-only queues."""
    return {
        name: max(config.read_queue_nums, config.write_queue_nums)
        for name, config in topics.topic_config_table.items()
    }


_AT_ONCE: Final = 5_000
"""Names to check in one go, which takes half a millisecond."""


class TopicCensus:
    """Counts the topics of applications, and lists the topics of dead letters.

    Args:
        version: Returns a value that changes whenever topics change.
        names: Returns the names of all topics.
        own: Returns the topics that belong to brokers.
    """

    def __init__(
        self,
        version: Callable[[], object],
        names: Callable[[], Iterable[str]],
        own: Callable[[], Collection[str]],
    ) -> None:
        self._version = version
        self._names = names
        self._own = own
        self._counted: object = None
        self.topics = 0
        """The number of topics of applications."""
        self.dead: list[str] = []
        """The topics of dead letters."""

    def count(self) -> Generator[None, None, None]:
        """Count again, in parts, if topics have changed."""
        version = self._version()
        if self._counted == version:
            return
        own, topics = self._own(), 0
        dead: list[str] = []
        left = iter(list(self._names()))
        while some := list(islice(left, _AT_ONCE)):
            dead += [name for name in some if name.startswith(DLQ)]
            topics += sum([name not in own and not name.startswith(OF_THE_SYSTEM) for name in some])
            yield
        self.topics, self.dead, self._counted = topics, dead, version
