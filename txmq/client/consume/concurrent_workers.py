"""Concurrent consumption, in no particular order.

The consumer's settings limit the number of running handlers. A failed message is sent back to the
broker, which delivers it again later. If sending back fails too, the message is retried here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from txmq.client.consume.assignment import MessageSink
from txmq.client.consume.fetcher import QueueFetcher
from txmq.client.consume.handler import BoundHandler, Verdict, named, no_handler, stop_notice
from txmq.client.settings import ConsumerSettings
from txmq.errors import TxmqError
from txmq.message import Later, ReceivedMessage
from txmq.runtime.clock import Clock
from txmq.runtime.tasks import Tasks
from txmq.text import quantity

__all__ = ["ConcurrentWorkers", "SendBack"]

log = logging.getLogger(__name__)

TRY_HERE_S: Final = 5.0
"""The delay before a local retry of a message that could not be sent back, as in stock clients."""

TOO_LONG_LEVEL: Final = 3
"""The delay level of a message whose handler timed out."""

LOOK_S: Final = 15.0
"""How often to look for timed-out handlers."""

_BREATH: Final = 64
"""Messages after which a worker yields to other tasks of the loop."""

SendBack = Callable[[ReceivedMessage, int, str], Awaitable[None]]
"""Sends a message back to its broker, with a delay level and a reason."""

Lot = tuple[QueueFetcher, BoundHandler, list[ReceivedMessage]]
"""The messages of one handler call."""


class _Work(NamedTuple):
    """What a worker is handling, and since when."""

    lot: Lot
    since: float
    task: asyncio.Task[Any] | None


class ConcurrentWorkers(MessageSink):
    """Handles messages with several workers."""

    def __init__(
        self,
        settings: ConsumerSettings,
        clock: Clock,
        handlers: Mapping[str, BoundHandler],
        send_back: SendBack,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._handlers = handlers
        self._send_back = send_back
        self._lots: deque[Lot] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._busy = 0
        self._at_work: dict[int, _Work] = {}
        self._later: dict[asyncio.TimerHandle, QueueFetcher] = {}
        self._settled = asyncio.Event()
        self._tasks = Tasks()

    def open(self) -> None:
        """Start the workers; they idle until messages arrive."""
        for number in range(self._settings.concurrency):
            self._tasks.start(self._work(number), f"worker {number}")
        if not self._settings.is_broadcast:
            self._tasks.start(self._look_always(), "watch over workers")

    # Called by QueueAssignment

    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Queue messages for the workers."""
        lots, most = self._lots, self._settings.batch_max
        handler: BoundHandler | None = None
        topic = None
        for message in messages:
            if message.topic != topic:
                topic, handler = message.topic, self._handlers.get(message.topic)
            if handler is None:
                self._tasks.start(self._unwanted(fetcher, message), "send back")
                continue
            last = lots[-1] if handler.takes_batch and lots else None
            if last and last[0] is fetcher and last[1] is handler and len(last[2]) < most:
                last[2].append(message)
            else:
                lots.append((fetcher, handler, [message]))
        self._wake_soon()

    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Drop the messages that no worker has begun; the queue's next consumer receives them
        again.
        """
        self._lots = deque(lot for lot in self._lots if lot[0] is not fetcher)
        if not self._lots and not self._busy:
            self._settled.set()
        for timer in [timer for timer, its in self._later.items() if its is fetcher]:
            timer.cancel()
            del self._later[timer]

    async def finish(self) -> None:
        """Wait up to ``stop_timeout`` until all delivered messages are handled."""
        try:
            with stop_notice(self._settings.stop_timeout):
                async with asyncio.timeout(self._settings.stop_timeout):
                    await self._finish()
        except TimeoutError:
            messages = quantity(self._busy, "message")
            log.warning("given up: handlers still work on %s", messages)

    async def _finish(self) -> None:
        while self._lots or self._busy:
            self._settled.clear()
            await self._settled.wait()

    async def close(self) -> None:
        """Stop the workers; running handlers are cancelled."""
        for timer in self._later:
            timer.cancel()
        self._later.clear()
        self._lots.clear()
        await self._tasks.stop()
        self._idle.clear()

    # Workers

    def _wake_soon(self) -> None:
        # Start one more worker per loop iteration while work is left: if handlers never wait, the
        # first worker finishes everything before a second starts.
        if not self._is_waking and self._idle and self._lots:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        while self._idle and self._lots:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                self._wake_soon()
                return

    async def _work(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        done = 0
        while True:
            if not self._lots:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            lot = self._lots.popleft()
            self._busy += 1
            try:
                await self._work_on(number, lot)
            finally:
                self._busy -= 1
                if not self._lots and not self._busy:
                    self._settled.set()
            done += 1
            if done % _BREATH == 0:
                await asyncio.sleep(0)

    async def _work_on(self, number: int, lot: Lot) -> None:
        fetcher, handler, messages = lot
        task = asyncio.current_task()
        self._at_work[number] = _Work(lot, self._clock.monotonic(), task)
        verdict: Verdict = None
        try:
            verdict = await handler.judge(messages)
        except asyncio.CancelledError:
            # A stop cancels the worker; the watch cancels the handler alone.
            if number in self._at_work or task is None or task.uncancel():
                raise
        finally:
            mine = self._at_work.pop(number, None)
        if mine is None:
            return  # It took too long and was sent back.
        if verdict is None:
            fetcher.end(messages)
        else:
            await self._again(fetcher, messages, verdict)

    async def _again(
        self, fetcher: QueueFetcher, messages: list[ReceivedMessage], verdict: Later
    ) -> None:
        fetcher.end(messages[: verdict.first])
        for message in messages[verdict.first :]:
            await self._try_again(fetcher, message, verdict)

    async def _try_again(
        self, fetcher: QueueFetcher, message: ReceivedMessage, verdict: Later
    ) -> None:
        if fetcher.is_dropped:
            return  # The queue's new consumer receives it anyway.
        if self._settings.is_broadcast:
            log.warning("dropped, because broadcast messages are not retried: %s", named([message]))
            fetcher.end([message])
            return
        try:
            await self._send_back(message, verdict.level, verdict.reason)
        except TxmqError as error:
            log.warning("cannot send back %s: %s", named([message]), error)
            self._try_here(fetcher, message)
        else:
            fetcher.end([message])

    def _try_here(self, fetcher: QueueFetcher, message: ReceivedMessage) -> None:
        if fetcher.is_dropped:
            return
        again = replace(message, attempts=message.attempts + 1)

        def deliver() -> None:
            del self._later[timer]
            self.deliver(fetcher, [again])

        timer = asyncio.get_running_loop().call_later(TRY_HERE_S, deliver)
        self._later[timer] = fetcher

    async def _unwanted(self, fetcher: QueueFetcher, message: ReceivedMessage) -> None:
        log.warning("%s: %s", no_handler(message), named([message]))
        await self._try_again(fetcher, message, Later(reason=no_handler(message)))

    # Handlers that time out

    async def _look_always(self) -> None:
        most_s = self._settings.consume_timeout
        while True:
            await asyncio.sleep(min(LOOK_S, most_s))
            now = self._clock.monotonic()
            late = [number for number, work in self._at_work.items() if now - work.since > most_s]
            for number in late:
                work = self._at_work.pop(number)
                fetcher, handler, messages = work.lot
                if handler.is_async and work.task is not None:
                    work.task.cancel()  # A thread cannot be cancelled.
                log.error("worked on for more than %g s: %s", most_s, named(messages))
                # Not awaited one by one: others may time out while a broker does not answer.
                verdict = Later(TOO_LONG_LEVEL, reason=f"worked on for more than {most_s:g} s")
                self._tasks.start(self._again(fetcher, messages, verdict), "send back")
