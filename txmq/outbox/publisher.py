"""Sends rows to a broker in batches and in order, handles failures, and deletes published rows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import Final

from txmq.client.routes import MASTER, queue_of_key
from txmq.client.send.producer import Producer
from txmq.databases.failures import words
from txmq.errors import (
    BatchCutShort,
    BrokerBusy,
    FlowControlled,
    LimitExceeded,
    LocalProtocolError,
    MessageIllegal,
    NoPermission,
    ServiceUnavailable,
    TopicNotFound,
    TransportError,
    TxmqError,
    UsageError,
)
from txmq.limits import REASON_CHARS_MAX
from txmq.message import Message, Queue
from txmq.outbox.lanes import Lanes, OutboxRow, RowBatch, Slots
from txmq.outbox.metrics import RelayTally
from txmq.outbox.settings import RelaySettings
from txmq.outbox.store import OutboxStore
from txmq.protocol import properties
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.tasks import Tasks

__all__ = ["PublishedRows", "Publisher", "SendFailure", "classify"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0


class SendFailure(Enum):
    """The cause of a failed send, which decides how to handle it."""

    MESSAGE = "message"
    """The message: brokers will always refuse it."""
    TOPIC = "topic"
    """The topic: brokers refuse all its messages until an operator changes something."""
    UNCERTAIN = "uncertain"
    """Perhaps the message: it is sent again, and its attempts are counted."""
    OUTAGE = "outage"
    """No broker answers, or it is busy: the message is sent again until one accepts it."""


def classify(error: BaseException) -> SendFailure:
    """The cause of a failed send, from its error. Pure."""
    if isinstance(error, LocalProtocolError | LimitExceeded | MessageIllegal):
        return SendFailure.MESSAGE
    if isinstance(error, TopicNotFound | NoPermission):
        # A name server that has just started also reports existing topics as missing.
        return SendFailure.TOPIC
    # UsageError: no name server answered in time with the queues.
    outage = (
        TransportError
        | BrokerBusy
        | ServiceUnavailable
        | FlowControlled
        | UsageError
        | TimeoutError
    )
    return SendFailure.OUTAGE if isinstance(error, outage) else SendFailure.UNCERTAIN


class Publisher:
    """Sends the rows that the lanes release.

    Args:
        lanes: The rows in memory.
        slots: The leased slots.
        producer: Sends the messages.
        store: Records the reason of a permanent failure.
        published: Deletes published rows.
        settings: The size of batches, and the handling of messages that every broker refuses.
        clock: The source of the time.
        entropy: The source of randomness.
        send_ended: Called when a batch has ended, sent or not.
    """

    def __init__(
        self,
        lanes: Lanes,
        slots: Slots,
        producer: Producer,
        store: OutboxStore,
        published: PublishedRows,
        settings: RelaySettings,
        clock: Clock,
        entropy: Entropy,
        send_ended: Callable[[object], None],
    ) -> None:
        self._lanes = lanes
        self._slots = slots
        self._producer = producer
        self._store = store
        self._published = published
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._send_ended = send_ended
        self._backoffs: dict[str, Backoff] = {}
        self._tasks = Tasks()
        self.tally: RelayTally = RelayTally()

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self) -> None:
        """Start all sends that are possible now."""
        while len(self._tasks) < self._settings.sends_max:
            now = self._clock.monotonic()
            if not self._slots.are_safe(now + self._producer.settings.timeout):
                return  # The lease could end before the send does.
            if (batch := self._lanes.take(now)) is None:
                return
            task = self._tasks.start(self._publish(batch), "sending rows of an outbox")
            task.add_done_callback(self._send_ended)

    async def stop(self) -> None:
        """Cancel all sends."""
        await self._tasks.stop()

    async def _publish(self, batch: RowBatch) -> None:
        if not batch.is_laned:
            await self._deliver(batch.topic, batch.rows, None)
            return
        try:
            queues = await self._writable_queues(batch.topic)
            parts: dict[Queue, list[OutboxRow]] = {}
            for row in batch.rows:
                parts.setdefault(queue_of_key(queues, str(row.lane)), []).append(row)
        except (TxmqError, TimeoutError) as error:
            await self._handle_failure(batch.topic, batch.rows, error)
            return
        if len(parts) == 1:
            ((queue, rows),) = parts.items()
            await self._deliver(batch.topic, rows, queue)
        else:
            await asyncio.gather(
                *[self._deliver(batch.topic, rows, queue) for queue, rows in parts.items()]
            )

    async def _writable_queues(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic; each lane uses one of them, as ``send_ordered`` does."""
        session, settings = self._producer.client.session, self._producer.settings
        route = session.known_route_to_write(topic)
        if route is None:
            async with asyncio.timeout(settings.timeout):
                route = await session.route_to_write(topic, settings.queues_of_new_topics)
        return route.queues_to_write()

    async def _deliver(self, topic: str, rows: list[OutboxRow], queue: Queue | None) -> None:
        messages = [row.message for row in rows if row.message is not None]
        if len(messages) < len(rows):
            await self._handle_failure(topic, rows, LocalProtocolError(rows[0].problem))
            return
        try:
            if len(messages) == 1:
                await self._producer.send(messages[0], queue)
            else:
                await self._producer.send_batch(messages, queue)
        except BatchCutShort as cut:
            count = len(cut.results)
            self._complete(topic, rows[:count])
            await self._handle_failure(topic, rows[count:], cut.__cause__ or cut)
        except TxmqError as error:
            await self._handle_failure(topic, rows, error)
        except Exception as error:
            log.exception("could not send rows of topic %s", topic)
            await self._handle_failure(topic, rows, error)
        else:
            self._complete(topic, rows)

    def _complete(self, topic: str, rows: list[OutboxRow]) -> None:
        self.tally.published += len(rows)
        self.tally.requests += 1
        self._backoffs.pop(topic, None)
        self._lanes.works(topic)
        # Add the rows before they leave memory; otherwise they could be read again.
        self._published.add(rows)
        self._lanes.land(rows)

    # Failures

    async def _handle_failure(
        self, topic: str, rows: list[OutboxRow], error: BaseException
    ) -> None:
        cause = classify(error)
        if isinstance(error, TopicNotFound) and await self._has_no_leaders():
            cause = SendFailure.OUTAGE
        if cause is SendFailure.MESSAGE:
            await self._isolate(topic, rows, error)
            return
        if cause is not SendFailure.OUTAGE:
            for row in rows:
                row.attempts += 1
        if cause is SendFailure.UNCERTAIN and len(rows) > 1:
            for row in rows:
                row.is_alone = True
        self._pause(topic, error)
        spent = [row for row in rows if row.attempts >= self._settings.attempts_max]
        if spent and len(rows) == 1:
            await self._give_up(rows[0], error)
            return
        for row in spent:
            row.is_alone = True
        self._defer(rows)

    async def _has_no_leaders(self) -> bool:
        """True if the name servers know no leader, and so may report every topic as missing."""
        try:
            async with asyncio.timeout(self._producer.settings.timeout):
                brokers = await self._producer.client.admin.cluster()
                return not any(MASTER in broker.addresses for broker in brokers)
        except (TxmqError, TimeoutError) as error:
            return classify(error) is SendFailure.OUTAGE

    async def _isolate(self, topic: str, rows: list[OutboxRow], error: BaseException) -> None:
        """A message of this batch can never be sent: send each one alone to find it."""
        if len(rows) == 1:
            await self._give_up(rows[0], error)
            return
        log.info("a batch of %d for topic %s is sent one by one: %s", len(rows), topic, error)
        for row in rows:
            row.is_alone = True
        self._defer(rows)

    def _pause(self, topic: str, error: BaseException) -> None:
        backoff = self._backoffs.get(topic)
        if backoff is None:
            backoff = self._backoffs[topic] = Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            log.warning("sends to topic %s are paused: %s", topic, error)
        now = self._clock.monotonic()
        if not self._lanes.is_paused(topic, now):  # Several sends may fail for one reason.
            self._lanes.pause(topic, now + backoff.next_pause())

    def _defer(self, rows: Sequence[OutboxRow]) -> None:
        self.tally.deferred += len(rows)
        self._lanes.give_back(rows)

    async def _give_up(self, row: OutboxRow, error: BaseException) -> None:
        """Apply ``on_poison`` to a message that every broker refuses."""
        self.tally.failed += 1
        why = properties.one_line(f"{type(error).__name__}: {error}", REASON_CHARS_MAX)
        name = f"row {row.id} for topic {row.topic}" + (f", lane {row.lane}" if row.lane else "")
        policy = self._settings.on_poison
        try:
            if policy == "skip":
                if await self._store.put_aside(row.id, why):
                    log.error("%s is put aside: %s", name, why)
                self._published.gone.add(row.id)
                self._lanes.land([row])
                return
            if policy == "dead_letter" and row.message is not None:
                await self._send_dead_letter(row, row.message, why)
                log.error("%s is a dead letter: %s", name, why)
                return
        except TxmqError as worse:
            why = properties.one_line(f"{why}; as a dead letter: {worse}", REASON_CHARS_MAX)
            if classify(worse) is SendFailure.OUTAGE:
                self._pause(row.topic, worse)
                self._defer([row])
                return
        except self._store.problems as worse:
            self._pause(row.topic, worse)
            self._defer([row])
            return
        await self._block(row, name, why)

    async def _send_dead_letter(self, row: OutboxRow, message: Message, why: str) -> None:
        dead_properties = {
            **{
                name: value
                for name, value in message.properties.items()
                if name not in properties.DELAYS
            },
            properties.DEAD_TOPIC: row.topic,
            properties.DEAD_REASON: why,
            properties.DEAD_ID: message.properties[properties.UNIQUE_KEY],
        }
        await self._producer.send(
            replace(
                message,
                topic=self._settings.dead_letter_topic,
                properties=dead_properties,
                delay_level=0,
                deliver_at_ms=None,
                deliver_after=None,
            )
        )
        self.tally.dead_letters += 1
        self._published.add([row])
        self._lanes.land([row])

    async def _block(self, row: OutboxRow, name: str, why: str) -> None:
        log.error("no broker takes %s, so it waits: %s", name, why)
        try:
            await self._store.note(row.id, why)
        except self._store.problems as worse:
            log.warning("could not record why %s waits: %s", name, worse)
        self._lanes.rest(row, self._clock.monotonic() + self._settings.blocked_interval)


REMOVED_TOGETHER: Final = 2_000
LINGER_S: Final = 0.01
"""Deletes wait this long to share a commit: no caller waits for them."""


class PublishedRows:
    """Rows whose messages a broker has stored, until they are deleted from the table.

    Args:
        store: The database.
        backoff: The pauses after failures.
        missed: Called when some rows were gone already, or belong to another relay.
    """

    def __init__(self, store: OutboxStore, backoff: Backoff, missed: Callable[[], None]) -> None:
        self._store = store
        self._backoff = backoff
        self._missed = missed
        self._slots: dict[int, int] = {}
        self._of_slot: Counter[int] = Counter()
        self._wanted = asyncio.Event()
        self.idle: asyncio.Event = asyncio.Event()
        """Set while no row is left to delete."""
        self.idle.set()
        self.gone: set[int] = set()
        """Rows deleted or set aside since the current read began: that read may still return them.
        """

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._slots or row_id in self.gone

    def add(self, rows: Iterable[OutboxRow]) -> None:
        """Delete these rows soon: a broker has stored their messages."""
        for row in rows:
            if row.id not in self._slots:
                self._slots[row.id] = row.slot
                self._of_slot[row.slot] += 1
        self.idle.clear()
        self._wanted.set()

    def drop(self, ids: Iterable[int]) -> None:
        """Forget rows that are deleted, or that belong to another relay now."""
        for row_id in ids:
            self._of_slot[self._slots.pop(row_id)] -= 1
            self.gone.add(row_id)

    def between(self, low: int, high: int) -> list[int]:
        """The ids after ``low``, up to ``high``."""
        return [row_id for row_id in self._slots if low < row_id <= high]

    def is_clear(self, slot: int) -> bool:
        """True if no row of a slot is left to delete."""
        return not self._of_slot[slot]

    async def run(self) -> None:
        """Delete rows until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(LINGER_S)
            ids = list(islice(self._slots, REMOVED_TOGETHER))
            try:
                removed = await self._store.remove(ids)
            except self._store.problems as error:
                log.warning("published rows stay in the outbox for now: %s", words(error))
                await asyncio.sleep(self._backoff.next_pause())
                continue
            self._backoff.reset()
            self.drop(ids)
            if removed < len(ids):
                self._missed()
            if not self._slots:
                self._wanted.clear()
                self.idle.set()
