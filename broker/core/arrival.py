"""What a message's properties say on arrival, and how they are stored: one look for everything the
broker needs.

The pairs are walked once; asking for one property after another took three times as long, and this
runs for every message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from broker.store.half_store import seconds_in
from broker.store.key_index import key_hash
from txmq.errors import MessageIllegal, NoPermission
from txmq.limits import KEYS_PER_MESSAGE_MAX, PROPERTIES_BYTES_MAX, PROPERTIES_OF_HALF_MAX
from txmq.protocol import java, properties
from txmq.protocol.checksum import crc32

__all__ = ["Arrival", "HalfWords", "UndeclaredHalf", "examine", "examine_half"]

_SPECIAL: Final = frozenset(
    {
        "DELAY",
        "TRAN_MSG",
        "PGROUP",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        properties.CHECK_IMMUNITY,
    }
)
"""Properties that ask for more than storing."""

Arrival: TypeAlias = tuple[bytes, str, int, tuple[int, ...]]
"""The properties as they are stored, the unique key, the tag's hash, the keys' hashes."""


class UndeclaredHalf(Exception):
    """A message says by its properties alone that it is a half message; stock clients say it in the
    header, too, so this is looked for last.
    """


class HalfWords:
    """What the properties of a half message say beside what all messages say, as they are walked
    through.
    """

    __slots__ = ("group", "immunity_s", "is_declared")

    def __init__(self) -> None:
        self.group = ""
        self.immunity_s = 0
        self.is_declared = False

    def __call__(self, name: str, value: str) -> None:
        """Take one of them.

        Raises:
            MessageIllegal: The message wants to be delayed, too.
        """
        if name == "TRAN_MSG":
            self.is_declared = bool(value)
        elif name == "PGROUP":
            self.group = value or self.group
        elif name == properties.CHECK_IMMUNITY:
            self.immunity_s = seconds_in(value) or self.immunity_s
        elif value not in ("", "0"):
            raise MessageIllegal(f"a half message cannot be delayed ({name} is {value[:40]})")


def examine_half(
    text: str, group: str, cluster: str, key_seed: int, new_unique_key: Callable[[], str]
) -> tuple[Arrival, HalfWords]:
    """Read and rewrite the properties of a half message, as :func:`examine` does.

    It will say what it is and whose it is, also where its producer said so in the header only.

    Raises:
        MessageIllegal: It wants to be delayed, too, or the properties are too long.
    """
    words = HalfWords()
    arrival = examine(text, cluster, key_seed, new_unique_key, words)
    if not words.is_declared or not words.group:
        if not words.is_declared:
            text = properties.join(text, "TRAN_MSG\x01true\x02")
        if not words.group:
            text = properties.join(text, f"PGROUP\x01{group}\x02")
        arrival = examine(text, cluster, key_seed, new_unique_key, words)
    if len(arrival[0]) > PROPERTIES_OF_HALF_MAX:
        raise MessageIllegal(
            f"a half message's properties have at most {PROPERTIES_OF_HALF_MAX} bytes"
        )
    return arrival, words


def examine(  # noqa: C901  one walk over the pairs is the point
    text: str,
    cluster: str,
    key_seed: int,
    new_unique_key: Callable[[], str],
    special: Callable[[str, str], None] | None = None,
) -> Arrival:
    """Read and rewrite the properties of a message that was sent.

    Args:
        text: The properties as sent.
        cluster: The property that names this broker's cluster, written out.
        key_seed: Where the hashes of this topic's keys start from.
        new_unique_key: Gives an id to a message whose producer gave it none.
        special: Judges properties that ask for more than storing.

    Raises:
        NoPermission: It asks for something this broker does not do.
        UndeclaredHalf: It is a half message.
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
        elif name in _SPECIAL:
            (special or _allow)(name, value)
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


def _allow(name: str, value: str) -> None:
    if name == "TRAN_MSG" and value.lower() == "true":
        raise UndeclaredHalf
    if name == "DELAY" and value not in ("", "0"):
        raise NoPermission("this broker does not delay messages yet")
