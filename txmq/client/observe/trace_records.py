"""Trace records of a message's life, as stock clients write them and tools read them. Pure.

A record is a line of fields, ``0x01`` between them and ``0x02`` behind the last. Records travel in
the bodies of ordinary messages of a trace topic, whose keys are the ids and keys of the traced
messages, so that a message's id finds all its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

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
"""Records of one trace message, as in stock clients."""

KEYS_BYTES_MAX: Final = 16 * 1024
"""The keys of one trace message; all its properties together have 32 KiB."""

BODY_BYTES_MAX: Final = 100 * 1024
"""A trace message's body; stock clients end it at 128,000 bytes, properties included."""

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
    """The same for what was handled at once, and in the record of its end."""
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
    return _FIELD.join([_written(value) for value in _fields(record)]) + _END


def _fields(record: TraceRecord) -> tuple[str | int, ...]:
    match record:
        case SendRecord() as r:
            return (
                "Pub", r.at_ms, r.region, r.group, r.topic, r.id, r.tags, r.keys, r.store_host,
                r.body_bytes, r.cost_ms, int(r.kind), r.offset_id, r.is_success,
            )  # fmt: skip
        case HandlerStart() as r:
            return (
                "SubBefore", r.at_ms, r.region, r.group, r.request_id, r.id, r.attempts, r.keys
            )  # fmt: skip
        case HandlerEnd() as r:
            return (
                "SubAfter", r.request_id, r.id, r.cost_ms, r.is_success, r.keys, int(r.outcome),
                r.at_ms, r.group,
            )  # fmt: skip
        case DecisionRecord() as r:
            return (
                "EndTransaction", r.at_ms, r.region, r.group, r.topic, r.id, r.tags, r.keys,
                r.store_host, int(r.kind), r.transaction_id, r.state, r.is_after_check,
            )  # fmt: skip


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
        name, *fields = line.split(_FIELD)
        reader = _READERS.get(name)
        if reader is None:
            continue
        try:
            found.append(reader(["" if field == _NULL else field for field in fields]))
        except (IndexError, ValueError) as error:
            raise RemoteProtocolError(f"a trace record {name} cannot be read: {line!r}") from error
    return found


def _sent(f: Sequence[str]) -> SendRecord:
    # Old clients name no place, and newer ones say in the end where the client itself runs.
    has_place = len(f) > 12
    return SendRecord(
        at_ms=int(f[0]), region=f[1], group=f[2], topic=f[3], id=f[4], tags=f[5], keys=f[6],
        store_host=f[7], body_bytes=int(f[8]), cost_ms=int(f[9]), kind=MessageKind(int(f[10])),
        offset_id=f[11] if has_place else "", is_success=_is_true(f[12 if has_place else 11]),
    )  # fmt: skip


def _begun(f: Sequence[str]) -> HandlerStart:
    return HandlerStart(
        at_ms=int(f[0]), region=f[1], group=f[2], request_id=f[3], id=f[4], attempts=int(f[5]),
        keys=f[6],
    )  # fmt: skip


def _handled(f: Sequence[str]) -> HandlerEnd:
    return HandlerEnd(
        request_id=f[0], id=f[1], cost_ms=int(f[2]), is_success=_is_true(f[3]), keys=f[4],
        outcome=HandlerOutcome(int(f[5])) if len(f) > 5 else HandlerOutcome.CONSUMED,
        at_ms=int(f[6]) if len(f) > 7 else 0, group=f[7] if len(f) > 7 else "",
    )  # fmt: skip


def _decided(f: Sequence[str]) -> DecisionRecord:
    return DecisionRecord(
        at_ms=int(f[0]), region=f[1], group=f[2], topic=f[3], id=f[4], tags=f[5], keys=f[6],
        store_host=f[7], kind=MessageKind(int(f[8])), transaction_id=f[9], state=f[10],
        is_after_check=_is_true(f[11]),
    )  # fmt: skip


def _is_true(text: str) -> bool:
    return text.lower() == "true"


_READERS: Final[Mapping[str, Callable[[Sequence[str]], TraceRecord]]] = {
    "Pub": _sent,
    "SubBefore": _begun,
    "SubAfter": _handled,
    "EndTransaction": _decided,
}


# Gathering


@dataclass(frozen=True, slots=True)
class TracePack:
    """The body and the keys of one trace message, and how many records it holds."""

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
