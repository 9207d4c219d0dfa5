"""Messages that are to come later: when each is due, where it waits, and where it goes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, IllegalOperation, MessageIllegal
from txmq.limits import PROPERTIES_BYTES_MAX, RECALLED_BYTES_MAX, RECALLED_TOGETHER_MAX
from txmq.protocol import java, properties
from txmq.protocol import record as records
from txmq.protocol.record import Postmark, Record
from txmq.protocol.topics import WAITING_TOPICS
from txmq_broker.config import DelaySettings
from txmq_broker.core.topics import Topic, Topics
from txmq_broker.store.key_index import key_hash, keys_in, topic_seed
from txmq_broker.store.lines import WHEEL_LINES, Line
from txmq_broker.store.message_store import MessageStore
from txmq_broker.store.waiting import Due

__all__ = ["DueTime", "Schedule"]

_CLASSES_MS: Final = tuple(seconds * 1000 for seconds in (60, 600, 3600, 6 * 3600, 86_400))
"""Messages that wait about as long as each other share a line of the wheel: so what has left a line
and what has not lie apart in it, and a restart reads little of the former."""

_LONG_MAX: Final = 19
"""Digits of a Java long."""


class DueTime(NamedTuple):
    """When a message wants to come."""

    level: int
    """A delay level, or 0 where it names a time."""
    due_ms: int


class Schedule:
    """Takes messages that nobody may consume yet, and gives them to their topics in time."""

    def __init__(self, store: MessageStore, topics: Topics, settings: DelaySettings) -> None:
        self._store = store
        self._delays = store.delays
        self._topics = topics
        self._longest_ms = 0
        self._levels: tuple[int, ...] = ()
        self.adopt(settings)
        self.held_back = 0
        """Messages that come later than they want to, because the clock was set back."""

    def adopt(self, settings: DelaySettings) -> None:
        """Go by other settings; what waits already waits as it was told."""
        self._longest_ms = int(settings.longest * 1000)
        self._levels = settings.levels_ms()

    # When

    def due_time_in(self, special: Mapping[str, str], now_ms: int) -> DueTime | None:
        """When a message with these properties wants to come, or ``None`` where it is now.

        A level counts before a time, as with RocketMQ.

        Raises:
            MessageIllegal: It asks for what is no number, or for a time too far away. Producers
                take this as the last word.
        """
        level = _number("DELAY", special)
        if level > 0:
            return self.due_time_of_level(level, now_ms)
        for name, unit in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
            if name in special:
                return self._due_time_at(now_ms + max(0, _number(name, special)) * unit, now_ms)
        return self._due_time_at(_number("TIMER_DELIVER_MS", special), now_ms)

    def due_time_of_level(self, level: int, now_ms: int) -> DueTime:
        """When a message of a level comes; those above the highest come as if they had that."""
        level = min(level, len(self._levels))
        return DueTime(level, now_ms + self._levels[level - 1])

    def _due_time_at(self, due_ms: int, now_ms: int) -> DueTime | None:
        if due_ms <= now_ms:
            return None
        if due_ms - now_ms > self._longest_ms:
            raise MessageIllegal(
                f"a message waits at most {self._longest_ms // 1000} s here (delay.longest), "
                f"not {(due_ms - now_ms) // 1000} s"
            )
        return DueTime(0, due_ms)

    # In

    def put_at_level(
        self,
        topic: Topic,
        number: int,
        postmark: Postmark,
        flag: int,
        body: bytes,
        data: bytes,
        level: int,
        now_ms: int,
    ) -> tuple[int, int]:
        """Stage a message that waits as long as a level says; see :meth:`put`."""
        due_time = self.due_time_of_level(level, now_ms)
        return self.put(topic, number, postmark, flag, body, data, due_time, now_ms)

    def put(
        self,
        topic: Topic,
        number: int,
        postmark: Postmark,
        flag: int,
        body: bytes,
        data: bytes,
        due_time: DueTime,
        now_ms: int,
    ) -> tuple[int, int]:
        """Stage a message that waits, and return its offset there and its position.

        Raises:
            MessageIllegal: There is no room left in its properties for where it really goes.
        """
        data = _told(data, due_time.level, records.real_place(topic.name, number))
        if len(data) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties have at most {PROPERTIES_BYTES_MAX} bytes, and a message that waits "
                "has its topic among them"
            )
        line, due_ms = self._line_for(due_time, now_ms)
        return self._delays.join(line, due_ms, postmark, flag, body, data)

    def _line_for(self, due_time: DueTime, now_ms: int) -> tuple[Line, int]:
        """A line that has let go of nobody who is due later; that needs a clock set back.

        Where there is none, the message waits for those: it may come late, but never early, and
        never be taken for one that has left.
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

    # Out

    def send(self, due: Due, stored_ms: int) -> int:
        """Stage a message where it really goes, and return its size.

        Raises:
            CorruptRecord: It cannot be read.
            ServiceUnavailable: It cannot be found for now.
        """
        waited = self._delays.read(due)
        text = waited.properties
        name, number = _real_place(waited)
        topic = self._topics.find(name)
        if topic is None:
            # As RocketMQ: whoever makes the topic again finds it there.
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
        tag = properties.find(text, properties.TAGS)
        hashes = tuple([key_hash(key_seed, key) for key in keys_in(text)])
        tail = records.tail_of(field, text.encode())
        code = java.string_hash(tag) if tag else 0
        self._store.append(queue, postmark, waited.flag, waited.body, tail, code, hashes)
        self._delays.leave(due)
        return len(waited.body) + len(tail)

    # Recalling

    def find(self, topic: str, unique: str) -> list[Record]:
        """What waits, or waited, of a topic under an id.

        A producer that got no answer sends its message again, so there may be several, and each may
        have a time of its own.

        Raises:
            IllegalOperation: There is none, or there are too many to look at.
        """
        # From the first on: how long one may wait may have been another when it came.
        last_ms = self._store.last_ms
        positions = [
            position
            for waiting in WAITING_TOPICS
            for position in islice(
                self._store.positions_of_key(waiting, unique, 0, last_ms),
                RECALLED_TOGETHER_MAX + 1,
            )
        ]
        read: list[bytes] = []
        room = RECALLED_BYTES_MAX
        for position in positions:
            data = self._store.bytes_at(position)
            if data is not None:
                read.append(data)
                room -= len(data)
            if room < 0 or len(positions) > RECALLED_TOGETHER_MAX:
                raise IllegalOperation(f"too many messages wait under the id {unique}")
        found = [record for data in read if _is(record := records.unpack(data)[0], topic, unique)]
        if not found:
            raise IllegalOperation(f"no message {unique} of {topic} waits here")
        return found

    def recall(self, found: Sequence[Record], postmark: Postmark) -> bool:
        """Stage that what still waits of these shall not come; false where that was said before.

        Raises:
            IllegalOperation: One has left already; the others do not follow it.
        """
        has_left = is_news = False
        for record in found:
            line = self._delays.line_of(record.topic, record.queue_id)
            assert line is not None, "what waits, waits in a line"
            due = Due(record.prepared_position, line.number, record.queue_offset)
            if self._delays.is_recalled(due):
                continue
            if due.place <= line.leaving:
                has_left |= not self._delays.was_recalled(due, record.position)
                continue
            unique = properties.find(record.properties, properties.UNIQUE_KEY) or ""
            data = properties.render({"TIMER_DEL_UNIQKEY": unique}).encode()
            self._delays.recall(due, postmark, data)
            is_news = True
        if has_left:
            raise IllegalOperation("the message has been given to its topic already")
        return is_news


def _number(name: str, special: Mapping[str, str]) -> int:
    text = special.get(name, "") or "0"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONG_MAX):
        raise MessageIllegal(f"{name} is a whole number, not {text[:40]!r}")
    return int(text)


def _told(data: bytes, level: int, place: bytes) -> bytes:
    """A message's properties with where it really goes, and the level it has in the end."""
    text = data.decode()
    if "REAL_" in text:
        # It has waited before.
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
        raise CorruptRecord(waited.position, "a waiting message does not say where it goes")
    return name, int(number)


def _is(record: Record, topic: str, unique: str) -> bool:
    text = record.properties
    return (
        record.topic in WAITING_TOPICS
        and properties.find(text, properties.UNIQUE_KEY) == unique
        and properties.find(text, properties.REAL_TOPIC) == topic
    )
