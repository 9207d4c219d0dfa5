"""Creates topics for the requests of clients, and saves several of them together.

A topic must be on disk before its first message: a restart must know all topics with messages. Each
save writes the whole table, so a few topics are saved one by one, but a flood of new topics
together, twice a second. The requests that need them wait for the save and are then served from the
beginning. Until then they change nothing, so a crash loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from txmq.errors import BrokerRefused, NoPermission, ServiceUnavailable
from txmq.limits import (
    MADE_PER_SECOND_MAX,
    MADE_TOGETHER_MAX,
    MADE_TOPICS_MAX,
    POSTPONED_BYTES_MAX,
    POSTPONED_MAX,
)
from txmq.protocol.bodies import TopicConfig
from txmq.protocol.command import Command, answer
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Dispatcher, Postponed
from txmq.runtime.clock import Clock
from txmq_broker.core.admission import RateLimit
from txmq_broker.core.topics import Topics, check_name

__all__ = ["TopicCreator"]

SAVES_TOGETHER: Final = 20
"""Saves in quick succession before new topics are collected and saved together."""

SAVES_PER_SECOND: Final = 2.0
"""Saves a second after that. Each holds up all clients for some 5 ms on a quiet disk, so two of
them take one per cent of the time."""


class TopicCreator:
    """Creates topics at a limited rate.

    Args:
        topics: The table of topics.
        clock: The source of time.
        save: Saves the table; if it cannot, it restores the table and raises.
        dispatch: Serves the requests that waited.
    """

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        save: Callable[[], None],
        dispatch: Dispatcher,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._save = save
        self._dispatch = dispatch
        self._creations = RateLimit(MADE_PER_SECOND_MAX, MADE_TOGETHER_MAX)
        self._saves = RateLimit(SAVES_PER_SECOND, SAVES_TOGETHER)
        self._wanted: dict[str, TopicConfig] = {}
        self._requests: list[tuple[Connection, Command]] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def figures(self) -> dict[str, int]:
        """What the broker keeps for clients, and what it refused them since the start."""
        return {
            "topics": len(self._topics),
            "topics_refused": self._topics.refused,
            "requests_waiting_for_topics": len(self._requests),
            "bytes_waiting_for_topics": self._bytes,
        }

    def create(self, configs: Iterable[TopicConfig]) -> None:
        """Create the topics that do not exist, and save them.

        Raises:
            Postponed: They are saved later, and the request is served then.
            InternalError: A name is illegal.
            NoPermission: The limit of topics is reached.
            ServiceUnavailable: Clients create topics too fast, or the topics cannot be saved.
        """
        fresh = {
            config.topic_name: config
            for config in configs
            if config.topic_name not in self._topics.by_name
        }
        if not fresh:
            return
        for name in fresh:
            check_name(name)
        try:
            self._admit(len(fresh.keys() - self._wanted.keys()))
        except (NoPermission, ServiceUnavailable):
            self._topics.refused += 1
            raise
        if self._timer is None and self._saves.take(1, self._clock.monotonic()):
            self._put(fresh)
            return
        for name, config in fresh.items():
            self._wanted.setdefault(name, config)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._saves.wait_s(), self._save_waiting)
        raise Postponed(self._postpone)

    def close(self) -> None:
        """Drop the waiting requests; their connections are about to close."""
        if self._timer is not None:
            self._timer.cancel()

    def _admit(self, count: int) -> None:
        known = len(self._topics) + len(self._wanted) + count
        if count and known > MADE_TOPICS_MAX:
            raise NoPermission(
                f"this broker has {len(self._topics)} topics, and clients create none beyond "
                f"{MADE_TOPICS_MAX}; nothing was stored; delete topics, or create this one with "
                "txmq topic create"
            )
        if len(self._requests) >= POSTPONED_MAX or self._bytes >= POSTPONED_BYTES_MAX:
            raise ServiceUnavailable(
                f"{len(self._requests)} requests wait for new topics, which is the limit; nothing "
                "was stored; send again later"
            )
        if count and not self._creations.take(count, self._clock.monotonic()):
            raise ServiceUnavailable(
                f"clients create more than {MADE_PER_SECOND_MAX} topics a second; nothing was "
                "stored; send again later, or create the topic with txmq topic create"
            )

    def _put(self, configs: Mapping[str, TopicConfig]) -> None:
        now_ms = self._clock.wall_ms()
        try:
            for config in configs.values():
                self._topics.put(config, now_ms)
        except BaseException:
            self._topics.undo()
            raise
        self._save()

    def _postpone(self, connection: Connection, request: Command) -> None:
        self._requests.append((connection, request))
        self._bytes += len(request.body)

    def _save_waiting(self) -> None:
        self._timer = None
        self._saves.take(1, self._clock.monotonic())
        wanted, self._wanted = self._wanted, {}
        requests, self._requests = self._requests, []
        self._bytes = 0
        refusal: BrokerRefused | None = None
        try:
            self._put(wanted)
        except BrokerRefused as error:
            refusal = error
        for connection, request in requests:
            if refusal is None:
                found = self._dispatch(connection, request)
            elif request.is_oneway:
                found = None
            else:
                found = answer(request, refusal.code, remark=str(refusal))
            if found is not None:
                connection.send(found)
