"""The properties of arriving messages, read pair by pair, or by a pattern learned from a message.

Successive messages of a topic mostly differ in their unique key and their keys alone. A pattern
holds the text around these two, so a few comparisons read a message in half the time of the loop
over all pairs. A text that matches has the same pairs as the learned one except for these two
values, neither of which is empty. The loop treats a pair by its name and its value alone, so it
would find the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from txmq.protocol import java, properties

__all__ = ["NO_PATTERNS", "PatternShelf", "PropertyPattern", "TopicPatterns", "read_pairs"]

Special: TypeAlias = dict[str, str] | None
"""The properties that request more than storing; several messages share one map, so it is never
changed.
"""

PropertyPattern: TypeAlias = tuple[
    str, str, str, bool, bool, tuple[str, str, str], int, Special
]  # fmt: skip
"""The text before the first value, between both and after the second; whether the keys come first,
and whether there are none; the texts before, between and after the values as they are stored; the
tag's hash; the special properties. Every message uses it, so it is a plain tuple.
"""

_SPECIAL: Final = frozenset(
    {
        *properties.DELAYS,
        properties.TRANSACTION,
        properties.PRODUCER_GROUP,
        properties.CHECK_IMMUNITY,
    }
)
_GAP: Final = "\0"
"""Stands for a value while a pattern is learned."""

_TEXT_CHARS_MAX: Final = 512
_PER_TOPIC_MAX: Final = 4
"""They are tried in turn. One that does not match costs little, but not nothing."""

_PER_BROKER_MAX: Final = 4096
_MISSES_APART: Final = 64
"""A pattern is learned from one of so many texts, because that takes as long as to store one."""


def read_pairs(
    text: str, cluster: str, new_unique_key: Callable[[], str]
) -> tuple[bytes, str, str, int, Special]:
    """Read the properties pair by pair.

    Args:
        text: The properties as sent.
        cluster: The encoded property with this broker's cluster.
        new_unique_key: Creates an id for a message without one.

    Returns:
        The stored properties, the unique key, the keys, the tag's hash, the special properties.
    """
    unique = keys = tag = ""
    special: Special = None
    kept: list[str] = []
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        # The last pair of a name counts, and pairs without a value are ignored, as everywhere. They
        # are not stored either: a filter took a second to skip thousands of them in one message.
        if not value:
            continue
        if name == "UNIQ_KEY":
            unique = value
        elif name == "KEYS":
            keys = value
        elif name == "TAGS":
            tag = value
        elif name in ("WAIT", "CLUSTER", ""):
            continue
        elif name in _SPECIAL:
            if special is None:
                special = {}
            special[name] = value
        kept.append(pair)
    if not unique:
        unique = new_unique_key()
        kept.append(f"UNIQ_KEY\x01{unique}")
    kept.append(cluster)
    tags_code = java.string_hash(tag) if tag else 0
    return "\x02".join(kept).encode(), unique, keys, tags_code, special


class PatternShelf:
    """Bounds the patterns of all topics: the oldest make room for new ones.

    Args:
        patterns_max: The bound.
    """

    def __init__(self, patterns_max: int = _PER_BROKER_MAX) -> None:
        self._max = patterns_max
        self._owners: deque[TopicPatterns] = deque()

    def new_topic(self) -> TopicPatterns:
        """The patterns of a topic: none yet."""
        return TopicPatterns(self)

    def note_learned(self, owner: TopicPatterns) -> None:
        """Note a new pattern of a topic; the topic whose pattern is the oldest may lose it."""
        self._owners.append(owner)
        if len(self._owners) > self._max:
            oldest = self._owners.popleft()
            oldest.known = oldest.known[:-1]


class TopicPatterns:
    """The patterns of one topic.

    Attributes:
        known: The patterns, the newest first.
    """

    __slots__ = ("_misses", "_shelf", "known")

    def __init__(self, shelf: PatternShelf) -> None:
        self._shelf = shelf
        self._misses = 0
        self.known: tuple[PropertyPattern, ...] = ()

    def note_miss(self, text: str, cluster: str) -> None:
        """Learn from a text that no pattern matches, but not from every one of many."""
        self._misses = misses = self._misses + 1
        if misses > _PER_TOPIC_MAX and misses % _MISSES_APART:
            return
        found = _pattern_of(text, cluster)
        if found is not None:
            self.known = (found, *self.known[: _PER_TOPIC_MAX - 1])
            self._shelf.note_learned(self)


NO_PATTERNS: Final = TopicPatterns(PatternShelf(0))
"""For texts that are read pair by pair; it never keeps one."""


def _pattern_of(text: str, cluster: str) -> PropertyPattern | None:
    """The pattern of a text, if a pattern can describe it."""
    if len(text) > _TEXT_CHARS_MAX or _GAP in text:
        return None
    pairs: list[str] = []
    order: list[str] = []
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        is_gap = value and name in (properties.UNIQUE_KEY, properties.KEYS)
        pairs.append(f"{name}\x01{_GAP}" if is_gap else pair)
        if is_gap:
            order.append(name)
    if order.count(properties.UNIQUE_KEY) != 1 or order.count(properties.KEYS) > 1:
        return None
    gapped = "\x02".join(pairs)
    data, _, _, tags_code, special = read_pairs(gapped, cluster, str)
    # Without keys nothing follows the text after the unique key, and the second value is empty.
    first, middle, last = [*gapped.split(_GAP), ""][:3]
    stored_first, stored_middle, stored_last = [*data.decode().split(_GAP), ""][:3]
    if not middle:
        return None
    stored = (stored_first, stored_middle, stored_last)
    keys_first, is_alone = order[0] == properties.KEYS, len(order) == 1
    return first, middle, last, keys_first, is_alone, stored, tags_code, special
