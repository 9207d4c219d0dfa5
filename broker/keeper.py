"""The small tables on disk: topics, groups, offsets and floors, each one JSON file replaced whole.

Topics, groups and floors are saved before anybody is told of a change. Offsets are saved every few
seconds: after a crash a group goes back by as much and hears some messages twice, as with RocketMQ.
"""

from __future__ import annotations

import logging
from typing import Final, TypeVar

import msgspec

from broker.core.groups import Groups
from broker.core.offsets import Offsets
from broker.core.topics import Topics
from txmq.errors import CorruptRecord, RemoteProtocolError
from txmq.protocol.bodies import Body, ConsumerOffsets, GroupConfigs, TopicConfigs
from txmq.runtime.disk import Disk

__all__ = ["Floors", "Keeper"]

log = logging.getLogger(__name__)

_TOPICS: Final = "config/topics.json"
_GROUPS: Final = "config/groups.json"
_OFFSETS: Final = "config/offsets.json"
_FLOORS: Final = "config/floors.json"
_READ_MAX: Final = 1024**3

B = TypeVar("B", bound=Body)


class Floors(Body):
    """Offsets below which queues were emptied, by topic and queue."""

    floors: dict[str, dict[int, int]] = {}


class Keeper:
    """Loads and saves the small tables."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def topics(self) -> TopicConfigs:
        """The topics that were saved."""
        return self._load(_TOPICS, TopicConfigs)

    def groups(self) -> GroupConfigs:
        """The groups that were saved."""
        return self._load(_GROUPS, GroupConfigs)

    def offsets(self) -> ConsumerOffsets:
        """The offsets that were saved."""
        return self._load(_OFFSETS, ConsumerOffsets)

    def floors(self) -> Floors:
        """The floors that were saved."""
        return self._load(_FLOORS, Floors)

    def _load(self, path: str, kind: type[B]) -> B:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return kind()
        try:
            data = file.read(0, _READ_MAX)
        finally:
            file.close()
        try:
            return kind.read(data)
        except RemoteProtocolError as problem:
            raise CorruptRecord(0, f"{path} cannot be read ({problem}); restore it") from problem

    def save_topics(self, topics: Topics) -> None:
        """Save the topics."""
        self._disk.replace(_TOPICS, _pretty(topics.saved()))

    def save_groups(self, groups: Groups) -> None:
        """Save the groups where they have changed."""
        if groups.unsaved:
            self._disk.replace(_GROUPS, _pretty(groups.saved()))
            groups.unsaved = False

    def save_offsets(self, offsets: Offsets) -> None:
        """Save the offsets where they have changed."""
        if offsets.unsaved:
            self._disk.replace(_OFFSETS, _pretty(offsets.saved()))
            offsets.unsaved = False

    def save_floors(self, floors: dict[str, dict[int, int]]) -> None:
        """Save the floors, and return only when they are durable."""
        self._disk.replace(_FLOORS, _pretty(Floors(floors)))


def _pretty(body: Body) -> bytes:
    return msgspec.json.format(body.write(), indent=1)
