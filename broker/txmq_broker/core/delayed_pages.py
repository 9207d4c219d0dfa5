"""Pages of the messages that wait for their time, in order of the seconds in which they are due."""

from __future__ import annotations

import re
from typing import Final

from txmq.errors import CorruptRecord, InvalidParameter, LocalProtocolError, ServiceUnavailable
from txmq.protocol import properties, recall
from txmq.protocol.operations import DelayedEntry, DelayedPage, DelayLevelEntry, ListDelayed
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import Record
from txmq.protocol.topics import SCHEDULE_TOPIC
from txmq_broker.store.delay_lines import LEVELS_MAX
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.due_messages import Due, ListPlace

__all__ = ["delayed_page"]

PAGE_MESSAGES_MAX: Final = 100
BUDGET: Final = 10_000
"""Messages that one request looks at, some milliseconds of the broker; the answer then goes on."""
READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies that one request reads."""

_PLACE: Final = re.compile(r"([0-9]{1,12}):([0-9]{1,10})")


def delayed_page(
    store: DelayStore, levels_ms: tuple[int, ...], broker: str, wanted: ListDelayed
) -> DelayedPage:
    """The waiting messages that a request wants.

    Args:
        store: The delayed messages.
        levels_ms: The delay of each level.
        broker: The broker, for the handles.
        wanted: The request.

    Raises:
        InvalidParameter: The place to begin at is invalid.
    """
    page = DelayedPage([], _levels(store, levels_ms), len(store))
    count = max(1, min(wanted.count, PAGE_MESSAGES_MAX))
    found = store.found_from(
        _start(wanted), lambda line: _is_of_level(line, wanted.level), count, BUDGET
    )
    size = 0
    for place, due in found.messages:
        if size > READ_BYTES_MAX:
            page.next = _text_of(place)
            return page
        if store.is_recalled(due):
            continue
        entry = _entry(store, due, broker)
        page.messages.append(entry)
        size += entry.size
    page.next = "" if found.next is None else _text_of(found.next)
    return page


def _start(wanted: ListDelayed) -> ListPlace:
    if not wanted.after:
        return ListPlace(max(0, wanted.from_ms) // 1000, 0)
    match = _PLACE.fullmatch(wanted.after)
    if match is None:
        raise InvalidParameter(f"after must be a place of an answer, not {wanted.after[:40]!r}")
    return ListPlace(int(match[1]), int(match[2]))


def _text_of(place: ListPlace) -> str:
    return f"{place.second}:{place.number}"


def _is_of_level(line: int, level: int) -> bool:
    return level in (-1, line + 1 if line < LEVELS_MAX else 0)


def _levels(store: DelayStore, levels_ms: tuple[int, ...]) -> list[DelayLevelEntry]:
    waiting = {level: joined - left for level, left, joined in store.levels()}
    return [
        DelayLevelEntry(level, delay_ms, waiting.get(level, 0))
        for level, delay_ms in enumerate(levels_ms, 1)
    ]


def _entry(store: DelayStore, due: Due, broker: str) -> DelayedEntry:
    try:
        record = store.read(due)
    except (CorruptRecord, ServiceUnavailable) as error:
        level = due.line + 1 if due.line < LEVELS_MAX else 0
        return DelayedEntry(due.due_ms, level, problem=str(error))
    named = record.property_map()
    number = named.get(properties.REAL_QUEUE, "")
    delay = named.get(properties.DELAY, "")
    return DelayedEntry(
        due_ms=due.due_ms,
        level=int(delay) if record.topic == SCHEDULE_TOPIC and delay.isdecimal() else 0,
        topic=named.get(properties.REAL_TOPIC, ""),
        queue_id=int(number) if number.isdecimal() else 0,
        message_id=named.get(properties.UNIQUE_KEY, ""),
        keys=named.get(properties.KEYS, ""),
        tags=named.get(properties.TAGS, ""),
        size=len(record.body),
        stored_ms=record.stored_ms,
        offset_msg_id=record.offset_id,
        recall_handle=_handle(record, broker, due.due_ms),
    )


def _handle(record: Record, broker: str, due_ms: int) -> str:
    named = record.property_map()
    topic = named.get(properties.REAL_TOPIC, "")
    message_id = named.get(properties.UNIQUE_KEY, "")
    try:
        return recall.encode(RecallHandle(topic, broker, due_ms, message_id))
    except LocalProtocolError:
        return ""
