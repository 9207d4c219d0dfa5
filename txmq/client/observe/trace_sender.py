"""Trace records of one producer or consumer, collected and sent in the background.

Traced operations never wait for their trace, nor fail with it. Records not sent in time are
dropped, the oldest first, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol

from txmq.client.observe.trace_records import TopicRecord, TracePack, TraceRecord, packed
from txmq.errors import TxmqError
from txmq.limits import GROUP_CHARS_MAX, TRACES_MAX
from txmq.message import Message
from txmq.protocol.topics import TRACES
from txmq.runtime.clock import Clock
from txmq.runtime.tasks import Tasks
from txmq.text import quantity

__all__ = ["Tracer", "trace_group"]

log = logging.getLogger(__name__)

LINGER_S: Final = 0.5
"""How long a record waits for others; after a failure all records wait this long."""

HURRY: Final = 100
"""The number of records that are sent without waiting for more."""

ROUND: Final = 1000
"""The maximum number of records in flight."""

FLUSH_S: Final = 3.0
"""How long a close waits for records to be sent."""

WARN_S: Final = 60.0
"""How often the log says that records were lost."""

_PREFIX: Final = "_INNER_TRACE_PRODUCER-"


def trace_group(group: str, role: str) -> str:
    """The group of the producer that sends the traces of a member, as stock clients name it."""
    room = GROUP_CHARS_MAX - len(_PREFIX) - len(role) - 1
    return f"{_PREFIX}{group[:room]}-{role}"


class TraceProducer(Protocol):
    """A producer, as far as traces need one."""

    async def __aenter__(self) -> object:
        """Open it."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    async def send(self, message: Message, /) -> object:
        """Send a message."""
        ...


class Tracer:
    """Gathers records and sends them.

    Args:
        sender: The producer; it is opened and closed with the tracer, and is not traced itself.
        topic: The trace topic.
        clock: Gives the time.
        records_max: The maximum number of waiting records.
    """

    def __init__(
        self, sender: TraceProducer, topic: str, clock: Clock, records_max: int = TRACES_MAX
    ) -> None:
        self.topic = topic
        self.clock = clock
        self.lost: int = 0
        """Records that were dropped, or could not be sent."""
        self._sender = sender
        self._waiting: deque[TopicRecord] = deque(maxlen=records_max)
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._is_closing = False
        self._told = 0
        self._told_at = -WARN_S
        self._tasks = Tasks()

    def wants(self, topic: str) -> bool:
        """Whether to trace messages of a topic: traces themselves are not traced."""
        return topic not in (self.topic, TRACES)

    def note(self, topic: str, record: TraceRecord) -> None:
        """Queue a record, to be sent soon; if there are too many, the oldest is dropped."""
        waiting = self._waiting
        if len(waiting) == waiting.maxlen:
            self.lost += 1
        waiting.append(TopicRecord(topic, record))
        self._some.set()
        if len(waiting) >= HURRY:
            self._hurry.set()

    async def open(self) -> None:
        """Begin to send.

        Raises:
            UsageError: The client is not open, or traces such a member already.
        """
        await self._sender.__aenter__()
        self._tasks.start(self._send_always(), "message trace")

    async def close(self) -> None:
        """Send the records that are left, for a short time."""
        self._is_closing = True
        self._hurry.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    while self._waiting or not self._idle.is_set():
                        self._some.set()
                        self._idle.clear()
                        await self._idle.wait()
            await self._tasks.stop()
            self.lost += len(self._waiting)
            self._waiting.clear()
            self._tell_losses()
        finally:
            await self._sender.__aexit__(None, None, None)

    async def _send_always(self) -> None:
        while True:
            if not self._waiting:
                self._idle.set()
                self._some.clear()
                await self._some.wait()
                continue
            self._idle.clear()
            await self._rest()
            some = [self._waiting.popleft() for _ in range(min(ROUND, len(self._waiting)))]
            lost = self.lost
            await asyncio.gather(*[self._send(pack) for pack in packed(some)])
            self._tell_losses()
            if self.lost > lost:
                await asyncio.sleep(LINGER_S)

    async def _rest(self) -> None:
        if len(self._waiting) < HURRY and not self._is_closing:
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._hurry.wait()

    async def _send(self, pack: TracePack) -> None:
        try:
            await self._sender.send(Message(topic=self.topic, body=pack.body, keys=pack.keys))
        except TxmqError as error:
            self.lost += pack.count
            log.info("a message of traces is lost: %s", error)
        except asyncio.CancelledError:
            self.lost += pack.count
            raise

    def _tell_losses(self) -> None:
        now = self.clock.monotonic()
        if self.lost > self._told and (now - self._told_at >= WARN_S or self._is_closing):
            count = self.lost - self._told
            lost = quantity(count, "trace record is", "trace records are")
            log.warning("%s lost: %s does not take them", lost, self.topic)
            self._told, self._told_at = self.lost, now
