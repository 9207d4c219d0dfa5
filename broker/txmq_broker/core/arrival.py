"""Reads the properties of an arriving message once for all uses, and rewrites them for storage.

They are read pair by pair, or by a pattern learned from an earlier message. Successive messages of
a topic usually differ only in their unique key and their keys. A pattern holds the text around
these two values, so a few comparisons read a message in half the time of the loop over all pairs.
The result is the same: a text that matches has the same pairs as the learned one except for these
two values, which are not empty, and the loop looks only at the name and the value of each pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import MessageIllegal
from txmq.limits import (
    GROUP_CHARS_MAX,
    KEYS_PER_MESSAGE_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_OF_HALF_MAX,
)
from txmq.protocol import java, properties
from txmq.protocol.checksum import crc32
from txmq_broker.core.clients import producer_group_fault
from txmq_broker.store.half_reader import seconds_in
from txmq_broker.store.queue_store import key_hash

__all__ = [
    "NO_PATTERNS",
    "NO_TERMS",
    "Arrival",
    "HalfTerms",
    "PatternShelf",
    "PropertyPattern",
    "TopicPatterns",
    "examine",
    "examine_all",
    "missing_marks",
    "refuse_delay",
    "terms_of",
]

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
"""Patterns are tried in turn, and each failed match takes a little time."""

_PER_BROKER_MAX: Final = 4096
_MISSES_APART: Final = 64
"""Learning takes as long as storing a message, so only one unmatched text in 64 is learned from."""


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
        # The last pair of a name counts, and empty pairs are ignored, as everywhere. Empty pairs
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
    """Limits the number of patterns of all topics: the oldest make room for new ones.

    Args:
        patterns_max: The limit.
    """

    def __init__(self, patterns_max: int = _PER_BROKER_MAX) -> None:
        self._max = patterns_max
        self._owners: deque[TopicPatterns] = deque()

    def new_topic(self) -> TopicPatterns:
        """Create the empty set of patterns of a new topic."""
        return TopicPatterns(self)

    def note_learned(self, owner: TopicPatterns) -> None:
        """Note a new pattern of a topic; beyond the limit, the oldest pattern may be dropped."""
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
        """Learn from a text that no pattern matches; after the first few, from one in 64."""
        self._misses = misses = self._misses + 1
        if misses > _PER_TOPIC_MAX and misses % _MISSES_APART:
            return
        found = _pattern_of(text, cluster)
        if found is not None:
            self.known = (found, *self.known[: _PER_TOPIC_MAX - 1])
            self._shelf.note_learned(self)


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


NO_PATTERNS: Final = TopicPatterns(PatternShelf(0))
"""Keeps no patterns, so that texts are read pair by pair."""


Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...], Special]
"""The stored properties, the unique key, the tag's hash, the keys' hashes, and the special
properties.
"""


class HalfTerms(NamedTuple):
    """What the special properties of a message say about a half message and a delay."""

    is_marked: bool = False
    """Whether they mark a half message; stock clients set the header as well."""
    group: str = ""
    """Its producer group; empty unless they mark a half message and name a valid group."""
    immunity_s: int = 0
    """For how many seconds it wants no check."""
    is_delayed: bool = False


NO_TERMS: Final = HalfTerms()
"""The terms of a message without special properties."""


def terms_of(special: Special) -> HalfTerms:
    """Read the special properties of a message."""
    if special is None:
        return NO_TERMS
    mark, group = special.get(properties.TRANSACTION), special.get(properties.PRODUCER_GROUP, "")
    is_whole = bool(mark) and len(group) <= GROUP_CHARS_MAX and group.isprintable()
    return HalfTerms(
        mark is not None and mark.lower() == "true",
        group if is_whole else "",
        seconds_in(special.get(properties.CHECK_IMMUNITY)),
        _delay_in(special) is not None,
    )


def missing_marks(arrival: Arrival, group: str) -> str:
    """The properties that a half message lacks: the mark and the group, if only its header has
    them.

    Args:
        arrival: The half message.
        group: The producer group in its header.

    Raises:
        MessageIllegal: It requests a delay, its properties are too long, or its group's name is
            invalid.
    """
    data, _, _, _, special = arrival
    special = special or {}
    refuse_delay(special, "a half message")
    marks = "" if special.get(properties.TRANSACTION) else "TRAN_MSG\x01true\x02"
    owner = special.get(properties.PRODUCER_GROUP)
    if not owner:
        owner = group
        marks += f"PGROUP\x01{group}\x02"
    if len(owner) > GROUP_CHARS_MAX or not owner.isprintable():
        raise MessageIllegal(producer_group_fault(owner))
    if len(data) + len(marks.encode()) > PROPERTIES_OF_HALF_MAX:
        raise MessageIllegal(
            f"a half message's properties have at most {PROPERTIES_OF_HALF_MAX} bytes"
        )
    return marks


def refuse_delay(special: dict[str, str], what: str) -> None:
    """Refuse a delay for a message that cannot have one.

    Raises:
        MessageIllegal: The message requests a delay. Producers do not retry after this code.
    """
    name = _delay_in(special)
    if name is not None:
        raise MessageIllegal(f"{what} cannot be delayed ({name} is {special[name][:40]})")


def _delay_in(special: dict[str, str]) -> str | None:
    """The name of the first property that requests a delay."""
    for name in properties.DELAYS:
        if special.get(name, "0") not in ("", "0"):
            return name
    return None


def examine(
    text: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
    patterns: TopicPatterns = NO_PATTERNS,
) -> Arrival:
    """Read and rewrite the properties of a sent message.

    Args:
        text: The properties as sent.
        cluster: The encoded property with this broker's cluster.
        key_seed: The seed of this topic's key hashes.
        new_unique_key: Creates an id for a message without one.
        patterns: The patterns of its topic.

    Raises:
        MessageIllegal: The properties are too long to be stored.
    """
    for first, middle, last, keys_first, is_alone, stored, tags_code, special in patterns.known:  # noqa: B007
        if text.startswith(first) and text.endswith(last):
            one, found, other = text[len(first) : len(text) - len(last)].partition(middle)
            if (
                found
                and one
                and (not other) is is_alone
                and "\x02" not in one
                and "\x02" not in other
            ):
                unique, keys = (other, one) if keys_first else (one, other)
                before, between, after = stored
                data = f"{before}{one}{between}{other}{after}".encode()
                break
    else:
        data, unique, keys, tags_code, special = read_pairs(text, cluster, new_unique_key)
        patterns.note_miss(text, cluster)
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(data)}"
        )
    if not keys:
        # key_hash inlined, for speed.
        hashes: tuple[int, ...] = (crc32(unique.encode(), key_seed),)
    elif " " not in keys:
        hashes = crc32(unique.encode(), key_seed), crc32(keys.encode(), key_seed)
    else:
        words = [unique, *keys.split(" ")[:KEYS_PER_MESSAGE_MAX]]
        hashes = tuple([key_hash(key_seed, word) for word in words])
    return data, unique, tags_code, hashes, special


def examine_all(
    texts: Sequence[str],
    shared: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
    patterns: TopicPatterns = NO_PATTERNS,
) -> Iterator[Arrival]:
    """:func:`examine` for the messages of a batch, with their shared properties."""
    for text in texts:
        whole = properties.join(text, shared) if shared else text
        yield examine(whole, cluster, key_seed, new_unique_key, patterns)
