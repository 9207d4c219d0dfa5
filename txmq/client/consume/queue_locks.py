"""The locks of an orderly consumer's queues: taken, renewed long before they run out, given back.

A lock counts from the moment it was asked for, by this client's clock, and for half as long as
brokers keep it. So where two clients disagree, both take it for lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from txmq.client.session import Session
from txmq.errors import TxmqError
from txmq.message import Queue
from txmq.protocol.bodies import LockedQueues, LockRequest, MessageQueue
from txmq.protocol.codes import RequestCode
from txmq.runtime.clock import Clock

__all__ = ["BrokerLocks", "HeldLocks", "QueueLocks"]

log = logging.getLogger(__name__)

RENEW_S: Final = 20.0
"""How often locks are renewed, as in stock clients; a broker keeps them for 60 s."""

LOCK_S: Final = 30.0
"""How long a lock is relied on after it was last confirmed."""


class QueueLocks(Protocol):
    """Where queues are locked."""

    async def lock(self, queues: Sequence[Queue]) -> set[Queue]:
        """Lock queues of one broker, or lock them anew; returns those that are ours now.

        Raises:
            TxmqError: The broker does not say.
        """
        ...

    async def unlock(self, queue: Queue) -> None:
        """Give a queue back.

        Raises:
            TxmqError: The broker does not answer; the lock runs out by itself.
        """
        ...


class BrokerLocks:
    """Locks queues for one client of a group."""

    def __init__(self, session: Session, group: str, client_id: str) -> None:
        self._session = session
        self._group = group
        self._client_id = client_id

    async def lock(self, queues: Sequence[Queue]) -> set[Queue]:
        """See :meth:`~txmq.client.consume.queue_locks.Locks.lock`."""
        address = await self._session.address_of(queues[0])
        body = self._request(queues).write()
        answer = await self._session.request(address, RequestCode.LOCK_BATCH_MQ, body=body)
        locked = LockedQueues.read(answer.body).queues
        return {Queue(each.topic, each.broker_name, each.queue_id) for each in locked}

    async def unlock(self, queue: Queue) -> None:
        """See :meth:`~txmq.client.consume.queue_locks.Locks.unlock`."""
        address = await self._session.address_of(queue)
        body = self._request([queue]).write()
        await self._session.request(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    def _request(self, queues: Sequence[Queue]) -> LockRequest:
        named = [MessageQueue(each.broker, each.number, each.topic) for each in queues]
        return LockRequest(self._client_id, self._group, named)


class HeldLocks:
    """The locks that one consumer has now."""

    def __init__(self, locks: QueueLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock
        self._until: dict[Queue, float] = {}

    def has(self, queue: Queue) -> bool:
        """Whether a queue is locked for us beyond doubt."""
        return self._until.get(queue, 0.0) > self._clock.monotonic()

    async def take(self, queue: Queue) -> bool:
        """Lock a queue; whether that worked.

        Raises:
            TxmqError: The broker does not say.
        """
        now = self._clock.monotonic()
        if queue not in await self._locks.lock([queue]):
            return False
        self._until[queue] = now + LOCK_S
        return True

    async def give_back(self, queue: Queue) -> None:
        """Unlock a queue, where we have it or had it not long ago."""
        if self._until.pop(queue, None) is not None:
            with suppress(TxmqError):
                await self._locks.unlock(queue)

    async def give_back_all(self) -> None:
        """Unlock what is left."""
        await asyncio.gather(*[self.give_back(each) for each in list(self._until)])

    async def renew_always(self, lose: Callable[[Queue], object]) -> None:
        """Keep all locks, and tell which were lost."""
        while True:
            await asyncio.sleep(RENEW_S)
            by_broker: dict[str, list[Queue]] = {}
            for queue in self._until:
                by_broker.setdefault(queue.broker, []).append(queue)
            await asyncio.gather(*[self._renew(each, lose) for each in by_broker.values()])

    async def _renew(self, queues: list[Queue], lose: Callable[[Queue], object]) -> None:
        now = self._clock.monotonic()
        try:
            ours = await self._locks.lock(queues)
        except TxmqError as problem:
            log.warning("locks of %s are not renewed: %s", queues[0].broker, problem)
            return
        for queue in queues:
            if queue not in self._until:
                continue
            if queue not in ours:
                log.warning("%s is locked by somebody else", queue)
                del self._until[queue]
                lose(queue)
                continue
            was_held = self._until[queue] > now
            self._until[queue] = now + LOCK_S
            if not was_held:
                # Somebody may have had it, gone on, and given it back.
                log.warning("the lock of %s had run out; the queue is begun with anew", queue)
                lose(queue)
