"""What a message's properties say on arrival, and how they are stored: one look for everything the
broker needs.

The pairs are walked once; asking for one property after another took three times as long, and this
runs for every message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from txmq.errors import MessageIllegal
from txmq.limits import (
    KEYS_PER_MESSAGE_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_OF_HALF_MAX,
)
from txmq.protocol import java, properties
from txmq.protocol.checksum import crc32
from txmq_broker.core.client_names import producer_group_fault
from txmq_broker.store.half_reader import seconds_in
from txmq_broker.store.key_index import key_hash

__all__ = [
    "Arrival",
    "HalfArrival",
    "as_half",
    "check_now",
    "examine",
    "examine_all",
    "says_it_is_half",
]

_SPECIAL: Final = frozenset(
    {
        *properties.DELAYS,
        "TRAN_MSG",
        "PGROUP",
        properties.CHECK_IMMUNITY,
    }
)
"""Properties that ask for more than storing."""

_new: Final = tuple.__new__  # A NamedTuple without a call of its own.

Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...], dict[str, str] | None]
"""The properties as they are stored, the unique key, the tag's hash, the keys' hashes, and what it
asks for beyond storing.
"""


class HalfArrival(NamedTuple):
    """A half message's properties, likewise."""

    data: bytes
    unique: str
    tags_code: int
    key_hashes: tuple[int, ...]
    group: str
    immunity_s: int


def says_it_is_half(special: dict[str, str] | None) -> bool:
    """Whether a message calls itself a half message; stock clients say so in the header, too."""
    return special is not None and special.get("TRAN_MSG", "").lower() == "true"


def check_now(special: dict[str, str], what: str) -> None:
    """Refuse a message that is to come later where that cannot be.

    Raises:
        MessageIllegal: It is; producers take this as the last word.
    """
    for name in properties.DELAYS:
        if special.get(name, "0") not in ("", "0"):
            raise MessageIllegal(f"{what} cannot be delayed ({name} is {special[name][:40]})")


def as_half(arrival: Arrival, group: str) -> HalfArrival:
    """What arrived as a half message.

    It will say what it is and whose it is, also where its producer said so in the header only.

    Raises:
        MessageIllegal: It wants to be delayed, too, or its properties or its group's name are too
            long.
    """
    data, unique, tags_code, hashes, special = arrival
    special = special or {}
    owner, immunity_s = special.get("PGROUP"), 0
    if len(special) != 2 or not owner or not special.get("TRAN_MSG"):
        # Stock clients say these two and nothing else.
        check_now(special, "a half message")
        if not special.get("TRAN_MSG"):
            data += b"TRAN_MSG\x01true\x02"
        if not owner:
            owner = group
            data += f"PGROUP\x01{group}\x02".encode()
        said = special.get(properties.CHECK_IMMUNITY)
        immunity_s = 0 if said is None else seconds_in(said)
    if fault := producer_group_fault(owner):
        raise MessageIllegal(fault)
    if len(data) > PROPERTIES_OF_HALF_MAX:
        raise MessageIllegal(
            f"a half message's properties have at most {PROPERTIES_OF_HALF_MAX} bytes"
        )
    return _new(HalfArrival, (data, unique, tags_code, hashes, owner, immunity_s))


def examine(  # noqa: C901, PLR0912  one walk over the pairs is the point
    text: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
) -> Arrival:
    """Read and rewrite the properties of a message that was sent.

    Args:
        text: The properties as sent.
        cluster: The property that names this broker's cluster, written out.
        key_seed: Where the hashes of this topic's keys start from.
        new_unique_key: Gives an id to a message whose producer gave it none.

    Raises:
        MessageIllegal: The properties are too long to be stored.
    """
    unique = keys = tag = ""
    special: dict[str, str] | None = None
    kept: list[str] = []
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        # Of several the last counts, and one without a value counts for nothing, as everywhere; so
        # it is not stored: passing thousands of them took a filter a second for one message.
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
    data = "\x02".join(kept).encode()
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(data)}"
        )
    if not keys:
        # What key_hash does, without the call.
        hashes: tuple[int, ...] = (crc32(unique.encode(), key_seed),)
    elif " " not in keys:
        hashes = crc32(unique.encode(), key_seed), crc32(keys.encode(), key_seed)
    else:
        words = [unique, *keys.split(" ")[:KEYS_PER_MESSAGE_MAX]]
        hashes = tuple([key_hash(key_seed, word) for word in words])
    tags_code = java.string_hash(tag) if tag else 0
    return data, unique, tags_code, hashes, special


def examine_all(
    texts: Sequence[str],
    shared: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
) -> Iterator[Arrival]:
    """:func:`examine` for each message of a batch, with the properties that all of them share.

    Most differ from the first in nothing but their unique key; what stands around it is walked
    once.
    """
    text = properties.join(texts[0], shared)
    first = examine(text, cluster, key_seed, new_unique_key)
    yield first
    data, unique, tags_code, hashes, special = first
    before, found, after = texts[0].partition(f"UNIQ_KEY\x01{unique}\x02")
    # Where another key hides in a name, in a value or behind this one, each is looked at alone.
    is_pattern = found and before[-1:] in ("", "\x02") and text.count("UNIQ_KEY\x01") == 1
    before, after = before + "UNIQ_KEY\x01", "\x02" + after
    start, end = len(before), -len(after)
    data_before, mark, data_after = data.partition(b"UNIQ_KEY\x01")
    data_before, data_after = data_before + mark, data_after[len(unique.encode()) :]
    hashes = hashes[1:]
    for text in texts[1:]:
        if is_pattern and text.startswith(before) and text.endswith(after):
            unique = text[start:end]
            key = unique.encode()
            data = data_before + key + data_after
            if unique and "\x02" not in unique and len(data) <= PROPERTIES_BYTES_MAX:
                yield data, unique, tags_code, (crc32(key, key_seed), *hashes), special
                continue
        yield examine(properties.join(text, shared), cluster, key_seed, new_unique_key)
