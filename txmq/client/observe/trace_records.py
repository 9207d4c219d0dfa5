"""Trace records of a message's life, as stock clients write them and tools read them. Pure.

A record is a line of fields, ``0x01`` between them and ``0x02`` after the last; its class declares
them in this order. Records travel in the bodies of ordinary messages of a trace topic, whose keys
are the ids and keys of the traced messages, so that a message's id finds all its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeAlias

from txmq.errors import RemoteProtocolError
from txmq.limits import KEYS_PER_MESSAGE_MAX

__all__ = [
    "DecisionRecord",
    "HandlerEnd",
    "HandlerOutcome",
    "HandlerStart",
    "MessageKind",
    "SendRecord",
    "TopicRecord",
    "TraceRecord",
    "decode",
    "encode",
    "packed",
]

RECORDS_MAX: Final = 100
"""The most records in one trace message, as in stock clients."""

KEYS_BYTES_MAX: Final = 16 * 1024
"""The limit for the keys of one trace message; all its properties together may have 32 KiB."""

BODY_BYTES_MAX: Final = 100 * 1024
"""The limit for a trace message's body; stock clients stop at 128,000 bytes with properties."""

_NULL: Final = "null"
_FIELD: Final = "\x01"
_END: Final = "\x02"


class MessageKind(IntEnum):
    """The kind of a sent message."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class HandlerOutcome(IntEnum):
    """The result of a handler."""

    CONSUMED = 0
    TIMED_OUT = 1
    RAISED = 2
    SAID_NOTHING = 3
    LATER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRecord:
    """A send, successful or not."""

    at_ms: int
    region: str
    group: str
    topic: str
    id: str
    tags: str = ""
    keys: str = ""
    """Separated by blanks, as in a message's properties."""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    kind: MessageKind = MessageKind.NORMAL
    offset_id: str = ""
    is_success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStart:
    """A handler received a message."""

    at_ms: int
    region: str
    group: str
    request_id: str
    """Shared by all messages of one call, and by the records of that call's end."""
    id: str
    attempts: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnd:
    """A handler finished with a message."""

    request_id: str
    id: str
    cost_ms: int
    is_success: bool
    keys: str = ""
    outcome: HandlerOutcome = HandlerOutcome.CONSUMED
    at_ms: int = 0
    """0 if the writer was a cloud client, which omits it and the group."""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A producer committed or rolled back a transaction."""

    at_ms: int
    region: str
    group: str
    topic: str
    id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    kind: MessageKind = MessageKind.COMMITTED
    transaction_id: str = ""
    state: str = "COMMIT_MESSAGE"
    is_after_check: bool = False


TraceRecord: TypeAlias = SendRecord | HandlerStart | HandlerEnd | DecisionRecord
"""Any record of a trace."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record, and the topic of its message."""

    topic: str
    record: TraceRecord


# Writing


def encode(records: Iterable[TraceRecord]) -> bytes:
    """Encode records as the body of a trace message."""
    return "".join([_line(record) for record in records]).encode(errors="replace")


def _line(record: TraceRecord) -> str:
    values = [getattr(record, field.name) for field in fields(record)]
    return _FIELD.join([_NAMES[type(record)], *[_written(value) for value in values]]) + _END


def _written(value: str | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or _NULL


# Reading


def decode(body: bytes) -> list[TraceRecord]:
    """The records of a trace message; unknown kinds are left out.

    Raises:
        RemoteProtocolError: A record of a known kind is invalid.
    """
    found: list[TraceRecord] = []
    for line in body.decode(errors="replace").split(_END):
        name, *texts = line.split(_FIELD)
        if name not in _KINDS:
            continue
        try:
            found.append(_read(name, ["" if text == _NULL else text for text in texts]))
        except ValueError as error:
            raise RemoteProtocolError(f"a trace record {name} cannot be read: {line!r}") from error
    return found


def _read(name: str, texts: list[str]) -> TraceRecord:
    kind, count = _KINDS[name]
    if len(texts) < count:
        raise ValueError(f"it has {len(texts)} fields, not {count}")
    if kind is SendRecord and len(texts) == count:
        # Old clients write no place; newer ones append the address of the client itself.
        texts.insert(_OFFSET_ID_AT, "")
    if kind is HandlerEnd and len(texts) == _WITHOUT_GROUP:
        texts.pop()
    pairs = zip(fields(kind), texts, strict=False)
    return kind(**{field.name: _READERS[str(field.type)](text) for field, text in pairs})


def _is_true(text: str) -> bool:
    return text.lower() == "true"


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "bool": _is_true,
    "MessageKind": lambda text: MessageKind(int(text)),
    "HandlerOutcome": lambda text: HandlerOutcome(int(text)),
}
_KINDS: Final[Mapping[str, tuple[type[TraceRecord], int]]] = {
    "Pub": (SendRecord, 12),
    "SubBefore": (HandlerStart, 7),
    "SubAfter": (HandlerEnd, 5),
    "EndTransaction": (DecisionRecord, 12),
}
"""The kinds by name, each with the number of fields that the oldest clients write."""
_NAMES: Final = {kind: name for name, (kind, _) in _KINDS.items()}
_OFFSET_ID_AT: Final = 11
_WITHOUT_GROUP: Final = 7


# Packing


@dataclass(frozen=True, slots=True)
class TracePack:
    """The body and the keys of one trace message, and its number of records."""

    body: bytes
    keys: tuple[str, ...]
    count: int


def packed(traced: Iterable[TopicRecord]) -> list[TracePack]:
    """Pack records into trace messages, each about one topic, and small enough to be indexed."""
    by_topic: dict[str, list[TraceRecord]] = {}
    for topic_record in traced:
        by_topic.setdefault(topic_record.topic, []).append(topic_record.record)
    return [pack for records in by_topic.values() for pack in _packs(records)]


def _packs(records: Iterable[TraceRecord]) -> list[TracePack]:
    packs: list[TracePack] = []
    lines: list[bytes] = []
    keys: dict[str, None] = {}
    size = 0
    for record in records:
        line = encode([record])
        own = _own_keys(record)
        is_full = size + len(line) > BODY_BYTES_MAX or len(lines) >= RECORDS_MAX
        if lines and (is_full or not _fit(keys | own)):
            packs.append(TracePack(b"".join(lines), tuple(keys), len(lines)))
            lines, keys, size = [], {}, 0
        lines.append(line)
        keys |= own
        size += len(line)
    if lines:
        packs.append(TracePack(b"".join(lines), tuple(keys), len(lines)))
    return packs


def _own_keys(record: TraceRecord) -> dict[str, None]:
    own = dict.fromkeys([word for word in (record.id, *record.keys.split()) if word])
    while not _fit(own):
        own.popitem()  # The last key; the id is the first.
    return own


def _fit(keys: dict[str, None]) -> bool:
    # Brokers index only this many keys of a message.
    size = sum([len(key.encode(errors="replace")) + 1 for key in keys])
    return len(keys) <= KEYS_PER_MESSAGE_MAX and size <= KEYS_BYTES_MAX
