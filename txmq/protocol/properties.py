"""A message's properties: ``name 0x01 value 0x02`` repeated, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from txmq.errors import LocalProtocolError
from txmq.message import XID

__all__ = ["delay_in", "find", "join", "one_line", "parse", "render", "without", "xid_in"]

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
UNIQUE_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
DELAY: Final = "DELAY"
DELIVER_AT: Final = "TIMER_DELIVER_MS"
DELIVER_AFTER: Final = "TIMER_DELAY_SEC"
DELIVER_AFTER_MS: Final = "TIMER_DELAY_MS"
DELAYS: Final = (DELAY, DELIVER_AFTER, DELIVER_AFTER_MS, DELIVER_AT)
"""The properties that request a delay."""
SHARDING_KEY: Final = "__SHARDINGKEY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
TRANSACTION: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
DEAD_REASON: Final = "DLQ_REASON"
DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
CORRELATION_ID: Final = "CORRELATION_ID"
FENCE: Final = "TXMQ_FENCE"
HALF: Final = "TXMQ_HALF"
"""The position of the half message, in a committed message that was delayed."""
OUTBOX: Final = "TXMQ_OUTBOX"
"""The outbox table and row of a message."""

_NAME_END: Final = "\x01"
_PAIR_END: Final = "\x02"


def id_in_transaction(xid: str, number: int) -> str:
    """The unique key of a message of a transaction: for its first one, number 0, the transaction's
    own id.
    """
    return f"{xid}.{number}" if number else xid


def xid_in(text: str) -> str:
    """The id of the transaction of the half message with these properties; empty without an id."""
    unique, xid = find(text, UNIQUE_KEY) or "", find(text, XID)
    # A client may name a transaction that its message is not part of.
    return xid if xid and unique.startswith(f"{xid}.") else unique


def find(text: str, name: str) -> str | None:
    """The value of one property, without parsing the others; of duplicates the last one counts."""
    mark = _PAIR_END + name + _NAME_END
    end = len(text)
    while (at := text.rfind(mark, 0, end)) >= 0:
        if value := _value_at(text, at + len(mark)):
            return value
        end = at
    if text.startswith(mark[1:]):
        return _value_at(text, len(mark) - 1) or None
    return None


def delay_in(value_of: Callable[[str], str | None]) -> str | None:
    """The name of the first property that requests a delay; ``value_of`` gives any's value."""
    for name in DELAYS:
        if value_of(name) not in (None, "", "0"):
            return name
    return None


def _value_at(text: str, start: int) -> str:
    end = text.find(_PAIR_END, start)
    return text[start:] if end < 0 else text[start:end]


def parse(text: str) -> dict[str, str]:
    """All properties. Pairs without a name or a value are ignored, as in RocketMQ."""
    found: dict[str, str] = {}
    for pair in text.split(_PAIR_END):
        name, mark, value = pair.partition(_NAME_END)
        if mark and name and value:
            found[name] = value
    return found


def render(values: Mapping[str, str]) -> str:
    """Encode properties.

    Raises:
        LocalProtocolError: A name or value holds a separator.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in values.items()])
    if not text.count(_NAME_END) == text.count(_PAIR_END) == len(values):
        raise LocalProtocolError("a property holds a control character 1 or 2")
    if "" in values or "" in values.values():
        return render({name: value for name, value in values.items() if name and value})
    return text


def without(text: str, name: str) -> str:
    """The text without any occurrence of one property."""
    mark = name + _NAME_END
    if mark not in text:
        return text
    return _PAIR_END.join([pair for pair in text.split(_PAIR_END) if not pair.startswith(mark)])


def one_line(text: str, chars_max: int) -> str:
    """Foreign text as a printable value: one line, no control characters."""
    # Only the start is scanned, because the text may be very long.
    plain = "".join([char if char.isprintable() else " " for char in text[: 2 * chars_max]])
    return " ".join(plain.split())[:chars_max]


def join(text: str, more: str) -> str:
    """Join two texts, with a separator between them if a client left out the first one's last."""
    if text and not text.endswith(_PAIR_END):
        return text + _PAIR_END + more
    return text + more
