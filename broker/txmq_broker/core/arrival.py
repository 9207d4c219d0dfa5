"""The properties of an arriving message: read for all the broker needs, and rewritten for storage.

This runs for every message: :mod:`txmq_broker.core.property_patterns` reads most of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from txmq.errors import MessageIllegal
from txmq.limits import (
    GROUP_CHARS_MAX,
    KEYS_PER_MESSAGE_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_OF_HALF_MAX,
)
from txmq.protocol import properties
from txmq.protocol.checksum import crc32
from txmq.protocol.codes import SysFlag
from txmq_broker.core.clients import producer_group_fault
from txmq_broker.core.property_patterns import NO_PATTERNS, TopicPatterns, read_pairs
from txmq_broker.store.half_reader import seconds_in
from txmq_broker.store.queue_store import key_hash

__all__ = [
    "BORN_V6",
    "CLIENTS_BITS",
    "PREPARED",
    "STORE_V6",
    "TRANSACTION_BITS",
    "Arrival",
    "HalfArrival",
    "as_half",
    "examine",
    "examine_all",
    "is_marked_half",
    "refuse_delay",
]

BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
PREPARED: Final = int(SysFlag.PREPARED)
TRANSACTION_BITS: Final = int(SysFlag.ROLLED_BACK)
CLIENTS_BITS: Final = ~(BORN_V6 | STORE_V6)
"""The flags of a message that its client decides. All these are plain numbers, for speed."""

Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...], dict[str, str] | None]
"""The stored properties, the unique key, the tag's hash, the keys' hashes, and the special
properties.
"""


HalfArrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...], str, int]
"""The same for a half message, with its group and the seconds without checks instead of the special
properties.
"""


def is_marked_half(special: dict[str, str] | None) -> bool:
    """Return true if the properties mark a half message; stock clients also use the header."""
    return special is not None and special.get("TRAN_MSG", "").lower() == "true"


def refuse_delay(special: dict[str, str], what: str) -> None:
    """Refuse a delay for a message that cannot have one.

    Raises:
        MessageIllegal: The message requests a delay. Producers do not retry after this code.
    """
    for name in properties.DELAYS:
        if special.get(name, "0") not in ("", "0"):
            raise MessageIllegal(f"{what} cannot be delayed ({name} is {special[name][:40]})")


def as_half(arrival: Arrival, group: str) -> HalfArrival:
    """The arrival as a half message.

    Its properties state that it is one, and its group, even if only the header stated them.

    Raises:
        MessageIllegal: It also requests a delay, its properties are too long, or its group's name
            is invalid.
    """
    data, unique, tags_code, hashes, special = arrival
    special = special or {}
    owner, immunity_s = special.get("PGROUP"), 0
    if len(special) != 2 or not owner or not special.get("TRAN_MSG"):
        # Stock clients set exactly these two.
        refuse_delay(special, "a half message")
        if not special.get("TRAN_MSG"):
            data += b"TRAN_MSG\x01true\x02"
        if not owner:
            owner = group
            data += f"PGROUP\x01{group}\x02".encode()
        immunity = special.get(properties.CHECK_IMMUNITY)
        immunity_s = 0 if immunity is None else seconds_in(immunity)
    if len(owner) > GROUP_CHARS_MAX or not owner.isprintable():
        raise MessageIllegal(producer_group_fault(owner))
    if len(data) > PROPERTIES_OF_HALF_MAX:
        raise MessageIllegal(
            f"a half message's properties have at most {PROPERTIES_OF_HALF_MAX} bytes"
        )
    return data, unique, tags_code, hashes, owner, immunity_s


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
