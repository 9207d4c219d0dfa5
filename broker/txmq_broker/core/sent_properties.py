"""Reads the properties of a sent message once for all uses, and rewrites them for storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
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
    "NO_TERMS",
    "HalfTerms",
    "SentProperties",
    "examine",
    "examine_all",
    "missing_marks",
    "refuse_delay",
    "terms_of",
]

Special: TypeAlias = dict[str, str] | None
"""The properties that request more than storing. It is never changed, because the messages of a
uniform batch share it.
"""

_SPECIAL: Final = frozenset(
    {
        *properties.DELAYS,
        properties.TRANSACTION,
        properties.PRODUCER_GROUP,
        properties.CHECK_IMMUNITY,
    }
)
_tag_hash: Final = lru_cache(4096)(java.string_hash)
"""Most messages have one of a few tags."""

SentProperties: TypeAlias = tuple[bytes, str, int, tuple[int, ...], Special]
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
        properties.delay_in(special.get) is not None,
    )


def missing_marks(sent: SentProperties, group: str) -> str:
    """The properties that a half message lacks: the mark and the group, if only its header has
    them.

    Args:
        sent: The properties of the half message.
        group: The producer group in its header.

    Raises:
        MessageIllegal: Its properties are too long, or its group's name is invalid.
    """
    data, _, _, _, special = sent
    special = special or {}
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
    name = properties.delay_in(special.get)
    if name is not None:
        raise MessageIllegal(f"{what} cannot be delayed ({name} is {special[name][:40]})")


def examine(
    text: str, cluster: str, key_seed: int, new_unique_key: Callable[[], str]
) -> SentProperties:
    """Read and rewrite the properties of a sent message.

    Args:
        text: The properties as sent.
        cluster: The encoded property with this broker's cluster.
        key_seed: The seed of this topic's key hashes.
        new_unique_key: Creates an id for a message without one.

    Raises:
        MessageIllegal: The properties are too long to be stored.
    """
    unique = keys = tag = ""
    special: dict[str, str] = {}
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
            special[name] = value
        kept.append(pair)
    if not unique:
        unique = new_unique_key()
        kept.append(f"UNIQ_KEY\x01{unique}")
    kept.append(cluster)
    data = "\x02".join(kept).encode()
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(data)}"
        )
    hashes = _key_hashes(key_seed, unique, keys)
    return data, unique, _tag_hash(tag) if tag else 0, hashes, special or None


def _key_hashes(key_seed: int, unique: str, keys: str) -> tuple[int, ...]:
    unique_hash = crc32(unique.encode(), key_seed)  # key_hash inlined, for speed.
    if not keys:
        return (unique_hash,)
    if " " not in keys:
        return unique_hash, crc32(keys.encode(), key_seed)
    words = keys.split(" ")[:KEYS_PER_MESSAGE_MAX]
    return unique_hash, *[key_hash(key_seed, word) for word in words]


def examine_all(
    texts: Sequence[str],
    shared: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
) -> Iterator[SentProperties]:
    """:func:`examine` for the messages of a batch, with their shared properties."""
    for text in texts:
        whole = properties.join(text, shared) if shared else text
        yield examine(whole, cluster, key_seed, new_unique_key)
