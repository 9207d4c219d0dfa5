"""How far each consumer group has come in each queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txmq.protocol.bodies import ConsumerOffsets

__all__ = ["Offsets"]


class Offsets:
    """The next offset each group wants, by topic and queue.

    Args:
        end_of: Where a queue ends, ``None`` for one that does not exist. A group cannot have come
            further: an offset behind the end would hide the messages that come next.
    """

    def __init__(self, end_of: Callable[[str, int], int | None] | None = None) -> None:
        self._end_of = end_of
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.unsaved = False

    def load(self, saved: ConsumerOffsets) -> None:
        """Take what was saved."""
        for name, queues in saved.offset_table.items():
            topic, _, group = name.partition("@")
            self._offsets[group, topic] = dict(queues)

    def saved(self) -> ConsumerOffsets:
        """All offsets, as they are kept."""
        return ConsumerOffsets(
            {f"{topic}@{group}": queues for (group, topic), queues in self._offsets.items()}
        )

    def highest(self) -> dict[str, dict[int, int]]:
        """The highest offset that any group has, by topic and queue."""
        found: dict[str, dict[int, int]] = {}
        for (_, topic), queues in self._offsets.items():
            numbers = found.setdefault(topic, {})
            for number, offset in queues.items():
                numbers[number] = max(numbers.get(number, 0), offset)
        return found

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """A group's offset, if it ever told one."""
        return self._offsets.get((group, topic), {}).get(queue)

    def put(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Take a group's word for how far it has come; it may go back on purpose."""
        if self._end_of is not None:
            end = self._end_of(topic, queue)
            if end is None:
                return
            offset = min(offset, end)
        queues = self._offsets.get((group, topic))
        if queues is None:
            queues = self._offsets[group, topic] = {}
        queues[queue] = offset
        self.unsaved = True

    def topics(self) -> list[str]:
        """The topics that any group has offsets in."""
        return list(dict.fromkeys(topic for _, topic in self._offsets))

    def topics_of(self, group: str) -> list[str]:
        """The topics a group has offsets in."""
        return [topic for name, topic in self._offsets if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return [group for group, name in self._offsets if name == topic]

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets in a topic."""
        return dict(self._offsets.get((group, topic), {}))

    def all_of(self, group: str) -> Iterator[tuple[str, dict[int, int]]]:
        """A group's offsets by topic."""
        for (name, topic), queues in self._offsets.items():
            if name == group:
                yield topic, queues

    def forget_group(self, group: str) -> None:
        """Drop a group's offsets."""
        for key in [key for key in self._offsets if key[0] == group]:
            del self._offsets[key]
            self.unsaved = True

    def forget_topic(self, topic: str) -> None:
        """Drop a topic's offsets."""
        for key in [key for key in self._offsets if key[1] == topic]:
            del self._offsets[key]
            self.unsaved = True
