"""The locks of an orderly consumer's queues; they are renewed long before they expire.

A lock counts from the moment of the request, by this client's clock, and for half as long as
brokers keep it. So if two clients disagree, both consider it lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from txmq.client.session import Session
from txmq.errors import TxmqError
from txmq.message import Queue
from txmq.protocol.bodies import LockedQueues, LockRequest, MessageQueue
from txmq.protocol.codes import RequestCode
from txmq.runtime.clock import Clock

__all__ = ["BrokerLocks", "HeldLocks"]

log = logging.getLogger(__name__)

RENEW_S: Final = 20.0
"""How often locks are renewed, as in stock clients; a broker keeps them for 60 s."""

LOCK_S: Final = 30.0
"""How long a lock is trusted after it was last confirmed."""


class BrokerLocks:
    """Locks queues for one client of a group."""

    def __init__(self, session: Session, group: str, client_id: str) -> None:
        self._session = session
        self._group = group
        self._client_id = client_id

    async def lock(self, queues: Sequence[Queue]) -> set[Queue]:
        """Lock queues of one broker, or renew their locks; return those that are ours now.

        Raises:
            TxmqError: The broker does not answer.
        """
        address = await self._session.address_of(queues[0])
        body = self._request(queues).write()
        answer = await self._session.request(address, RequestCode.LOCK_BATCH_MQ, body=body)
        locked = LockedQueues.read(answer.body).queues
        return {Queue(lock.topic, lock.broker_name, lock.queue_id) for lock in locked}

    async def unlock(self, queue: Queue) -> None:
        """Release a queue.

        Raises:
            TxmqError: The broker does not answer; the lock expires by itself.
        """
        address = await self._session.address_of(queue)
        body = self._request([queue]).write()
        await self._session.request(address, RequestCode.UNLOCK_BATCH_MQ, body=body)

    def _request(self, queues: Sequence[Queue]) -> LockRequest:
        named = [MessageQueue(queue.broker, queue.number, queue.topic) for queue in queues]
        return LockRequest(self._client_id, self._group, named)


class HeldLocks:
    """The locks that one consumer has now."""

    def __init__(self, locks: BrokerLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock
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
        if queue not in await self._locks.lock([queue]):
            return False
        self._until[queue] = now + LOCK_S
        return True

    async def give_back(self, queue: Queue) -> None:
        """Unlock a queue that we hold or recently held."""
        if self._until.pop(queue, None) is not None:
            with suppress(TxmqError):
                await self._locks.unlock(queue)

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
            ours = await self._locks.lock(queues)
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
                log.warning("the lock of %s had run out; the queue is begun with anew", queue)
                lose(queue)
