"""Delayed messages: when each is due, where it waits, and which queue it goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from txmq.errors import (
    CorruptRecord,
    IllegalOperation,
    InvalidParameter,
    LocalProtocolError,
    MessageIllegal,
    ServiceUnavailable,
)
from txmq.limits import PROPERTIES_BYTES_MAX, RECALLED_BYTES_MAX, RECALLED_TOGETHER_MAX
from txmq.protocol import properties, recall
from txmq.protocol import record as records
from txmq.protocol.operations import DelayedEntry, DelayedPage, DelayLevelEntry, ListDelayed
from txmq.protocol.recall import RecallHandle
from txmq.protocol.record import Postmark, Record
from txmq.protocol.topics import SCHEDULE_TOPIC, WAITING_TOPICS
from txmq_broker.config import DelaySettings
from txmq_broker.core.topics import Topics
from txmq_broker.store.delay_lines import LEVELS_MAX, WHEEL_LINES, Line
from txmq_broker.store.delay_store import DelayStore, Unstored, retry_of
from txmq_broker.store.due_messages import Due, ListPlace
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.pending_transactions import Half
from txmq_broker.store.queue_store import key_hashes_in, tags_code_in, topic_seed

__all__ = ["DueTime", "Schedule", "delayed_page"]

_CLASSES_MS: Final = tuple(seconds * 1000 for seconds in (60, 600, 3600, 6 * 3600, 86_400))
"""Messages with similar delays share a line of the wheel. So the delivered messages of a line
mostly precede the waiting ones, and a restart reads few delivered ones."""

_LONG_MAX: Final = 19
"""The digits of a Java long."""


class DueTime(NamedTuple):
    """The requested time of delivery."""

    level: int
    """The delay level, or 0 for an individual time."""
    due_ms: int


class Schedule:
    """Stores delayed messages, and moves them to their topics when they are due."""

    def __init__(self, store: MessageStore, topics: Topics, settings: DelaySettings) -> None:
        self._store = store
        self._delays = store.delays
        self._topics = topics
        self._longest_ms = 0
        self._levels: tuple[int, ...] = ()
        self.adopt(settings)
        self.held_back = 0
        """The number of messages that are delivered late because the clock was set back."""

    def adopt(self, settings: DelaySettings) -> None:
        """Use other settings for new messages; waiting messages keep their times."""
        self._longest_ms = int(settings.longest * 1000)
        self._levels = settings.levels_ms()

    # Due times

    def due_time_in(self, special: Mapping[str, str], now_ms: int) -> DueTime | None:
        """The due time in a message's properties, or ``None`` for immediate delivery.

        A level takes precedence over a time, as in RocketMQ.

        Raises:
            MessageIllegal: The value is not a number, or the time is too far away. Producers do not
                retry after this code.
        """
        found = self.due_time_of(special, now_ms)
        if found is not None and not found.level and found.due_ms - now_ms > self._longest_ms:
            raise MessageIllegal(
                f"a delay is at most {self._longest_ms // 1000} s here (delay.longest), "
                f"not {(found.due_ms - now_ms) // 1000} s"
            )
        return found

    def due_time_of(self, special: Mapping[str, str], now_ms: int) -> DueTime | None:
        """As :meth:`due_time_in`, for a message that was accepted before: any time counts.

        Raises:
            MessageIllegal: The value is not a number.
        """
        level = _number("DELAY", special)
        if level > 0:
            return self.due_time_of_level(level, now_ms)
        for name, unit in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
            if name in special:
                due_ms = now_ms + max(0, _number(name, special)) * unit
                break
        else:
            due_ms = _number("TIMER_DELIVER_MS", special)
        return DueTime(0, due_ms) if due_ms > now_ms else None

    def due_time_of_level(self, level: int, now_ms: int) -> DueTime:
        """The due time of a delay level; levels above the highest count as the highest."""
        level = min(level, len(self._levels))
        return DueTime(level, now_ms + self._levels[level - 1])

    # Storing

    def put(
        self, topic: str, number: int, message: Unstored, due_time: DueTime, now_ms: int
    ) -> tuple[int, int]:
        """Stage a delayed message, and return its offset in its line and its position.

        Raises:
            MessageIllegal: Its properties leave no room for its real topic and queue.
        """
        place = records.real_place(topic, number)
        data = _with_real_place(message.data, due_time.level, place)
        if len(data) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties have at most {PROPERTIES_BYTES_MAX} bytes, and those of a delayed "
                "message include its topic"
            )
        line, due_ms = self._line_for(due_time, now_ms)
        retry = None
        if topic[0] == "%":
            retry = retry_of(topic, message.postmark[5], data.decode())
        return self._delays.join(line, due_ms, message._replace(data=data), retry)

    def put_committed(self, half: Half, data: bytes, stored_ms: int, now_ms: int) -> bool:
        """Stage the message of a committed transaction that asks for a delay, which is counted from
        now; returns false if it is due already.
        """
        record, _ = records.unpack(data)
        due_time = self.due_time_of(record.property_map(), now_ms)
        if due_time is None:
            return False
        flags = record.sys_flag & ~records.TYPE_BITS
        stamp = (
            flags, record.born_ms, record.born_host, stored_ms, record.store_host,
            record.attempts, 0,
        )  # fmt: skip
        origin = properties.render({properties.HALF: str(half.position)})
        text = properties.join(record.properties, origin).encode()
        message = Unstored(stamp, record.flag, record.body, text)
        self.put(half.queue.topic, half.queue.number, message, due_time, now_ms)
        return True

    def _line_for(self, due_time: DueTime, now_ms: int) -> tuple[Line, int]:
        """A line that has not yet delivered a message with a later due time.

        A line is unsuitable only if the clock was set back. If all lines are, the message takes the
        due time of a delivered message: it may come late, but never early, and its line does not
        count it as delivered.
        """
        due_ms = due_time.due_ms
        wait_ms = due_ms - now_ms
        number = sum(wait_ms > limit for limit in _CLASSES_MS)
        lines = [self._delays.wheel_line(wheel) for wheel in range(number, WHEEL_LINES)]
        if due_time.level:
            lines.insert(0, self._delays.line(due_time.level - 1))
        for line in lines:
            if due_ms >= line.leaving.due_ms:
                return line, due_ms
        self.held_back += 1
        line = min(lines, key=lambda candidate: candidate.leaving.due_ms)
        return line, line.leaving.due_ms

    # Delivery

    def send(self, due: Due, stored_ms: int) -> int:
        """Stage a due message in its real queue, and return its size.

        Raises:
            CorruptRecord: The message is damaged.
            ServiceUnavailable: The message cannot be read now.
        """
        waited = self._delays.read(due)
        text = waited.properties
        name, number = _real_place(waited)
        topic = self._topics.by_name.get(name)
        if topic is None:
            # As in RocketMQ: the message is there if the topic is created again.
            queue = self._store.queue(name, number)
        else:
            queue = topic.queues[number if number < len(topic.queues) else 0]
            topic.put_count += 1
            topic.put_bytes += len(waited.body)
        field = records.topic_field(name) if topic is None else topic.name_field
        postmark = (
            waited.sys_flag, waited.born_ms, waited.born_host, stored_ms, waited.store_host,
            waited.attempts, waited.position,
        )  # fmt: skip
        key_seed = topic_seed(name) if topic is None else topic.key_seed
        hashes = key_hashes_in(key_seed, text)
        tail = records.tail_of(field, text.encode())
        code = tags_code_in(text)
        self._store.stage([(queue, postmark, waited.flag, waited.body, tail, code, hashes, None)])
        self._delays.leave(due, retry_of(name, waited.attempts, text))
        return len(waited.body) + len(tail)

    def page(self, broker: str, wanted: ListDelayed) -> DelayedPage:
        """The waiting messages that a request wants, in order of their due times.

        Raises:
            InvalidParameter: The place to begin at is invalid.
        """
        return delayed_page(self._delays, self._levels, broker, wanted)

    # Recall

    def find(self, topic: str, unique: str) -> list[Record]:
        """The waiting or delivered messages of a topic with an id.

        A producer that got no answer sends again, so there may be several, with different due
        times.

        Raises:
            IllegalOperation: There is no such message, or there are too many to read.
            CorruptRecord: There is only one that is damaged.
        """
        # From time 0 on, because the longest delay may have been different when the message came.
        last_ms = self._store.log.last_ms
        positions = [
            position
            for waiting in WAITING_TOPICS
            for position in islice(
                self._store.positions_of_key(waiting, unique, 0, last_ms),
                RECALLED_TOGETHER_MAX + 1,
            )
        ]
        found: list[Record] = []
        damage: CorruptRecord | None = None
        room = RECALLED_BYTES_MAX
        for position in positions:
            try:
                record = self._store.delays.record_at(position)
            except CorruptRecord as error:
                damage = error
                continue
            if record is not None:
                room -= len(record.body)
                if _is(record, topic, unique):
                    found.append(record)
            if room < 0 or len(positions) > RECALLED_TOGETHER_MAX:
                raise IllegalOperation(f"too many messages wait under the id {unique}")
        if damage is not None and not found:
            raise damage
        if not found:
            raise IllegalOperation(f"no message {unique} of {topic} waits here")
        return found

    def recall(self, found: Sequence[Record], postmark: Postmark) -> bool:
        """Stage the recall of those that still wait; returns false if they were recalled before.

        Raises:
            IllegalOperation: One was already delivered; the others are recalled all the same.
        """
        has_left = is_news = False
        for record in found:
            line = self._delays.line_of(record.topic, record.queue_id)
            assert line is not None, "a waiting message has a line"
            due = Due(record.prepared_position, line.number, record.queue_offset)
            if self._delays.is_recalled(due):
                continue
            if due.place <= line.leaving:
                has_left |= not self._delays.was_recalled(due, record.position)
                continue
            unique = properties.find(record.properties, properties.UNIQUE_KEY) or ""
            data = properties.render({"TIMER_DEL_UNIQKEY": unique}).encode()
            retry = retry_of(_real_place(record)[0], record.attempts, record.properties)
            self._delays.recall(due, postmark, data, retry)
            is_news = True
        if has_left:
            raise IllegalOperation("the message was already delivered to its topic")
        return is_news


def _number(name: str, special: Mapping[str, str]) -> int:
    text = special.get(name, "") or "0"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONG_MAX):
        raise MessageIllegal(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _with_real_place(data: bytes, level: int, place: bytes) -> bytes:
    """A message's properties with its real topic and queue, and its final delay level."""
    text = data.decode()
    if "REAL_" in text:
        # The message was delayed before.
        text = properties.without(text, properties.REAL_TOPIC)
        text = properties.without(text, properties.REAL_QUEUE)
    if level and properties.find(text, properties.DELAY) != str(level):
        text = properties.without(text, properties.DELAY)
        place = b"DELAY\x01%d\x02%b" % (level, place)
    return properties.join(text, "").encode() + place


def _real_place(waited: Record) -> tuple[str, int]:
    name = properties.find(waited.properties, properties.REAL_TOPIC)
    number = properties.find(waited.properties, properties.REAL_QUEUE) or ""
    if not name or not number.isdecimal():
        raise CorruptRecord(waited.position, "a delayed message has no real topic and queue")
    return name, int(number)


def _is(record: Record, topic: str, unique: str) -> bool:
    text = record.properties
    return (
        record.topic in WAITING_TOPICS
        and properties.find(text, properties.UNIQUE_KEY) == unique
        and properties.find(text, properties.REAL_TOPIC) == topic
    )


PAGE_MESSAGES_MAX: Final = 100
BUDGET: Final = 10_000
"""Messages that one request examines, a few milliseconds of work; the next page continues."""
READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of bodies that one request reads."""

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
