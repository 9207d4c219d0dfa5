"""A consumer that calls a function periodically for each of its queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.handler import stop_notice
from txmq.client.consume.pull_assignment import PullAssignment
from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.consume.subscription import TopicSubscription
from txmq.client.lifecycle import Lifecycle, until_closed
from txmq.client.names import check_name
from txmq.client.settings import ConsumerSettings
from txmq.errors import UsageError
from txmq.message import Queue
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.signatures import is_async
from txmq.runtime.tasks import Tasks
from txmq.settings.units import DurationLike, seconds

__all__ = ["PullContext", "PullTask", "ScheduledPull"]

log = logging.getLogger(__name__)

NEXT_S: Final = 0.2
"""The default delay before a task's next call, as in stock clients."""


@dataclass(slots=True)
class PullContext:
    """A task's argument for one call."""

    consumer: PullConsumer
    """The consumer to pull with, and to note offsets in."""
    next_delay: DurationLike = NEXT_S
    """The delay between the end of this call and the next one; the task may set it."""


PullTask = Callable[[Queue, PullContext], Awaitable[None]]
T = TypeVar("T", bound=PullTask)


class _Round:
    """One queue and the periodic calls of its task."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_ours = True
        self.lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def lose(self) -> None:
        """Stop the calls."""
        self.is_ours = False
        self.lost.set()

    def regain(self) -> None:
        """Resume the calls."""
        self.is_ours = True
        self.lost.clear()

    async def rest(self, seconds: float) -> None:
        """Wait, unless the queue is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self.lost.wait()


class _Turns(PullAssignment):
    """An assignment that reports its queues and leaves fetching to the tasks."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settings: ConsumerSettings,
        changed: Callable[[str, Sequence[Queue]], None],
    ) -> None:
        super().__init__(client, group, settings)
        self._changed = changed

    async def settle_beginnings(self) -> None:
        """Do nothing: tasks choose their own start."""

    async def _hold(self, topic: str, mine: list[Queue], subscription: TopicSubscription) -> bool:
        del subscription
        self._changed(topic, mine)
        return True


class _Puller(PullConsumer):
    """A consumer for single pulls that knows its own queues."""

    changed: Callable[[str, Sequence[Queue]], None]

    def _held(self) -> PullAssignment:
        turns = _Turns(self.client, self.group, self.settings, self.changed)
        turns.subscriptions = dict(self._subscriptions)
        return turns

    async def let_go(self, queue: Queue) -> None:
        """Save the noted offset of a queue that another consumer takes over."""
        if self._assignment is not None:
            await self._assignment.offsets.save()
            self._assignment.offsets.forget(queue)
        self._noted.pop(queue, None)


class ScheduledPull(Lifecycle):
    """A member of a consumer group that calls a task for each queue; ``async with`` runs it.

    ::

        schedule = ScheduledPull("billing", "127.0.0.1:9876")

        @schedule.on("Orders")
        async def bill(queue: Queue, context: PullContext) -> None:
            offset = await context.consumer.committed(queue) or 0
            pulled = await context.consumer.pull(queue, offset)
            ...
            context.consumer.note_offset(queue, pulled.next_offset)
            context.next_delay = 10.0

        async with schedule:
            await schedule.wait()

    A task is called again and again for each queue of this member, with a delay after each call and
    never twice at once for the same queue. Its errors are logged. Up to ``settings.concurrency``
    calls run at once. When another member takes over a queue, a running call still finishes. A stop
    waits up to ``settings.stop_timeout`` for running calls, then cancels them.

    Args:
        group: The group. All its members have the same topics.
        names: The name servers, or a client to share.
        settings: How it consumes.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        LocalProtocolError: The group name is invalid.
        LimitExceeded: The name is too long.
        ConfigError: ``names`` names no server.
    """

    def __init__(
        self,
        group: str,
        names: str | ClusterClient,
        settings: ConsumerSettings | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._puller = _Puller(group, names, settings, network, clock, entropy)
        self._puller.changed = self._share
        self._pull_tasks: dict[str, PullTask] = {}
        self._rounds: dict[Queue, _Round] = {}
        self._slots = asyncio.Semaphore(self._puller.settings.concurrency)
        self._tasks = Tasks()
        self._is_stopping = False
        self._stopped: asyncio.Event | None = None

    @property
    def consumer(self) -> PullConsumer:
        """The consumer that tasks use to pull."""
        return self._puller

    @property
    def queues(self) -> list[Queue]:
        """The queues for which tasks are called now."""
        return sorted(queue for queue, pull_round in self._rounds.items() if pull_round.is_ours)

    def on(self, topic: str) -> Callable[[T], T]:
        """Decorator: call an ``async`` function for each queue of a topic.

        Raises:
            UsageError: The topic has a task, the function is not ``async``, or the schedule is
                running.
            LocalProtocolError: The topic name is invalid.
        """

        def decorate(task: T) -> T:
            check_name("topic", topic)
            if topic in self._pull_tasks:
                raise UsageError(f"topic {topic} has a task already")
            if not is_async(task):
                raise UsageError("a task awaits the consumer it is given: define it with async def")
            self._puller.subscribe(topic)
            self._pull_tasks[topic] = task
            return task

        return decorate

    async def __aenter__(self) -> Self:
        if not self._pull_tasks:
            raise UsageError("this schedule has no task; give it one with @schedule.on(topic)")
        if self._stopped is not None and not self._stopped.is_set():
            raise UsageError("this schedule is running already")
        self._is_stopping = False
        await self._puller.__aenter__()
        self._stopped = asyncio.Event()
        return self

    @property
    def is_open(self) -> bool:
        """Whether it runs."""
        return self._puller.is_open

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The shared client, if it uses one."""
        return self._puller.needs

    async def __aexit__(self, *ending: object) -> None:
        if not self._puller.client.session.owner.is_current:
            return
        self._is_stopping = True
        for pull_round in self._rounds.values():
            pull_round.lose()
        try:
            await self._finish()
        finally:
            try:
                await self._puller.__aexit__(None, None, None)
            finally:
                if self._stopped is not None:
                    self._stopped.set()

    async def _finish(self) -> None:
        running = [
            pull_round.task for pull_round in self._rounds.values() if pull_round.task is not None
        ]
        try:
            if running:
                stop_s = self._puller.settings.stop_timeout
                with stop_notice(stop_s):
                    _, late = await asyncio.wait(running, timeout=stop_s)
                for task in late:
                    log.warning("%s is cancelled, as it takes too long", task.get_name())
        finally:
            await self._tasks.stop()

    async def wait(self) -> None:
        """Return once it has stopped; for programs that only consume.

        Raises:
            UsageError: It was never started.
        """
        owner = self._puller.client.session.owner
        await until_closed(self._stopped, owner, "this schedule is not running")

    # Queues and their rounds

    def _share(self, topic: str, mine: Sequence[Queue]) -> None:
        wanted = set(mine)
        for queue, pull_round in self._rounds.items():
            if queue.topic == topic and queue not in wanted:
                pull_round.lose()
        for queue in () if self._is_stopping else mine:
            running = self._rounds.get(queue)
            if running is not None:
                running.regain()
                continue
            self._rounds[queue] = fresh = _Round(queue)
            name = f"{self._puller.group} works on {queue}"
            fresh.task = self._tasks.start(self._serve(fresh), name)

    async def _serve(self, one: _Round) -> None:
        try:
            while one.is_ours:
                while one.is_ours:
                    await one.rest(await self._call(one))
                # The queue may come back during the save.
                await self._puller.let_go(one.queue)
        finally:
            del self._rounds[one.queue]

    async def _call(self, one: _Round) -> float:
        context = PullContext(self._puller)
        async with self._slots:
            if not one.is_ours:
                return 0.0
            try:
                await self._pull_tasks[one.queue.topic](one.queue, context)
            except Exception:
                log.exception("%s: a task failed with %s", self._puller.group, one.queue)
        return seconds("next_delay", context.next_delay)
