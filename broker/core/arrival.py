"""What a message's properties say on arrival, and how they are stored: one look for everything the
broker needs.

A regular expression reads all of it at once; asking for one property after another took three
times as long, and this runs for every message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from broker.store.key_index import key_hash
from txmq.errors import MessageIllegal, NoPermission
from txmq.limits import KEYS_PER_MESSAGE_MAX, PROPERTIES_BYTES_MAX
from txmq.protocol import java, properties
from txmq.protocol.checksum import crc32

__all__ = ["Arrival", "examine"]

_TOLD: Final = re.compile(
    "(?:^|\x02)(UNIQ_KEY|KEYS|TAGS|WAIT|CLUSTER|DELAY|TRAN_MSG)\x01([^\x02]+)"
)
_USUAL_WAIT: Final = "\x02WAIT\x01true\x02"


Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...]]
"""The properties as they are stored, the unique key, the tag's hash, the keys' hashes."""


def examine(text: str, cluster: str, key_seed: int, new_unique_key: Callable[[], str]) -> Arrival:
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
    told = dict(_TOLD.findall(text))
    if "WAIT" in told:
        rest = text.replace(_USUAL_WAIT, "\x02")
        text = rest if rest is not text else properties.without(text, properties.WAIT)
    if "CLUSTER" in told:
        text = properties.without(text, properties.CLUSTER)
    if "DELAY" in told or "TRAN_MSG" in told:
        _refuse_unserved(told)
    if text and text[-1] != "\x02":
        text += "\x02"
    unique = told.get("UNIQ_KEY")
    if unique is None:
        unique = new_unique_key()
        text = f"{text}UNIQ_KEY\x01{unique}\x02"
    data = (text + cluster).encode()
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {len(data)}"
        )
    keys = told.get("KEYS")
    if keys is None:
        # What key_hash does, without the call.
        hashes: tuple[int, ...] = (crc32(unique.encode(), key_seed),)
    elif " " not in keys:
        hashes = crc32(unique.encode(), key_seed), crc32(keys.encode(), key_seed)
    else:
        words = [unique, *keys.split(" ")[:KEYS_PER_MESSAGE_MAX]]
        hashes = tuple([key_hash(key_seed, word) for word in words])
    tag = told.get("TAGS")
    tags_code = java.string_hash(tag) if tag else 0
    return data, unique, tags_code, hashes


def _refuse_unserved(told: dict[str, str]) -> None:
    if told.get("TRAN_MSG", "").lower() == "true":
        raise NoPermission("this broker does not take half messages yet")
    if told.get("DELAY", "0") != "0":
        raise NoPermission("this broker does not delay messages yet")
