"""Tell every name server what this broker has: at start, on every change, and again every 30
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from broker.core.topics import Topics
from broker.identity import Identity
from txmq.errors import TxmqError
from txmq.protocol.bodies import RegistrationBody
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import BrokerRegistration, BrokerUnregistration
from txmq.remoting.pool import Pool

__all__ = ["Registrar"]

log = logging.getLogger(__name__)

PERIOD_S: Final = 30.0
RETRY_S: Final = 1.0
TIMEOUT_S: Final = 3.0


class Registrar:
    """Keeps this broker known."""

    def __init__(self, identity: Identity, topics: Topics, pool: Pool, names: list[str]) -> None:
        self._identity = identity
        self._topics = topics
        self._pool = pool
        self._names = names
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unheard: set[str] = set()

    async def start(self) -> None:
        """Register once, and go on registering."""
        await self._register_with_all()
        self._task = asyncio.create_task(self._keep_registering(), name="registrar")

    def changed(self) -> None:
        """The topics have changed: tell the name servers now."""
        self._changed.set()

    async def stop(self) -> None:
        """Say goodbye to every name server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        identity = self._identity
        header = BrokerUnregistration(identity.name, identity.address, identity.cluster, 0)
        for name in self._names:
            with contextlib.suppress(TxmqError):
                connection = await self._pool.connection(name)
                await connection.request(RequestCode.UNREGISTER_BROKER, header, timeout_s=TIMEOUT_S)

    async def _keep_registering(self) -> None:
        while True:
            wait = RETRY_S if self._unheard else PERIOD_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            self._changed.clear()
            await self._register_with_all()

    async def _register_with_all(self) -> None:
        await asyncio.gather(*[self._register(name) for name in self._names])

    async def _register(self, name: str) -> None:
        identity = self._identity
        header = BrokerRegistration(
            identity.name, identity.address, identity.cluster, identity.address, 0
        )
        body = RegistrationBody(self._topics.saved()).write()
        try:
            connection = await self._pool.connection(name)
            await connection.request(
                RequestCode.REGISTER_BROKER, header, body=body, timeout_s=TIMEOUT_S
            )
        except TxmqError as problem:
            if name not in self._unheard:
                log.warning("the name server %s cannot be told of this broker: %s", name, problem)
            self._unheard.add(name)
            return
        if name in self._unheard:
            log.info("the name server %s knows this broker again", name)
        self._unheard.discard(name)
