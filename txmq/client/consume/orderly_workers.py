"""Orderly consumption: each queue's messages one after the other, in stored order.

A queue is consumed only while the broker keeps it locked for this client. After a lost lock another
consumer may have advanced, so the queue is released and taken again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from txmq.client.consume.assignment import MessageSink
from txmq.client.consume.concurrent_workers import SendBack
from txmq.client.consume.fetcher import QueueFetcher
from txmq.client.consume.handler import BoundHandler, Verdict, named, no_handler, stop_notice
from txmq.client.session import Session
from txmq.client.settings import ConsumerSettings
from txmq.errors import TxmqError
from txmq.message import DEAD_LETTER, Later, Queue, ReceivedMessage
from txmq.protocol.bodies import LockedQueues, LockRequest, MessageQueue
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.runtime.tasks import Tasks
from txmq.text import quantity

__all__ = ["HeldLocks", "OrderlyWorkers"]

log = logging.getLogger(__name__)

SUSPEND_MOST_S: Final = 30.0
"""The longest pause of a queue after a failure, as in stock clients."""

RENEW_S: Final = 20.0
"""How often locks are renewed, as in stock clients; a broker keeps them for 60 s."""

LOCK_S: Final = 30.0
"""How long a lock is trusted after it was last confirmed."""


class _QueueLine:
    """The waiting messages of one queue, and the task that handles them."""

    def __init__(self, fetcher: QueueFetcher) -> None:
        self.fetcher = fetcher
        self.waiting: deque[ReceivedMessage] = deque()
        self.some = asyncio.Event()
        self.is_idle = True
        self.idle = asyncio.Event()
        self.left = asyncio.Event()
        self.is_stopping = False
        self.is_given_up = False
        self.task: asyncio.Task[None] | None = None

    async def rest(self, seconds: float) -> None:
        """Wait, unless the queue is released or the consumer stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.left.wait()

    async def until_idle(self, *, is_done: bool) -> None:
        """Wait until no handler is running; with ``is_done``, until no message waits either."""
        while not self.is_given_up and (not self.is_idle or (is_done and self.waiting)):
            self.idle.clear()
            await self.idle.wait()

    def stop(self) -> None:
        """Leave messages that fail from now on to the queue's next consumer."""
        self.is_stopping = True
        self.left.set()

    def give_up(self) -> None:
        """Wake the callers of :meth:`until_idle`, although a handler still runs."""
        self.is_given_up = True
        self.idle.set()


class OrderlyWorkers(MessageSink):
    """Handles each queue in order, several queues concurrently.

    Args:
        settings: The concurrency, the pause after a failure, and the maximum number of attempts.
        handlers: The handlers by topic.
        send_back: Sends back messages that failed too often.
        locks: The locks of the queues; ``None`` for a broadcast consumer, which needs none.
        lose: Releases a queue whose lock is lost.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        handlers: Mapping[str, BoundHandler],
        send_back: SendBack,
        locks: HeldLocks | None,
        lose: Callable[[Queue], object],
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._send_back = send_back
        self._locks = locks
        self._lose = lose
        self._lines: dict[Queue, _QueueLine] = {}
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._tasks = Tasks()

    def open(self) -> None:
        """Start to renew locks."""
        if self._locks is not None:
            self._tasks.start(self._locks.renew_always(self._lose), "locks of queues")

    # Called by QueueAssignment

    async def may_hold(self, queue: Queue) -> bool:
        """Whether the broker has locked the queue for us."""
        return self._locks is None or await self._locks.take(queue)

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Put messages at the end of their queue's line."""
        if fetcher.is_dropped:
            return
        line = self._lines.get(fetcher.queue)
        if line is None:
            line = self._lines[fetcher.queue] = _QueueLine(fetcher)
            line.task = self._tasks.start(self._work(line), f"work on {fetcher.queue}")
        line.waiting.extend(messages)
        line.some.set()

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Let the running handler finish, however long it takes, unless the consumer is stopped.

        Until then no other consumer may start the queue, so its lock is kept.
        """
        line = self._lines.get(fetcher.queue)
        if line is None:
            return
        line.waiting.clear()
        line.left.set()
        line.idle.set()
        assert line.task is not None
        try:
            await line.until_idle(is_done=False)
            if not line.is_idle:
                log.warning("a handler still works on %s, which is given up", fetcher.queue)
        finally:
            line.task.cancel()
            del self._lines[fetcher.queue]
        # A cancelled handler may need time to clean up.
        await asyncio.wait([line.task])

    async def gone(self, queue: Queue) -> None:
        """Release the lock, so that the next consumer need not wait for it to expire."""
        if self._locks is not None:
            await self._locks.give_back(queue)

    async def finish(self) -> None:
        """Wait up to ``stop_timeout`` until all delivered messages are handled.

        A message that fails is not retried, and it blocks the messages behind it.
        """
        for line in self._lines.values():
            line.stop()
        with suppress(TimeoutError), stop_notice(self._settings.stop_timeout):
            async with asyncio.timeout(self._settings.stop_timeout):
                for line in list(self._lines.values()):
                    await line.until_idle(is_done=True)
        for line in self._lines.values():
            line.give_up()

    async def close(self) -> None:
        """Stop; running handlers are cancelled."""
        await self._tasks.stop()
        if self._locks is not None:
            # Locks of queues that were locked but never started.
            await self._locks.give_back_all()

    # Work

    async def _work(self, line: _QueueLine) -> None:
        while True:
            while not line.waiting:
                line.some.clear()
                await line.some.wait()
            line.is_idle = False
            try:
                await self._consume(line)
            finally:
                line.is_idle = True
                line.idle.set()

    async def _consume(self, line: _QueueLine) -> None:
        """Run all attempts of one message or batch."""
        fetcher, waiting = line.fetcher, line.waiting
        handler = self._handlers.get(waiting[0].topic)
        count = self._settings.batch_max if handler is not None and handler.takes_batch else 1
        taken = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        while taken:
            async with self._slots:
                # Checked here, because the wait for a free slot may have been long.
                if not self._is_ours(fetcher):
                    return
                verdict: Verdict
                if handler is None:
                    verdict = Later(reason=no_handler(taken[0]))
                    log.warning("%s: %s", verdict.reason, named(taken))
                else:
                    verdict = await handler.judge(taken)
            if verdict is None:
                fetcher.end(taken)
                return
            fetcher.end(taken[: verdict.first])
            taken = await self._failed(fetcher, taken[verdict.first :], verdict)
            if taken:
                rest_s = verdict.suspend
                rest_s = self._settings.suspend if rest_s is None else rest_s
                await line.rest(min(rest_s, SUSPEND_MOST_S))
                if line.is_stopping:
                    waiting.clear()
                    return

    def _is_ours(self, fetcher: QueueFetcher) -> bool:
        if fetcher.is_dropped:
            return False
        if self._locks is not None and not self._locks.has(fetcher.queue):
            self._lose(fetcher.queue)
            return False
        return True

    async def _failed(
        self, fetcher: QueueFetcher, messages: list[ReceivedMessage], verdict: Later
    ) -> list[ReceivedMessage]:
        """The messages to retry."""
        if self._settings.is_broadcast:
            given_up = quantity(len(messages), "message")
            log.warning("dropped, because broadcast messages are not retried: %s", given_up)
            fetcher.end(messages)
            return []
        most = self._settings.attempts_max
        left: list[ReceivedMessage] = []
        for message in messages:
            is_over = most is not None and message.attempts >= most
            is_over = is_over or verdict.level == DEAD_LETTER
            if is_over and await self._given_up(message, verdict.reason):
                fetcher.end([message])
            else:
                left.append(replace(message, attempts=message.attempts + 1))
        return left

    async def _given_up(self, message: ReceivedMessage, reason: str) -> bool:
        failed = f"it failed {quantity(message.attempts + 1, 'time')}"
        try:
            # Brokers do not see local attempts.
            await self._send_back(message, DEAD_LETTER, f"{failed}: {reason}" if reason else failed)
        except TxmqError as error:
            log.warning("cannot give up %s: %s", named([message]), error)
            return False
        return True


class HeldLocks:
    """The locks that one consumer has now; they are renewed long before they expire.

    A lock counts from the moment of the request, by this client's clock, for half as long as
    brokers keep it. So if two clients disagree, both consider it lost.
    """

    def __init__(self, session: Session, group: str, client_id: str) -> None:
        self._session = session
        self._clock = session.clock
        self._group = group
        self._client_id = client_id
        self._until: dict[Queue, float] = {}

    def has(self, queue: Queue) -> bool:
        """Whether a queue is certainly locked for us."""
        return self._until.get(queue, 0.0) > self._clock.monotonic()

    async def take(self, queue: Queue) -> bool:
        """Lock a queue; returns whether that succeeded.

        Raises:
            TxmqError: The broker does not answer.
        """
        now = self._clock.monotonic()
        if queue not in await self._lock([queue]):
            return False
        self._until[queue] = now + LOCK_S
        return True

    async def give_back(self, queue: Queue) -> None:
        """Unlock a queue that we hold or recently held."""
        if self._until.pop(queue, None) is not None:
            with suppress(TxmqError):
                await self._ask(RequestCode.UNLOCK_BATCH_MQ, [queue])

    async def give_back_all(self) -> None:
        """Unlock all remaining queues."""
        await asyncio.gather(*[self.give_back(queue) for queue in list(self._until)])

    async def renew_always(self, lose: Callable[[Queue], object]) -> None:
        """Renew all locks, and call ``lose`` for those that were lost."""
        while True:
            await asyncio.sleep(RENEW_S)
            by_broker: dict[str, list[Queue]] = {}
            for queue in self._until:
                by_broker.setdefault(queue.broker, []).append(queue)
            await asyncio.gather(
                *[self._renew(broker_queues, lose) for broker_queues in by_broker.values()]
            )

    async def _renew(self, queues: list[Queue], lose: Callable[[Queue], object]) -> None:
        now = self._clock.monotonic()
        try:
            ours = await self._lock(queues)
        except TxmqError as error:
            log.warning("locks of %s are not renewed: %s", queues[0].broker, error)
            return
        for queue in queues:
            if queue not in self._until:
                continue
            if queue not in ours:
                log.warning("%s is locked by another consumer", queue)
                del self._until[queue]
                lose(queue)
                continue
            was_held = self._until[queue] > now
            self._until[queue] = now + LOCK_S
            if not was_held:
                # Another consumer may have locked it, consumed, and released it.
                log.warning("the lock of %s had expired; the queue starts again", queue)
                lose(queue)

    async def _lock(self, queues: Sequence[Queue]) -> set[Queue]:
        """Lock queues of one broker, or renew their locks; return those that are ours now."""
        answer = await self._ask(RequestCode.LOCK_BATCH_MQ, queues)
        locked = LockedQueues.read(answer.body).queues
        return {Queue(lock.topic, lock.broker_name, lock.queue_id) for lock in locked}

    async def _ask(self, code: int, queues: Sequence[Queue]) -> Command:
        address = await self._session.address_of(queues[0])
        named = [MessageQueue(queue.broker, queue.number, queue.topic) for queue in queues]
        body = LockRequest(self._client_id, self._group, named).write()
        return await self._session.request(address, code, body=body)
