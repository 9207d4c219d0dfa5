"""The queues of one consumer, with their start and consumed offsets.

The members of a group share a topic's queues without communicating: each queries a broker for the
members, and computes the same division. They repeat this every 20 s, and when a broker reports that
a member joined or left. In between, a queue may have two consumers or no consumer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmq.client.cluster_client import ClusterClient
from txmq.client.consume.fetcher import QueueFetcher, limits_of
from txmq.client.consume.offset_store import (
    BrokerOffsets,
    FileOffsets,
    OffsetStore,
    begin_at,
    settle_beginning,
)
from txmq.client.consume.subscription import TopicSubscription
from txmq.client.session import Session
from txmq.client.settings import ConsumerSettings, StartFrom
from txmq.errors import BrokerRefused, ConsumerOffline, TopicNotFound, TxmqError
from txmq.message import Queue, QueueOffset, ReceivedMessage
from txmq.protocol.bodies import ConsumerIds, HeldQueue
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import GroupHeader
from txmq.protocol.topics import RETRY
from txmq.runtime.backoff import Backoff
from txmq.runtime.tasks import Tasks

__all__ = ["MessageSink", "QueueAssignment", "members_of"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 3.0
"""The longest pause after incomplete rounds."""

BEGUN_AT_ONCE: Final = 64
"""The number of queues of one topic that start concurrently."""


class MessageSink(ABC):
    """Receives the messages of the assigned queues."""

    async def may_hold(self, queue: Queue) -> bool:
        """Whether work on this queue may begin now; if not, the next round retries."""
        del queue
        return True

    @abstractmethod
    def deliver(self, fetcher: QueueFetcher, messages: Sequence[ReceivedMessage]) -> None:
        """Receive fetched messages."""

    @abstractmethod
    async def let_go(self, fetcher: QueueFetcher) -> None:
        """Finish work on a queue that this consumer loses."""

    async def gone(self, queue: Queue) -> None:
        """Called when the queue's offset is saved; from now on another consumer may start it."""
        del queue


class QueueAssignment:
    """The queues of one consumer."""

    def __init__(
        self, client: ClusterClient, group: str, settings: ConsumerSettings, sink: MessageSink
    ) -> None:
        self.client = client
        self.group = group
        self.settings = settings
        self.fetchers: dict[Queue, QueueFetcher] = {}
        self.subscriptions: dict[str, TopicSubscription] = {}
        self.offsets: OffsetStore = self._offset_store()
        self._sink = sink
        self._starts: dict[Queue, int] = {}
        self._beginning: set[Queue] = set()
        self._is_paused = False
        self._settled: set[str] = set()
        """Topics whose existing queues all have a start offset."""
        self._missing: set[str] = set()
        """Topics that do not exist; each is logged once."""
        self._paused: dict[Queue, bool] = {}
        self._running: dict[Queue, asyncio.Task[None]] = {}
        self._drops: dict[Queue, asyncio.Task[None]] = {}
        self._look_again = asyncio.Event()
        self._tasks = Tasks()
        self._leaving = Tasks()
        self._backoff = Backoff(client.session.entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def _offset_store(self) -> OffsetStore:
        if not self.settings.is_broadcast:
            return BrokerOffsets(self.group, self.client.admin)
        base = self.settings.offsets_path or Path.home() / ".txmq" / "offsets"
        instance = self.client.settings.instance or "default"
        return FileOffsets(base / instance, self.group)

    # Starting and stopping

    async def settle_beginnings(self) -> None:
        """Save a new group's start offsets, before its consumer counts as started."""
        if self.settings.start is not StartFrom.LAST:
            return
        for topic in self.subscriptions:
            if topic.startswith(RETRY):
                continue
            try:
                route = await self.client.session.route(topic)
                await settle_beginning(
                    sorted(route.queues_to_read), self.offsets, self.client.admin
                )
            except TopicNotFound:
                log.debug("%s: %s does not exist yet", self.group, topic)
            except TxmqError as error:
                log.debug(
                    "%s: cannot save the start offsets of %s; each queue chooses its own: %s",
                    self.group,
                    topic,
                    error,
                )
                continue
            self._settled.add(topic)

    def open(self) -> None:
        """Start to hold queues."""
        self._tasks.start(self._balance_always(), f"rebalance of {self.group}")
        self._tasks.start(self._save_always(), f"offsets of {self.group}")

    async def stop_fetching(self) -> None:
        """Stop taking queues and fetching messages; fetched messages stay."""
        await self._tasks.stop()

    async def close(self) -> None:
        """Release all queues, and save their offsets."""
        await self._tasks.stop()
        await self._drop(list(self.fetchers))
        await self.offsets.save()

    async def abandon(self) -> None:
        """Stop everything at once; has no effect after :meth:`close`."""
        try:
            await self._tasks.stop()
        finally:
            await self._leaving.stop()

    def rebalance_soon(self) -> None:
        """Rebalance soon."""
        self._look_again.set()

    # Our queues

    async def _balance_always(self) -> None:
        while True:
            self._look_again.clear()
            pause_s = self.settings.rebalance_interval
            if await self._balance_surely():
                self._backoff.reset()
            else:
                pause_s = min(pause_s, self._backoff.next_pause())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look_again.wait()

    async def _balance_surely(self) -> bool:
        try:
            return await self.balance()
        except Exception:
            # The strategy may be application code.
            log.exception("%s: the strategy failed; queues stay as they are", self.group)
            return False

    async def balance(self) -> bool:
        """Rebalance once; true if every topic was processed and all our queues have started.

        Lost queues are released in the background.
        """
        is_whole = True
        for topic, subscription in list(self.subscriptions.items()):
            try:
                mine = await self.share_of(topic)
            except TopicNotFound:
                self._note_missing(topic)
                is_whole = False
                continue
            except TxmqError as error:
                level = logging.DEBUG if topic.startswith(RETRY) else logging.WARNING
                log.log(
                    level, "%s: the queues of %s stay as they are: %s", self.group, topic, error
                )
                is_whole = False
                continue
            if topic in self._missing:
                self._missing.discard(topic)
                log.info("%s: topic %s exists now", self.group, topic)
            is_whole = await self._hold(topic, mine, subscription) and is_whole
        for queue in [queue for queue in self.fetchers if queue.topic not in self.subscriptions]:
            self.lose(queue)
        self._share_limits()
        return is_whole

    def _note_missing(self, topic: str) -> None:
        # A broker creates retry topics when it needs them.
        if topic in self._missing or topic.startswith(RETRY):
            return
        self._missing.add(topic)
        log.warning(
            "%s: topic %s does not exist; messages come when it does. "
            "Check its name, or create it with: txmq topic create %s",
            self.group,
            topic,
            topic,
        )

    async def share_of(self, topic: str) -> list[Queue]:
        """This member's current share of a topic's queues.

        Raises:
            TopicNotFound: No broker has the topic.
            TransportError: No broker answers.
            BrokerRefused: A broker refuses to list the group's members, or knows none.
        """
        session = self.client.session
        route = await session.route(topic)
        queues = sorted(route.queues_to_read)
        if self.settings.is_broadcast:
            return queues
        try:
            members = await members_of(self.group, topic, session)
        except BrokerRefused:
            members = []  # A broker that knows no member refuses to list them.
        if self.client.id not in members:
            log.info("%s: no broker has registered this client yet", self.group)
            await self.client.beat()
            members = await members_of(self.group, topic, session)
        return self.settings.allocation(self.group, self.client.id, queues, members)

    async def _hold(self, topic: str, mine: list[Queue], subscription: TopicSubscription) -> bool:
        wanted = set(mine)
        for queue, fetcher in list(self.fetchers.items()):
            is_changed = fetcher.subscription != subscription
            if queue.topic == topic and (queue not in wanted or is_changed):
                self.lose(queue)
        for queue in [queue for queue in self._starts if queue.topic == topic]:
            if queue not in wanted:
                del self._starts[queue]  # The next holder decides where to start.
        fresh = [queue for queue in mine if queue not in self.fetchers]
        begun = True
        while fresh:
            # Concurrently: an unresponsive broker must not delay other brokers' queues.
            now, fresh = fresh[:BEGUN_AT_ONCE], fresh[BEGUN_AT_ONCE:]
            ends = await asyncio.gather(*[self._begin(queue, subscription) for queue in now])
            begun = begun and all(ends)
        return begun

    async def _begin(self, queue: Queue, subscription: TopicSubscription) -> bool:
        self._beginning.add(queue)
        try:
            if not await self._sink.may_hold(queue):
                return False
            start = await self._start_of(queue)
        except TxmqError as error:
            log.warning("%s: cannot start %s yet: %s", self.group, queue, error)
            # In the next round it may belong to another consumer.
            await self._sink.gone(queue)
            return False
        finally:
            self._beginning.discard(queue)
        if queue not in self.fetchers:
            self._open(queue, subscription, self._starts.pop(queue, start))
        return True

    def _open(self, queue: Queue, subscription: TopicSubscription, start: int) -> QueueFetcher:
        session, deliver = self.client.session, self._sink.deliver
        fetcher = QueueFetcher(
            session, self.group, self.settings, queue, subscription, start, deliver
        )
        fetcher.is_paused = self._paused.get(queue, self._is_paused)
        self.fetchers[queue] = fetcher
        self._share_limits()
        name = f"{self.group} fetches {queue.topic}/{queue.broker}/{queue.number}"
        self._running[queue] = self._tasks.start(self._fetch(fetcher), name)
        log.info("%s: %s begins with %s at %d", self.group, self.client.id, queue, start)
        return fetcher

    async def _fetch(self, fetcher: QueueFetcher) -> None:
        try:
            start = await fetcher.run()
        except Exception:
            log.exception("%s: fetching from %s failed; it starts again", self.group, fetcher.queue)
            await asyncio.sleep(LONGEST_PAUSE_S)
        else:
            # Stored before the pause, in case the queue is dropped during it. The pause limits the
            # rate if a broker rejects every offset.
            self._starts[fetcher.queue] = start
            await asyncio.sleep(FIRST_PAUSE_S)
        self.lose(fetcher.queue)

    async def _start_of(self, queue: Queue) -> int:
        stored = self._starts.get(queue)
        if stored is not None:
            return stored
        admin, clock = self.client.admin, self.client.session.clock
        is_new = queue.topic in self._settled
        return await begin_at(queue, self.offsets, self.settings, admin, clock, is_new=is_new)

    def _share_limits(self) -> None:
        """Divide the buffer limits among the queues."""
        counts = Counter(queue.topic for queue in self.fetchers)
        for queue, fetcher in self.fetchers.items():
            fetcher.limits = limits_of(self.settings, counts[queue.topic], len(self.fetchers))
            fetcher.look_again()

    # Releasing queues

    async def _drop(self, queues: Sequence[Queue]) -> None:
        await asyncio.gather(*[self.drop(queue) for queue in queues])

    async def drop(self, queue: Queue) -> None:
        """Release a queue and save its offset; has no effect if the queue is not held."""
        dropping = self._begin_to_drop(queue)
        if dropping is not None:
            # Shielded: the release completes, and until then the queue is not taken again.
            await asyncio.shield(dropping)

    def lose(self, queue: Queue, start: int | None = None) -> None:
        """Release a queue without waiting; if it is still ours, the next round takes it again.

        Args:
            queue: The queue.
            start: The group's offset now, if it differs from the consumed one.
        """
        if start is not None and queue in self.fetchers:
            self._starts[queue] = start
        self._begin_to_drop(queue)

    def _begin_to_drop(self, queue: Queue) -> asyncio.Task[None] | None:
        if queue not in self.fetchers:
            return None
        dropping = self._drops.get(queue)
        if dropping is None:
            self._running.pop(queue).cancel()
            self.fetchers[queue].is_dropped = True
            dropping = self._leaving.start(self._let_go(queue), f"{self.group} lets go")
            self._drops[queue] = dropping
        return dropping

    async def _let_go(self, queue: Queue) -> None:
        fetcher = self.fetchers[queue]
        try:
            await self._sink.let_go(fetcher)
            await self._save_last(fetcher)
            await self._sink.gone(queue)
        finally:
            self.offsets.forget(queue)
            del self.fetchers[queue]
            del self._drops[queue]
            self.rebalance_soon()
        log.info("%s: %s has released %s", self.group, self.client.id, queue)

    async def _save_last(self, fetcher: QueueFetcher) -> None:
        queue, saved = fetcher.queue, -1
        error: TxmqError | None = None
        # Repeat if the queue was moved during the save.
        while saved != (offset := self._starts.get(queue, fetcher.window.safe_offset)):
            self.offsets.note(queue, QueueOffset(offset))
            error = await self.offsets.save(queue)
            saved = offset
        if error is None:
            # Load the offset again later: another member may consume before the queue is ours
            # again.
            self._starts.pop(queue, None)

    async def move(self, offsets: Mapping[Queue, int]) -> None:
        """Restart some held or starting queues at other offsets."""
        for queue in self._beginning & offsets.keys():
            self._starts[queue] = offsets[queue]
        moved = [queue for queue in offsets if queue in self.fetchers]
        for queue in moved:
            self.lose(queue, offsets[queue])
        await self._drop(moved)

    # Pauses

    def hold_back(self, queues: Sequence[Queue] | None, *, is_paused: bool) -> None:
        """Pause or resume fetching, for some queues, or for all current and future ones."""
        if queues is None:
            self._is_paused = is_paused
            self._paused.clear()
        else:
            self._paused.update(dict.fromkeys(queues, is_paused))
        for queue, fetcher in self.fetchers.items():
            fetcher.is_paused = self._paused.get(queue, self._is_paused)
            fetcher.look_again()

    # Offsets

    def positions(self) -> dict[Queue, QueueOffset]:
        """The consumed offset of each held queue."""
        return {
            queue: fetcher.window.safe_offset
            for queue, fetcher in self.fetchers.items()
            if not fetcher.is_dropped
        }

    def shown(self) -> dict[Queue, HeldQueue]:
        """The held queues, for operators."""
        return {queue: fetcher.shown() for queue, fetcher in self.fetchers.items()}

    async def save(self) -> TxmqError | None:
        """Save the offsets of all held queues; see :meth:`OffsetStore.save`."""
        for queue, offset in self.positions().items():
            self.offsets.note(queue, offset)
        return await self.offsets.save()

    async def _save_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval)
            try:
                await self.save()
            except Exception:
                log.exception("%s: offsets are not saved", self.group)


async def members_of(group: str, topic: str, session: Session) -> list[str]:
    """The ids of a group's consumers, sorted, from one broker that has the topic.

    Raises:
        TopicNotFound: No broker has the topic.
        TransportError: No broker answers.
        BrokerRefused: A broker refuses, or lists no member.
    """
    route = await session.route(topic)
    brokers = route.brokers
    # Any broker is enough; use another one each time, because one may be down.
    first = session.entropy.below(len(brokers)) if brokers else 0
    error: TxmqError = TopicNotFound(f"topic {topic} has no queues")
    for step in range(len(brokers)):
        address = route.reader(brokers[(first + step) % len(brokers)])
        try:
            answer = await session.request(
                address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group)
            )
        except TxmqError as failed:
            error = failed
            continue
        found = ConsumerIds.read(answer.body).consumer_id_list
        if found:
            # A client that lost its connection is listed twice until the broker notices. Counted
            # twice, it would leave a share of the queues without a consumer.
            return sorted(set(found))
        error = ConsumerOffline(f"{address} knows no consumer of {group}")
    session.forget(topic)
    raise error
