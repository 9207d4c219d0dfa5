"""What a message's properties say on arrival, and how they are stored: one look for everything the
broker needs.

The pairs are walked once; asking for one property after another took three times as long, and this
runs for every message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from broker.store.key_index import key_hash
from txmq.errors import MessageIllegal, NoPermission
from txmq.limits import KEYS_PER_MESSAGE_MAX, PROPERTIES_BYTES_MAX
from txmq.protocol import java
from txmq.protocol.checksum import crc32

__all__ = ["Arrival", "examine"]

_UNSERVED: Final = frozenset({"DELAY", "TRAN_MSG"})
"""Properties that ask for what this broker does not do yet."""

Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...]]
"""The properties as they are stored, the unique key, the tag's hash, the keys' hashes."""


def examine(  # noqa: C901  one walk over the pairs is the point
    text: str, cluster: str, key_seed: int, new_unique_key: Callable[[], str]
) -> Arrival:
    """Read and rewrite the properties of a message that was sent.

    Args:
        text: The properties as sent.
        cluster: The property that names this broker's cluster, written out.
        key_seed: Where the hashes of this topic's keys start from.
        new_unique_key: Gives an id to a message whose producer gave it none.

    Raises:
        NoPermission: It asks for something this broker does not do.
        MessageIllegal: The properties are too long to be stored.
    """
    unique = keys = tag = ""
    kept: list[str] = []
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        # Of several the last counts, and one without a value counts for nothing, as everywhere.
        if name == "UNIQ_KEY":
            unique = value or unique
        elif name == "KEYS":
            keys = value or keys
        elif name == "TAGS":
            tag = value or tag
        elif name in ("WAIT", "CLUSTER", ""):
            continue
        elif name in _UNSERVED:
            _refuse_unserved(name, value)
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
    return data, unique, tags_code, hashes


def _refuse_unserved(name: str, value: str) -> None:
    if name == "TRAN_MSG" and value.lower() == "true":
        raise NoPermission("this broker does not take half messages yet")
    if name == "DELAY" and value not in ("", "0"):
        raise NoPermission("this broker does not delay messages yet")
