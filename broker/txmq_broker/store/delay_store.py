"""Delayed messages in the log.

A delayed message waits as a record in one of the broker's own topics. Its properties name the real
topic, and the field for the position of a prepared message holds its due time. When it is due, the
store writes a copy: an ordinary message of the real topic, with the position of the original. The
copies show which messages have left a line, so a restart neither loses nor repeats a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from txmq.errors import CorruptRecord, RemoteProtocolError, ServiceUnavailable
from txmq.limits import WAITING_RETRIES_MAX
from txmq.protocol import properties
from txmq.protocol import record as records
from txmq.protocol.checksum import crc32
from txmq.protocol.record import Postmark, Record
from txmq.protocol.topics import RETRY, WAITING_TOPICS
from txmq_broker.store.delay_lines import RECALLS, DelayLines, Line, LineState
from txmq_broker.store.due_messages import (
    Due,
    DueMessages,
    FoundDue,
    LinePlace,
    ListPlace,
    split_where,
    where_of,
)
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.queue_store import Entry, QueueStore, key_hashes_in, topic_seed

__all__ = ["DelayStore", "Delayed", "Retry", "RetryTally", "Unstored", "retry_of"]

_NOBODY: Final[Mapping[tuple[str, int], int]] = {}


class Retry(NamedTuple):
    """The retry that a message waits for: its group, its topic, and which attempt it is."""

    group: str
    topic: str
    """The topic that the group received the message from; empty beyond the limit."""
    number: int
    """1 for the first retry; 0 beyond the limit."""


def retry_of(topic: str, attempts: int, text: str) -> Retry | None:
    """The retry that a delayed message for this topic waits for, or ``None``.

    Args:
        topic: The topic that receives the message when it is due.
        attempts: How often its group has failed.
        text: Its properties.
    """
    if not topic.startswith(RETRY):
        return None
    return Retry(
        topic.removeprefix(RETRY), properties.find(text, properties.RETRY_TOPIC) or "", attempts
    )


class RetryTally:
    """The number of waiting messages by group, topic and retry."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], int]] = {}
        self._kinds = 0

    def add(self, retry: Retry) -> None:
        """Count a message that starts to wait."""
        counts = self._groups.setdefault(retry.group, {})
        kind = retry.topic, retry.number
        if kind not in counts:
            # The topic comes from a property, so a sender could invent one for every message.
            kind = kind if self._kinds < WAITING_RETRIES_MAX else ("", 0)
            self._kinds += kind not in counts
        counts[kind] = counts.get(kind, 0) + 1

    def remove(self, retry: Retry) -> None:
        """Stop counting a message that no longer waits."""
        counts = self._groups.get(retry.group, {})
        kind = retry.topic, retry.number
        kind = kind if kind in counts else ("", 0)
        if kind not in counts:
            return
        counts[kind] -= 1
        if not counts[kind]:
            del counts[kind]
            self._kinds -= 1
        if not counts:
            del self._groups[retry.group]

    def of_group(self, group: str, topics: Collection[str] = ()) -> dict[int, int]:
        """The number of a group's waiting messages by retry, in all topics or in the given ones."""
        found: dict[int, int] = {}
        for (topic, number), count in sorted(self._groups.get(group, _NOBODY).items()):
            if not topics or topic in topics:
                found[number] = found.get(number, 0) + count
        return dict(sorted(found.items()))

    def totals(self) -> Iterator[tuple[str, int]]:
        """The number of waiting messages by group."""
        for group, counts in list(self._groups.items()):
            yield group, sum(counts.values())


_READ_AT_ONCE: Final = 4096
_NEVER: Final = 1 << 62


class Delayed(NamedTuple):
    """The delayed messages that a span adds, delivers and recalls."""

    joined: list[Due]
    left: list[Due]
    recalled: list[Due]
    retries: dict[int, Retry]
    """The retries among them, by place."""


class Unstored(NamedTuple):
    """A message before it is stored."""

    postmark: Postmark
    flag: int
    body: bytes
    data: bytes
    """Its properties."""


class DelayStore(DelayLines):
    """The delayed messages of one store."""

    def __init__(self, log: CommitLog, queues: QueueStore) -> None:
        super().__init__(queues)
        self._log = log
        self._waiting = DueMessages()
        self._joined: list[Due] = []
        self._left: list[Due] = []
        self._recalled: list[Due] = []
        self._retries: dict[int, Retry] = {}
        self.has_staged = False
        """True if a staged message joins a line, leaves one, or is recalled."""
        self._joins_ms = _NEVER
        self._unsafe: deque[int] = deque()
        self._leaving = 0
        self._marks: deque[tuple[int, dict[int, LinePlace]]] = deque()
        self._gone: set[int] = set()
        """The places of recalled messages that may still be in a line."""
        self._going: set[int] = set()
        """The places of messages whose recall is not durable yet."""
        self._waiting_retries = RetryTally()
        self._uncounted: dict[int, range] = {}
        """The places in each line that :meth:`count_retries` has not read yet."""
        self._is_counted = False

    def __len__(self) -> int:
        return len(self._waiting)

    # Appending

    def join(
        self, line: Line, due_ms: int, message: Unstored, retry: Retry | None = None
    ) -> tuple[int, int]:
        """Stage a delayed message; returns its place in the line's queue and its position."""
        assert due_ms >= line.leaving.due_ms, "the message is due before one that has left the line"
        postmark, flag, body, data = message
        queue = line.queue
        seed = topic_seed(queue.topic)
        hashes = key_hashes_in(seed, data.decode())
        tail = records.tail_of(records.topic_field(queue.topic), data)
        stamp = (*postmark[:6], due_ms)
        new = (queue, stamp, flag, body, tail, due_ms, hashes, None)
        ((offset, position, _, _),) = self._queues.stage([new])
        self.has_staged = True
        self._joined.append(Due(due_ms, line.number, offset))
        if retry is not None:
            self._retries[where_of(line.number, offset)] = retry
        self._joins_ms = min(self._joins_ms, due_ms)
        return offset, position

    def leave(self, due: Due, retry: Retry | None = None) -> None:
        """Note that the message of :meth:`first` is staged in its real topic."""
        self._waiting.drop_first()
        self._lines[due.line].leaving = due.place
        self.has_staged = True
        self._left.append(due)
        self._leaving += 1
        if retry is not None:
            self._retries[where_of(due.line, due.offset)] = retry

    def pass_over(self) -> None:
        """Skip the message of :meth:`first`, which cannot be delivered.

        A restart finds it in its line again unless a later message has left.
        """
        self._waiting.drop_first()

    def recall(self, due: Due, postmark: Postmark, data: bytes, retry: Retry | None = None) -> None:
        """Stage the recall of a delayed message."""
        queue = self.line(RECALLS).queue
        where = where_of(due.line, due.offset)
        tail = records.tail_of(records.topic_field(queue.topic), data)
        stamp = (*postmark[:6], where)
        self._queues.stage([(queue, stamp, 0, b"recalled", tail, where, (), None)])
        self._going.add(where)
        self.has_staged = True
        self._recalled.append(due)
        if retry is not None:
            self._retries[where] = retry

    def is_recalled(self, due: Due) -> bool:
        """Return true if the store remembers a recall of the message."""
        where = where_of(due.line, due.offset)
        return where in self._gone or where in self._going

    def was_recalled(self, due: Due, position: int) -> bool:
        """Search for a recall of the message at a position; return true if one exists.

        Raises:
            CorruptRecord: An index file differs from what was written.
        """
        where, segment = where_of(due.line, due.offset), self._log.file_at(position)
        return any(self.line(RECALLS).queue.with_code(where, segment))

    # Due messages

    @property
    def is_delivering(self) -> bool:
        """True while copies of messages that left their lines are not durable yet.

        Until then no other message leaves. Otherwise a crash could lose a message and keep a later
        one of the same line, and the line would count both as delivered.
        """
        return self._leaving > 0

    def found_from(
        self, start: ListPlace, is_wanted: Callable[[int], bool], count: int, budget: int
    ) -> FoundDue:
        """Some waiting messages; see :meth:`DueMessages.found_from`."""
        return self._waiting.found_from(start, is_wanted, count, budget)

    def next_ms(self) -> int | None:
        """Return the time at which to look for due messages again."""
        return self._waiting.next_ms()

    def first(self, now_ms: int) -> Due | None:
        """The first due message, if one may leave now."""
        while (due := self._waiting.first(now_ms)) is not None:
            where = where_of(due.line, due.offset)
            if where in self._gone:
                self._waiting.drop_first()
                continue
            # A due message must not overtake messages that are about to join: if a crash lost only
            # those, their line would count them as delivered.
            joins_ms = min(self._joins_ms, *self._unsafe) if self._unsafe else self._joins_ms
            return None if due.due_ms >= joins_ms or where in self._going else due
        return None

    def read(self, due: Due) -> Record:
        """The record of a delayed message.

        Raises:
            CorruptRecord: It differs from the stored message.
            ServiceUnavailable: Its index cannot be read; the log still has the message.
        """
        try:
            ((position, size, _, checksum),) = self._lines[due.line].queue.read(due.offset, 1)
        except CorruptRecord as error:
            raise ServiceUnavailable(str(error)) from error
        data = self._log.read(position, size)
        if crc32(data) != checksum:
            raise CorruptRecord(position, "a waiting message differs from what was stored")
        try:
            return records.unpack(data)[0]
        except RemoteProtocolError as error:
            raise CorruptRecord(position, str(error)) from error

    def record_at(self, position: int) -> Record | None:
        """The record at a position from the key index; ``None`` if its file was deleted.

        Raises:
            CorruptRecord: It is damaged.
        """
        if position < self._log.start:
            return None
        data = self._log.bytes_at(position)
        try:
            if data is not None:
                return records.unpack(data)[0]
        except RemoteProtocolError as error:
            raise CorruptRecord(position, str(error)) from error
        raise CorruptRecord(position, "a waiting message differs from what was stored")

    # After the write

    def take_staged(self) -> Delayed:
        """Return the changes that were staged since the last call."""
        staged = Delayed(self._joined, self._left, self._recalled, self._retries)
        self._joined, self._left, self._recalled, self._retries = [], [], [], {}
        self._unsafe.append(self._joins_ms)
        self._joins_ms = _NEVER
        self.has_staged = False
        return staged

    def take_back(self, staged: Delayed) -> None:
        """Undo the staged changes, because the write failed."""
        self._unsafe.pop()
        self._leaving -= len(staged.left)
        for due in staged.left:
            self._waiting.add(*due)
            line = self._lines[due.line]
            line.leaving = line.left
        self._going -= {where_of(due.line, due.offset) for due in staged.recalled}

    def publish(self, staged: Delayed, end: int) -> None:
        """Apply the changes of a durable span that ends at ``end``."""
        self._unsafe.popleft()
        for due in staged.joined:
            self._waiting.add(*due)
        if staged.left:
            self._leaving -= len(staged.left)
            places = {due.line: due.place for due in staged.left}
            self._marks.append((end, places))
            for number, place in places.items():
                self._lines[number].left = place
        for due in staged.recalled:
            where = where_of(due.line, due.offset)
            self._going.discard(where)
            self._gone.add(where)
        if staged.retries:
            self._count(staged)

    # Retries

    def waiting_retries(self) -> RetryTally | None:
        """The messages that wait for retries; ``None`` until :meth:`count_retries` has finished."""
        return self._waiting_retries if self._is_counted else None

    def count_retries(self, most: int) -> bool:
        """Count some of the retries that waited at the start; returns whether any are left.

        A queue entry does not show whether its message is a retry, so each message is read.
        """
        # What is staged to leave is counted: it is removed when it is written, or stays.
        leaving = {where_of(due.line, due.offset) for due in (*self._left, *self._recalled)}
        for number, places in self._uncounted.items():
            # Retries wait for a delay level; they are on the wheel only if the clock was set back.
            if not places or self._is_wheel(number):
                continue
            line = self._lines[number]
            start = min(line.queue.next_kept(places.start), places.stop)
            entries = line.queue.read(start, min(most, places.stop - start))
            for offset, entry in enumerate(entries, start):
                is_leaving = where_of(number, offset) in leaving
                if (is_leaving or self._still_waits(line, offset, entry)) and (
                    retry := self._retry_at(entry)
                ):
                    self._waiting_retries.add(retry)
            end = places.stop if not entries else start + len(entries)
            self._uncounted[number] = range(end, places.stop)
            return True
        self._is_counted = True
        return False

    def _still_waits(self, line: Line, offset: int, entry: Entry) -> bool:
        next_ms = self._waiting.next_ms()
        return (
            (entry[2], offset) > line.left
            and next_ms is not None
            and entry[2] >= next_ms
            and where_of(line.number, offset) not in self._gone
        )

    def _retry_at(self, entry: Entry) -> Retry | None:
        position, size = entry[:2]
        try:
            waited, _ = records.unpack(self._log.read(position, size))
        except (CorruptRecord, RemoteProtocolError):
            return None
        name = properties.find(waited.properties, properties.REAL_TOPIC) or ""
        return retry_of(name, waited.attempts, waited.properties)

    def _count(self, staged: Delayed) -> None:
        retries, counts = staged.retries, self._waiting_retries
        for due in staged.joined:
            if retry := retries.get(where_of(due.line, due.offset)):
                counts.add(retry)
        for due in (*staged.left, *staged.recalled):
            retry = retries.get(where_of(due.line, due.offset))
            if retry and due.offset not in self._uncounted.get(due.line, ()):
                counts.remove(retry)

    # Recovery

    def loaded(self, states: Iterable[LineState]) -> None:
        """Load the states of the lines from a checkpoint."""
        for state in states:
            line = self.line(state.number)
            line.saved = LinePlace(state.due_ms, state.offset)
            line.first = state.first

    def found(self, record: Record) -> None:
        """Add a message found in the log: a delayed one, or the copy of a delivered one.

        Other records that name a prepared message are ignored.
        """
        if record.topic in WAITING_TOPICS:
            self.line_of(record.topic, record.queue_id)
            return
        data = self._log.bytes_at(record.prepared_position)
        if data is None:
            return  # Its file was deleted after all its messages had left.
        try:
            waited, _ = records.unpack(data)
        except RemoteProtocolError:
            return  # A damaged message cannot be delivered anyway.
        line = self.line_of(waited.topic, waited.queue_id)
        if line is not None:
            line.saved = max(line.saved, LinePlace(waited.prepared_position, waited.queue_offset))

    def recovered(self) -> None:
        """Find the waiting messages, now that the end of the log is known."""
        recalls = self.line(RECALLS)
        recalled = [entry[2] for _, entry in _entries(recalls)]
        self._gone = {where for where in recalled if not self._is_behind(where)}
        for line in self._lines.values():
            line.left = line.leaving = line.saved
            if line is recalls:
                continue
            number, last = line.number, line.left
            self._uncounted[number] = range(line.first, line.queue.max_offset)
            for offset, entry in _entries(line):
                if (entry[2], offset) > last:
                    self._waiting.add(entry[2], number, offset)

    # Checkpoints and retention

    def states_before(self, end: int) -> list[LineState]:
        """The states of the lines for a checkpoint that ends at a position of the log."""
        while self._marks and self._marks[0][0] <= end:
            for number, place in self._marks.popleft()[1].items():
                line = self._lines[number]
                line.saved = max(line.saved, place)
        # The line of recalls comes last: a recall is kept as long as its message may be read.
        for number in sorted(self._lines):
            self._advance(self._lines[number], end)
        return [LineState(line.number, *line.saved, line.first) for line in self._lines.values()]

    def _advance(self, line: Line, end: int) -> None:
        for offset, entry in _entries(line):
            # A crash may lose the entries after the end; their offsets are then assigned again.
            if entry[0] >= end or not self._is_over(line, offset, entry[2]):
                return
            line.first = offset + 1

    def _is_over(self, line: Line, offset: int, code: int) -> bool:
        """Return true if an entry of a line is no longer needed; if so, also forget its recall."""
        if line.number == RECALLS:
            where = code
            is_over = self._is_behind(where)
        else:
            where = where_of(line.number, offset)
            next_ms = self._waiting.next_ms()
            is_over = (code, offset) <= line.saved or (
                # A recalled message stays in its line until it is due.
                where in self._gone and (next_ms is None or code < next_ms)
            )
        if is_over:
            self._gone.discard(where)
        return is_over

    def _is_behind(self, where: int) -> bool:
        number, offset = split_where(where)
        return offset < self.line(number).first

    def pinned(self) -> int | None:
        """The oldest position that a delayed message needs, or ``None`` if no message waits."""
        found: int | None = None
        for line in self._lines.values():
            if line.number == RECALLS:
                continue
            queue = line.queue
            entries = queue.read(queue.next_kept(max(line.first, queue.min_offset)), 1)
            if entries:
                found = entries[0][0] if found is None else min(found, entries[0][0])
        return found


def _entries(line: Line) -> Iterator[tuple[int, Entry]]:
    """The entries that may still wait; files may have been deleted since the last call."""
    queue = line.queue
    offset = line.first = queue.next_kept(max(line.first, queue.min_offset))
    while entries := queue.read(offset, _READ_AT_ONCE):
        for entry in entries:
            yield offset, entry
            offset += 1
        offset = queue.next_kept(offset)
