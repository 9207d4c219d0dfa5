"""The consumer offsets of all groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView

from msgspec import structs

from txmq.errors import ServiceUnavailable
from txmq.limits import OFFSETS_MAX, SKIPS_MAX, UNKNOWN_OFFSETS_MAX
from txmq.protocol.bodies import ConsumerOffsets

__all__ = ["Offsets"]


class Offsets:
    """The next offset of each group, by topic and queue.

    Args:
        end_of: Returns a queue's end, or ``None`` if it does not exist. It caps offsets, because an
            offset after the end would skip the next messages.
        is_known: Returns whether a group exists. Groups that do not exist may also commit, within a
            lower limit.

    Attributes:
        count: The number of offsets.
        unknown: The number of offsets that groups committed before they existed.
        refused: The number of commits that exceeded a limit.
    """

    def __init__(
        self,
        end_of: Callable[[str, int], int | None] | None = None,
        is_known: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._end_of = end_of
        self._is_known = is_known
        self._unknown: dict[str, int] = {}
        self.count = self.unknown = self.refused = 0
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._topics: dict[str, dict[str, None]] = {}
        """The topics of each group, so that no request has to scan the pairs of all groups."""
        self._groups: dict[str, dict[str, None]] = {}
        """The groups of each topic."""
        self._skipped: dict[tuple[str, str], dict[int, list[tuple[int, int]]]] = {}
        """The ranges in which groups skip damaged messages: the first and the last offset."""
        self.unsaved = False

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "offsets": self.count,
            "offsets_of_unknown_groups": self.unknown,
            "offsets_refused": self.refused,
        }

    def load(self, saved: ConsumerOffsets) -> None:
        """Load saved offsets."""
        for name, queues in saved.offset_table.items():
            topic, _, group = name.partition("@")
            self._pair(group, topic).update(queues)
            self.count += len(queues)
            if not self._is_known(group):
                self._count_unknown(group, len(queues))
        for name, ranges in (saved.skipped_damage or {}).items():
            topic, _, group = name.partition("@")
            self._skipped[group, topic] = dict(ranges)

    def adopt(self, saved: ConsumerOffsets) -> None:
        """Replace all offsets with those of another copy of this broker."""
        self._offsets, self._unknown = {}, {}
        self._topics, self._groups = {}, {}
        self._skipped = {}
        self.count = self.unknown = 0
        self.load(saved)

    def saved(self) -> ConsumerOffsets:
        """All offsets in the form that is saved."""
        return structs.replace(self.saved_without_rows(), offset_table=dict(self.rows()))

    def saved_without_rows(self) -> ConsumerOffsets:
        """The saved form without the rows."""
        if not self._skipped:
            return ConsumerOffsets()
        named = {f"{topic}@{group}": dict(found) for (group, topic), found in self._skipped.items()}
        return ConsumerOffsets(skipped_damage=named)

    def rows(self) -> Iterator[tuple[str, dict[int, int]]]:
        """The rows of the saved form; groups may commit or vanish during the iteration."""
        # Listing only the pairs takes a tenth of the time of listing them with their offsets.
        for pair in list(self._offsets):
            if (queues := self._offsets.get(pair)) is not None:
                group, topic = pair
                yield f"{topic}@{group}", queues

    def highest(self) -> dict[str, dict[int, int]]:
        """The highest offset of any group, by topic and queue."""
        found: dict[str, dict[int, int]] = {}
        for (_, topic), queues in self._offsets.items():
            numbers = found.setdefault(topic, {})
            for number, offset in queues.items():
                numbers[number] = max(numbers.get(number, 0), offset)
        return found

    def get(self, group: str, topic: str, queue: int) -> int | None:
        """A group's offset, or ``None`` if it never committed one."""
        return self._offsets.get((group, topic), {}).get(queue)

    def put(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set a group's offset, which may also be lower than before.

        Raises:
            ServiceUnavailable: The limit of offsets is reached, and the group has none in this
                queue.
        """
        if self._end_of is not None:
            end = self._end_of(topic, queue)
            if end is None:
                return
            offset = min(offset, end)
        queues = self._offsets.get((group, topic))
        if queues is None or queue not in queues:
            self._admit(group)
            self.count += 1
            queues = self._pair(group, topic)
        queues[queue] = offset
        self.unsaved = True

    def _pair(self, group: str, topic: str) -> dict[int, int]:
        queues = self._offsets.get((group, topic))
        if queues is None:
            queues = self._offsets[group, topic] = {}
            self._topics.setdefault(group, {})[topic] = None
            self._groups.setdefault(topic, {})[group] = None
        return queues

    def _admit(self, group: str) -> None:
        is_known = self._is_known(group)
        if is_known:
            self.unknown -= self._unknown.pop(group, 0)
        elif self.unknown >= UNKNOWN_OFFSETS_MAX:
            self.refused += 1
            raise ServiceUnavailable(
                f"the group {group} does not exist, and groups that do not exist have "
                f"{UNKNOWN_OFFSETS_MAX} offsets, which is the limit; the offset was not stored; "
                "consume first, or create the group"
            )
        if self.count >= OFFSETS_MAX:
            self.refused += 1
            raise ServiceUnavailable(
                f"this broker keeps {OFFSETS_MAX} offsets, which is the limit; the offset of the "
                f"group {group} was not stored; delete unused groups and topics"
            )
        if not is_known:
            self._count_unknown(group, 1)

    def _count_unknown(self, group: str, count: int) -> None:
        self._unknown[group] = self._unknown.get(group, 0) + count
        self.unknown += count

    # Damaged messages

    def skip_damaged(self, group: str, topic: str, queue: int, first: int, last: int) -> None:
        """Let a group skip the damaged messages in a range; it still receives the intact ones.

        Raises:
            ServiceUnavailable: The limit of ranges is reached.
        """
        ranges = self._skipped.get((group, topic), {}).get(queue, [])
        if (first, last) in ranges:
            return
        if sum(len(found) for of in self._skipped.values() for found in of.values()) >= SKIPS_MAX:
            raise ServiceUnavailable(
                f"this broker keeps {SKIPS_MAX} ranges of skipped messages, which is the limit; "
                "name larger ranges (--through), or restore the log"
            )
        self._skipped.setdefault((group, topic), {})[queue] = [*ranges, (first, last)]
        self.unsaved = True

    def skips(self, group: str, topic: str, queue: int, offset: int) -> bool:
        """Whether a group skips the message at an offset if it is damaged."""
        ranges = self._skipped.get((group, topic), {}).get(queue, ())
        return any(first <= offset <= last for first, last in ranges)

    # Lists

    def pairs(self) -> KeysView[tuple[str, str]]:
        """The groups and topics that have offsets, the oldest first."""
        return self._offsets.keys()

    def groups(self) -> list[str]:
        """The groups that have offsets in any topic."""
        return list(self._topics)

    def topics(self) -> list[str]:
        """The topics in which any group has offsets."""
        return list(self._groups)

    def topics_of(self, group: str) -> list[str]:
        """The topics in which a group has offsets."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return list(self._groups.get(topic, ()))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets in a topic."""
        return dict(self._offsets.get((group, topic), {}))

    def all_of(self, group: str) -> Iterator[tuple[str, dict[int, int]]]:
        """A group's offsets by topic."""
        for topic in self._topics.get(group, ()):
            yield topic, self._offsets[group, topic]

    def forget_group(self, group: str) -> None:
        """Delete a group's offsets."""
        for topic in self.topics_of(group):
            self._forget(group, topic)
        self._skipped = {pair: of for pair, of in self._skipped.items() if pair[0] != group}

    def forget_topic(self, topic: str) -> None:
        """Delete a topic's offsets."""
        for group in self.groups_of(topic):
            self._forget(group, topic)
        self._skipped = {pair: of for pair, of in self._skipped.items() if pair[1] != topic}

    def _forget(self, group: str, topic: str) -> None:
        count = len(self._offsets.pop((group, topic)))
        for names, own, other in ((self._topics, group, topic), (self._groups, topic, group)):
            del names[own][other]
            if not names[own]:
                del names[own]
        self.count -= count
        self.unsaved = True
        # The group may have been created in between, so not all of these count as unknown.
        rest = self._unknown.pop(group, 0)
        self.unknown -= rest
        if rest > count:
            self._count_unknown(group, rest - count)
