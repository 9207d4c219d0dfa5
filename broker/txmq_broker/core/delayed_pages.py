"""Pages of the messages that wait for their time, in order of their times."""

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
from txmq_broker.store.due_messages import Due

__all__ = ["delayed_page"]

PAGE_MESSAGES_MAX: Final = 100
SECONDS_MAX: Final = 5_000
SCANNED_MAX: Final = 50_000
"""Messages that one request looks at, some ten milliseconds of the broker, unless more are due in
one second; the answer then goes on."""
READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies that one request reads."""

_PLACE: Final = re.compile(r"([0-9]{1,15}):([0-9]{1,3}):([0-9]{1,13})")


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
    start = _start(wanted)
    seconds = scanned = size = 0
    for second, waiting in store.seconds_from(start, SECONDS_MAX):
        seconds += 1
        for due in waiting:
            if not _is_wanted(due, wanted.level) or store.is_recalled(due):
                continue
            if len(page.messages) == count or size > READ_BYTES_MAX:
                page.next = _place(due)
                return page
            entry = _entry(store, due, broker)
            page.messages.append(entry)
            size += entry.size
        scanned += len(waiting)
        if scanned >= SCANNED_MAX or seconds >= SECONDS_MAX:
            page.next = _place(Due((second + 1) * 1000, 0, 0))
            return page
    return page


def _start(wanted: ListDelayed) -> Due:
    if not wanted.after:
        return Due(max(0, wanted.from_ms), 0, 0)
    match = _PLACE.fullmatch(wanted.after)
    if match is None:
        raise InvalidParameter(f"after must be a place of an answer, not {wanted.after[:40]!r}")
    due_ms, line, offset = map(int, match.groups())
    return Due(due_ms, line, offset)


def _place(due: Due) -> str:
    return f"{due.due_ms}:{due.line}:{due.offset}"


def _is_wanted(due: Due, level: int) -> bool:
    of_line = due.line + 1 if due.line < LEVELS_MAX else 0
    return level in (-1, of_line)


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
