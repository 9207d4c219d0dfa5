"""How rows become messages that a broker has: in batches, in order, and what follows a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from txmq.client.queue_choice import queue_of_key
from txmq.client.send.producer import Producer
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
from txmq.outbox.finishing import Done
from txmq.outbox.lanes import Lanes, Load, Row
from txmq.outbox.ledger import Ledger
from txmq.outbox.settings import RelaySettings
from txmq.protocol import properties
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.tasks import Tasks

__all__ = ["Carrying", "Counts", "Fault", "fault"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0


class Fault(Enum):
    """Whose fault it is that a message was not stored."""

    MESSAGE = "message"
    """The same will be refused for ever."""
    TOPIC = "topic"
    """All that goes there will be, until somebody does something about it."""
    PERHAPS = "perhaps"
    """Nobody can tell; it is tried again, and counted."""
    TIMES = "times"
    """Nobody is there, or has time; it is tried again for ever."""


def fault(problem: BaseException) -> Fault:
    """Whose fault it is, by what was raised. Pure."""
    if isinstance(problem, LocalProtocolError | LimitExceeded | MessageIllegal):
        return Fault.MESSAGE
    if isinstance(problem, TopicNotFound | NoPermission):
        # A name server that has just started says so as well, of topics that are there.
        return Fault.TOPIC
    # Where no name server says in time where the queues are, it is that.
    passing = (
        TransportError
        | BrokerBusy
        | ServiceUnavailable
        | FlowControlled
        | UsageError
        | TimeoutError
    )
    return Fault.TIMES if isinstance(problem, passing) else Fault.PERHAPS


class Counts:
    """What has been done."""

    def __init__(self) -> None:
        self.published = 0
        self.requests = 0
        self.deferred = 0
        self.failed = 0
        self.dead_letters = 0


class Carrying:
    """Sends what lanes let go.

    Args:
        lanes: The rows at hand.
        producer: Who sends.
        ledger: Where it is noted what nobody takes.
        done: The rows that are not to be read again.
        settings: How much at once, and what to do with what nobody takes.
        clock: Where the time comes from.
        entropy: Where chance comes from.
        published: Called with rows that a broker has.
        landed: Called when something has landed, however.
    """

    def __init__(
        self,
        lanes: Lanes,
        producer: Producer,
        ledger: Ledger,
        done: Done,
        settings: RelaySettings,
        clock: Clock,
        entropy: Entropy,
        published: Callable[[Sequence[Row]], None],
        landed: Callable[[], None],
    ) -> None:
        self._lanes = lanes
        self._producer = producer
        self._ledger = ledger
        self._done = done
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._published = published
        self._landed = landed
        self._backoffs: dict[str, Backoff] = {}
        self._tasks = Tasks()
        self.counts = Counts()

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self, may_send: Callable[[float], bool]) -> None:
        """Let go what may go now.

        Args:
            may_send: Whether a send may begin at a time; it has an answer soon enough then.
        """
        while len(self._tasks) < self._settings.sends_max:
            now = self._clock.monotonic()
            if not may_send(now) or (load := self._lanes.take(now)) is None:
                return
            self._tasks.start(self._carry(load), "sending rows of an outbox").add_done_callback(
                lambda _: self._landed()
            )

    async def stop(self) -> None:
        """Wait for nothing any more."""
        await self._tasks.stop()

    async def _carry(self, load: Load) -> None:
        if not load.is_laned:
            await self._deliver(load.topic, load.rows, None)
            return
        try:
            queues = await self._writable(load.topic)
            parts: dict[Queue, list[Row]] = {}
            for each in load.rows:
                parts.setdefault(queue_of_key(queues, str(each.lane)), []).append(each)
        except (TxmqError, TimeoutError) as problem:
            await self._failed(load.topic, load.rows, problem)
            return
        if len(parts) == 1:
            ((queue, rows),) = parts.items()
            await self._deliver(load.topic, rows, queue)
        else:
            await asyncio.gather(
                *[self._deliver(load.topic, rows, queue) for queue, rows in parts.items()]
            )

    async def _writable(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic, of which each lane has one, as with ``send_ordered``."""
        session, settings = self._producer.client.session, self._producer.settings
        route = session.known_route(topic)
        if route is None:
            async with asyncio.timeout(settings.timeout_s):
                route = await session.route_to_write(topic, settings.queues_of_new_topics)
        return route.writable

    async def _deliver(self, topic: str, rows: list[Row], queue: Queue | None) -> None:
        try:
            await self._post(rows, queue)
        except BatchCutShort as cut:
            count = len(cut.results)
            self._have_been_sent(topic, rows[:count])
            await self._failed(topic, rows[count:], cut.__cause__ or cut)
        except TxmqError as problem:
            await self._failed(topic, rows, problem)
        except Exception as problem:
            log.exception("rows of topic %s could not be sent", topic)
            await self._failed(topic, rows, problem)
        else:
            self._have_been_sent(topic, rows)

    async def _post(self, rows: list[Row], queue: Queue | None) -> None:
        messages = [each.message for each in rows if each.message is not None]
        if len(messages) < len(rows):
            raise LocalProtocolError(rows[0].problem)
        if len(messages) == 1:
            await self._producer.send(messages[0], queue)
        else:
            await self._producer.send_batch(messages, queue)

    def _have_been_sent(self, topic: str, rows: list[Row]) -> None:
        self.counts.published += len(rows)
        self.counts.requests += 1
        self._backoffs.pop(topic, None)
        self._lanes.works(topic)
        # First: as soon as they are not at hand any more they could be read again.
        self._published(rows)
        self._lanes.land(rows)

    # What was not sent

    async def _failed(self, topic: str, rows: list[Row], problem: BaseException) -> None:
        why = fault(problem)
        if isinstance(problem, TopicNotFound) and await self._nobody_is_there():
            why = Fault.TIMES
        if why is Fault.MESSAGE:
            await self._one_is_wrong(topic, rows, problem)
            return
        if why is not Fault.TIMES:
            for each in rows:
                each.attempts += 1
        if why is Fault.PERHAPS and len(rows) > 1:
            for each in rows:
                each.is_alone = True
        self._pause(topic, problem)
        spent = [each for each in rows if each.attempts >= self._settings.attempts_max]
        if spent and len(rows) == 1:
            await self._give_up(rows[0], problem)
            return
        for each in spent:
            each.is_alone = True
        self._defer(rows)

    async def _nobody_is_there(self) -> bool:
        """Whether the name servers know of no broker: to them all topics of one that is down are
        missing.
        """
        try:
            async with asyncio.timeout(self._producer.settings.timeout_s):
                return not await self._producer.client.admin.cluster()
        except (TxmqError, TimeoutError) as problem:
            return fault(problem) is Fault.TIMES

    async def _one_is_wrong(self, topic: str, rows: list[Row], problem: BaseException) -> None:
        if len(rows) == 1:
            await self._give_up(rows[0], problem)
            return
        log.info("a batch of %d for topic %s is sent one by one: %s", len(rows), topic, problem)
        for each in rows:
            each.is_alone = True
        self._defer(rows)

    def _pause(self, topic: str, problem: BaseException) -> None:
        backoff = self._backoffs.get(topic)
        if backoff is None:
            backoff = self._backoffs[topic] = Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            log.warning("topic %s has to wait: %s", topic, problem)
        now = self._clock.monotonic()
        if not self._lanes.is_paused(topic, now):  # Many fail at once, of one reason.
            self._lanes.pause(topic, now + backoff.failed())

    def _defer(self, rows: Sequence[Row]) -> None:
        self.counts.deferred += len(rows)
        self._lanes.give_back(rows)

    async def _give_up(self, row: Row, problem: BaseException) -> None:
        """Nobody takes this one: do what was chosen for it."""
        self.counts.failed += 1
        why = properties.one_line(f"{type(problem).__name__}: {problem}", REASON_CHARS_MAX)
        named = f"row {row.id} for topic {row.topic}" + (f", lane {row.lane}" if row.lane else "")
        chosen = self._settings.on_poison
        try:
            if chosen == "skip":
                if await self._ledger.put_aside(row.id, why):
                    log.error("%s is put aside: %s", named, why)
                self._done.gone.add(row.id)
                self._lanes.land([row])
                return
            if chosen == "dead_letter" and row.message is not None:
                await self._bury(row, row.message, why)
                log.error("%s is a dead letter: %s", named, why)
                return
        except TxmqError as worse:
            why = properties.one_line(f"{why}; as a dead letter: {worse}", REASON_CHARS_MAX)
            if fault(worse) is Fault.TIMES:
                self._pause(row.topic, worse)
                self._defer([row])
                return
        except self._ledger.problems as worse:
            self._pause(row.topic, worse)
            self._defer([row])
            return
        await self._block(row, named, why)

    async def _bury(self, row: Row, message: Message, why: str) -> None:
        named = {
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
                properties=named,
                delay_level=0,
                deliver_at_ms=None,
                deliver_after_s=None,
            )
        )
        self.counts.dead_letters += 1
        self._published([row])
        self._lanes.land([row])

    async def _block(self, row: Row, named: str, why: str) -> None:
        log.error("%s is taken by nobody, and waits: %s", named, why)
        try:
            await self._ledger.note(row.id, why)
        except self._ledger.problems as worse:
            log.warning("it is not noted why %s waits: %s", named, worse)
        self._lanes.rest(row, self._clock.monotonic() + self._settings.blocked_s)
