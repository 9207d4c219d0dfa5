"""Registers a broker with the name server of its supervisor, over the line between them.

So registration needs no account and no certificate, and a broker that is killed leaves at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from txmq.protocol.bodies import TopicConfigs
from txmq_broker.core.identity import Identity
from txmq_broker.core.topics import Topics
from txmq_broker.processes.plan import BrokerNotice, RegistrationNotice, UnregistrationNotice
from txmq_broker.services.registrar import (
    PAUSE_PER_TOPIC_S,
    PERIOD_S,
    NearRegistration,
    registration_of,
)

__all__ = ["ParentRegistration", "registration_notices"]

TOPICS_AT_ONCE: Final = 10_000
"""Topics in one line to the supervisor; they have up to 4 MB."""


class ParentRegistration(NearRegistration):
    """Keeps a broker registered with its supervisor.

    Args:
        identity: The broker.
        topics: Its topics.
        send: Sends a notice to the supervisor.
    """

    def __init__(
        self, identity: Identity, topics: Topics, send: Callable[[BrokerNotice], None]
    ) -> None:
        super().__init__()
        self._identity = identity
        self._topics = topics
        self._send = send
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """See :meth:`Registration.start`."""
        self._register()
        await super().start()

    def changed(self) -> None:
        """See :meth:`Registration.changed`."""
        self._changed.set()

    async def stop(self) -> None:
        """See :meth:`Registration.stop`."""
        await super().stop()
        self._send(UnregistrationNotice())

    async def _keep_registering(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._changed.wait()
            self._changed.clear()
            self._register()
            # A flood of new topics must not have both ends encode all of them for each one.
            await asyncio.sleep(len(self._topics) * PAUSE_PER_TOPIC_S)

    def _register(self) -> None:
        for notice in registration_notices(self._identity, self._topics):
            self._send(notice)


def registration_notices(identity: Identity, topics: Topics) -> Iterator[RegistrationNotice]:
    """The registration of a broker, in parts that fit a line each."""
    saved, who = topics.saved(), registration_of(identity)
    table = list(saved.topic_config_table.items())
    for start in range(0, max(len(table), 1), TOPICS_AT_ONCE):
        part = dict(table[start : start + TOPICS_AT_ONCE])
        is_last = start + TOPICS_AT_ONCE >= len(table)
        yield RegistrationNotice(who, TopicConfigs(saved.data_version, part), is_last)
