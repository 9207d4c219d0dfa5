"""Registers the broker with the name server inside it, which takes no connection."""

from __future__ import annotations

import asyncio

from txmq.runtime.clock import Clock
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics
from txmq_broker.names.routes import RouteRegistry
from txmq_broker.services.registrar import (
    PERIOD_S,
    NearRegistration,
    RegisteredTopics,
    registration_of,
)

__all__ = ["OwnRegistration"]


class OwnRegistration(NearRegistration):
    """Keeps the broker registered; the counterpart of ``Registrar`` for its own name server."""

    def __init__(
        self, identity: Identity, topics: Topics, routes: RouteRegistry, clock: Clock
    ) -> None:
        super().__init__()
        self._identity = identity
        self._topics = topics
        self._routes = routes
        self._clock = clock
        self._known = RegisteredTopics()
        self.changed()

    def changed(self) -> None:
        """Register now."""
        registration = registration_of(self._identity)
        for part in self._known.parts(self._topics):
            self._routes.register(registration, part, self, self._clock.monotonic())

    async def _keep_registering(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self.changed()
