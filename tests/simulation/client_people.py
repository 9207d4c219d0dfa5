"""Programs made of whole clients: those that send, and those that are members of groups."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

from tests.faults.cancelling import Watched
from tests.simulation.client_history import Committing, Handled, Handling, Left, Loaded, Sent
from tests.simulation.client_mix import ClientMix, GroupMix
from tests.simulation.history import History
from tests.simulation.workload import TAGS
from tests.simulation.workload import Client as Someone
from txmq.client import Admin
from txmq.client.client import Client
from txmq.client.consume import Later, PushConsumer
from txmq.client.consume.pull_consumer import PullConsumer
from txmq.client.send.producer import Producer
from txmq.client.settings import ClientSettings, ConsumerSettings, StartFrom
from txmq.client.values import SendStatus
from txmq.errors import TxmqError
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol.topics import RETRY
from txmq.testing import World

__all__ = ["Member", "Sender"]

TURNS = 20
"""So often the loop goes round before it is looked what a member has left behind."""


class _Person(Someone):
    """A program with a client of its own."""

    def _client(self, network=None) -> Client:
        machine = self.machine
        settings = ClientSettings(instance=self.name, host="here", heartbeat=10.0)
        ports = (network or machine.network, machine.clock, machine.entropy)
        return Client(self._names, settings, *ports)


class Sender(_Person):
    """Sends one message after the other, each until it is acknowledged."""

    def __init__(self, world: World, name: str, names: str, mix: ClientMix, history: History):
        super().__init__(world, name, names, mix, history)
        self.is_enough = False
        self._count = 0

    async def _live(self) -> None:
        async with self._client() as client, Producer("senders", client) as producer:
            while self._count < self.mix.sends and not self.is_enough:
                self._count += 1
                await self._deliver(producer, f"{self.name}.{self._count}")
                await asyncio.sleep(self.mix.think_s * self._draw.fraction())

    async def _deliver(self, producer: Producer, key: str) -> None:
        tags = TAGS[self._draw.below(len(TAGS))]
        topic = f"Topic{self._draw.below(self.mix.topics)}"
        message = Message(topic=topic, body=key.encode(), tags=tags, keys=(key,))
        attempt = 0
        while True:
            try:
                result = await producer.send(message)
            except TxmqError:
                attempt += 1
                await self._pause(attempt)
                continue
            if result.status is SendStatus.OK:
                self.history.add(Sent(self.now(), key, result.queue, int(result.offset), tags))
                return


class _WatchedAdmin(Admin):
    """Tells the history what a member asks and says about offsets."""

    def __init__(self, client: Client, note) -> None:
        super().__init__(client.session)
        self._note = note

    async def committed_offset(self, group: str, queue: Queue):
        return await self._note.loading(group, queue, super().committed_offset(group, queue))

    async def commit_offset(self, group: str, queue: Queue, offset: int) -> None:
        self._note.committing(group, queue, offset)
        await super().commit_offset(group, queue, offset)


class Member(_Person):
    """A consumer that comes and goes."""

    def __init__(
        self,
        world: World,
        name: str,
        names: str,
        mix: ClientMix,
        history: History,
        group: str,
        dials: GroupMix,
        done: set[str | tuple[Queue, int]],
    ) -> None:
        super().__init__(world, name, names, mix, history)
        self.group = group
        self.dials = dials
        self.done_with = done
        """Places in queues; and keys of what came again, wherever it first was."""
        self.is_over = asyncio.Event()
        self.is_settled = False
        """Whether it comes and goes no more."""
        self._stays = 0
        self._label = ""

    async def _live(self) -> None:
        while not self.is_over.is_set():
            await self._stay()
            if not self.is_over.is_set():
                await asyncio.sleep(2.0 * self._draw.fraction())

    async def _stay(self) -> None:
        self._stays += 1
        self._label = f"{self.name}/{self._stays}"
        network = Watched(self.machine.network)
        client = self._client(network)
        client.admin = _WatchedAdmin(client, self)
        consumer = self._consumer(client)
        async with client, consumer:
            if isinstance(consumer, PullConsumer):
                await self._poll_until_it_leaves(consumer)
            else:
                await self._until_it_leaves()
            begun = self.now()
        took_s = self.now() - begun - self.dials.stop_s
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._say_goodbye(network, took_s)

    def _consumer(self, client: Client) -> PushConsumer | PullConsumer:
        dials, settings = self.dials, self._settings()
        topics = [f"Topic{number}" for number in range(self.mix.topics)]
        if dials.is_pulled:
            pulling = PullConsumer(self.group, client, settings)
            for topic in topics:
                pulling.subscribe(topic, dials.tags)
            return pulling
        pushed = self._pushed(client, settings)
        for topic in topics:
            pushed.on(topic, dials.tags)(self._handle)
        return pushed

    def _pushed(self, client: Client, settings: ConsumerSettings) -> PushConsumer:
        return PushConsumer(self.group, client, settings)

    def _settings(self) -> ConsumerSettings:
        dials = self.dials
        return ConsumerSettings(
            start=StartFrom.FIRST,
            is_orderly=dials.is_orderly,
            concurrency=dials.concurrency,
            pull_batch=dials.batch,
            cached_max=dials.cached_max,
            rebalance_interval=dials.rebalance_interval,
            commit_interval=dials.commit_interval,
            stop_timeout=dials.stop_s,
            hold_max=5.0,
            suspend=0.2,
        )

    def _stay_s(self) -> float | None:
        if self.is_settled:
            return None
        return 2 * self.dials.stay_s * self._draw.fraction() or None

    async def _until_it_leaves(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stay_s()):
                await self.is_over.wait()

    async def _poll_until_it_leaves(self, consumer: PullConsumer) -> None:
        leaves_at = self.now() + (self._stay_s() or inf)
        while self.now() < leaves_at and not self.is_over.is_set():
            for message in await consumer.poll(1.0):
                await self._handle(message)
        with suppress(TxmqError):
            await consumer.commit()

    def _say_goodbye(self, network: Watched, took_s: float) -> None:
        me = asyncio.current_task()
        left = [
            task.get_name()
            for task in asyncio.all_tasks()
            if task is not me and getattr(task, "program", None) is me.program
        ]
        asked = sum(len(connection._exchange.waiting) for connection in network.made)
        opened = sum(connection.is_open for connection in network.made)
        self.history.add(Left(self.now(), self._label, took_s, tuple(sorted(left)), asked, opened))

    async def _handle(self, message: ReceivedMessage) -> Later | None:
        args = (self.name, self._label, self.group, message.queue, int(message.offset), message.key)
        attempts = message.attempts
        self.history.add(Handling(self.now(), *args, attempts))
        verdict: Later | None = Later()
        try:
            verdict = await self._work(message)
        finally:
            level = 0 if verdict is None else verdict.level
            self.history.add(Handled(self.now(), *args, verdict is None, attempts, level))
        if verdict is None:
            is_again = message.queue.topic.startswith(RETRY)
            self.done_with.add(message.key if is_again else (message.queue, int(message.offset)))
        return verdict

    async def _work(self, message: ReceivedMessage) -> Later | None:
        if self.dials.work_s:
            await asyncio.sleep(self.dials.work_s * self._draw.fraction())
        if self._draw.chance(self.dials.fail_chance):
            return self._fail(message)
        return None

    def _fail(self, message: ReceivedMessage) -> Later:
        if self._draw.chance(0.5):
            raise ValueError(message.key)
        return Later()

    # What its client says about offsets

    async def loading(self, group: str, queue: Queue, asking):
        """A broker is asked where the group stands."""
        label, began = self._label, self.now()
        offset = await asking
        known = None if offset is None else int(offset)
        self.history.add(Loaded(self.now(), self.name, label, group, queue, known, began))
        return offset

    def committing(self, group: str, queue: Queue, offset: int) -> None:
        """A broker is told where the group stands."""
        self.history.add(Committing(self.now(), self._label, group, queue, int(offset)))
