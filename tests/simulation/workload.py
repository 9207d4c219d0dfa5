"""Producers and consumers. What they do is drawn from the seed; what they see is written down.

A producer tries a send until it is acknowledged, each time with the same bodies and message ids. A
consumer reads its queues by pulls that wait, commits now and then, and after a crash of its machine
goes on from what it committed. Both only ever stop when they are told to, so that what stays undone
is somebody's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.history import (
    Acknowledged,
    Began,
    ClientDown,
    Committed,
    Committing,
    Copy,
    History,
    Moved,
    Pulled,
    Refused,
    Sending,
    mark,
)
from tests.simulation.mix import Mix
from txmq.client import Admin, Session
from txmq.client.routes import TEMPLATE, TEMPLATE_QUEUES_MAX
from txmq.client.send_request import sealed
from txmq.client.values import PullOutcome
from txmq.errors import BrokerRefused, TransportError
from txmq.message import Message, Queue, ReceivedMessage
from txmq.protocol.codes import RequestCode
from txmq.protocol.headers import SendMessageV2
from txmq.testing import Machine, World

__all__ = ["AUTO_TOPIC", "MARK", "TAGS", "Client", "Consumer", "Producer", "Send", "copy_of"]

AUTO_TOPIC = "Sudden"
"""The topic that comes into being by sending to it."""

MARK = "MARK"
"""The property that says which attempt a copy comes from."""

TAGS = ("red", "blue")

RETRY_S = (0.05, 2.0)
"""The least and the longest pause before something is tried again."""

IDLE_S = 1.0
"""The longest pause of a consumer that got nothing."""


TROUBLE = (TransportError, BrokerRefused)
"""What clients live with. Anything else, a broken answer say, fails the run."""


def copy_of(message: ReceivedMessage) -> Copy:
    """A message as somebody got it."""
    return Copy(
        offset=message.offset,
        position=message.position,
        offset_id=message.offset_id,
        mark=message.properties.get(MARK, ""),
        tags=message.tags,
        stored_ms=message.stored_ms,
        body=message.body,
        key=message.id,
    )


class Client:
    """A program on a machine of its own, started again after each crash."""

    def __init__(self, world: World, name: str, names: str, mix: Mix, history: History) -> None:
        self.name = name
        self.machine: Machine = world.machine(name)
        self.mix = mix
        self.history = history
        self._names = names
        self._loop_time = world.now
        self._draw = world.entropy.fork(name)
        self._lives = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, or begin again after a crash."""
        if not self.machine.is_up:
            self.machine.restart()
        self._lives += 1
        self._task = self.machine.run(self._live(), name=self.name)

    def crash(self) -> None:
        """Take the machine down, with all that is under way."""
        self.machine.crash()
        self.history.add(ClientDown(self.now(), self.name))

    async def stop(self) -> None:
        """End wherever it stands."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def done(self) -> None:
        """Wait until it has nothing left to do."""
        if self._task is not None:
            await self._task

    def now(self) -> float:
        """The virtual second."""
        return self._loop_time()

    async def _live(self) -> None:
        machine = self.machine
        async with Session(self._names, machine.network, machine.clock, machine.entropy) as session:
            await self._work(session)

    async def _work(self, session: Session) -> None:
        raise NotImplementedError

    async def _pause(self, attempt: int = 0) -> None:
        least, most = RETRY_S
        await asyncio.sleep(min(least * 2**attempt, most) * (0.5 + self._draw.fraction()))


@dataclass(frozen=True, slots=True)
class Send:
    """Something to be stored: one message, or several in a batch."""

    name: str
    topic: str
    queue: Queue | None
    bodies: tuple[bytes, ...]
    ids: tuple[str, ...]
    tags: tuple[str, ...]
    is_batch: bool

    def messages(self, attempt: int) -> list[Message]:
        """Its messages as they travel in one attempt."""
        return [
            Message(
                topic=self.topic,
                body=body,
                tags=tag,
                keys=(self.name,),
                properties={"UNIQ_KEY": unique, MARK: mark(self.name, attempt, index)},
            )
            for index, (body, unique, tag) in enumerate(
                zip(self.bodies, self.ids, self.tags, strict=True)
            )
        ]


class Producer(Client):
    """Sends until it is told that enough was sent, and then until everything is acknowledged."""

    def __init__(
        self,
        world: World,
        name: str,
        names: str,
        mix: Mix,
        history: History,
        queues: Sequence[Queue],
    ) -> None:
        super().__init__(world, name, names, mix, history)
        self.is_enough = False
        self._queues = queues
        self._count = 0

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self.mix.lanes):
                lanes.create_task(self._lane(session))

    async def _lane(self, session: Session) -> None:
        draw, mix = self._draw, self.mix
        for _ in range(mix.sends):
            if self.is_enough:
                return
            if draw.chance(mix.oneway_chance):
                await self._throw(session, self._write(session, is_batch=False))
            else:
                await self.deliver(session, self._write(session, draw.chance(mix.batch_chance)))
            # Mostly at once, sometimes after a long pause: bursts, and time for rare events.
            await asyncio.sleep(mix.think_s * draw.fraction() ** 3)

    def _write(self, session: Session, is_batch: bool) -> Send:
        draw = self._draw
        queue: Queue | None = self._queues[draw.below(len(self._queues))]
        topic = queue.topic
        if self.mix.is_auto_created and not is_batch and draw.chance(0.3):
            topic, queue = AUTO_TOPIC, None
        count = 1 + draw.below(5) if is_batch else 1
        return self.compose(session, topic, queue, count, is_batch=is_batch)

    def compose(
        self, session: Session, topic: str, queue: Queue | None, count: int, *, is_batch: bool
    ) -> Send:
        """Something to send, of a random size."""
        draw = self._draw
        self._count += 1
        name = f"{self.name}.{self._lives}-{self._count}"
        bodies = [
            f"{name}.{index} ".encode() + draw.token(draw.below(self.mix.body_max + 1))
            for index in range(count)
        ]
        tags = [TAGS[draw.below(len(TAGS))] for _ in bodies]
        ids = [session.ids.next() for _ in bodies]
        return Send(name, topic, queue, tuple(bodies), tuple(ids), tuple(tags), is_batch)

    async def deliver(self, session: Session, send: Send, attempt: int = 0) -> None:
        """Send until it is acknowledged; attempts made before are not counted again."""
        while not await self.attempt(Admin(session), send, attempt):
            await self._pause(attempt)
            attempt += 1

    async def attempt(self, admin: Admin, send: Send, attempt: int) -> bool:
        """Try once; whether it was acknowledged."""
        history = self.history
        history.add(Sending(self.now(), self.name, send.name, attempt, send.bodies))
        messages = send.messages(attempt)
        try:
            if send.is_batch:
                told = await admin.send_batch(messages, send.queue)
            else:
                told = [await admin.send(messages[0], send.queue)]
        except TROUBLE as problem:
            reason = f"{type(problem).__name__}: {problem}"
            history.add(Refused(self.now(), send.name, attempt, reason, problem.effect))
            return False
        taken, ids = told[0], tuple(result.offset_id for result in told)
        at = self.now()
        history.add(Acknowledged(at, send.name, attempt, taken.queue, taken.offset, ids))
        return True

    async def _throw(self, session: Session, send: Send) -> None:
        """Send one-way: nobody says whether it arrived."""
        self.history.add(Sending(self.now(), self.name, send.name, 0, send.bodies, answered=False))
        (message,) = send.messages(0)
        envelope = sealed(message, session.ids.next())
        try:
            if send.queue is None:
                queue, address = await session.queue_to_write(send.topic)
            else:
                queue, address = send.queue, await session.address_of(send.queue)
            connection = await session.connection(address)
            header = SendMessageV2(
                producer_group="one-way",
                topic=send.topic,
                default_topic=TEMPLATE,
                default_topic_queue_nums=TEMPLATE_QUEUES_MAX,
                queue_id=queue.number,
                sys_flag=envelope.sys_flag,
                born_timestamp=session.clock.wall_ms(),
                flag=0,
                properties=envelope.properties,
            )
            connection.oneway(RequestCode.SEND_MESSAGE_V2, header, body=envelope.body)
        except TROUBLE as problem:
            reason = f"{type(problem).__name__}: {problem}"
            self.history.add(Refused(self.now(), send.name, 0, reason, problem.effect))


class Consumer(Client):
    """Reads some queues in the name of a group."""

    def __init__(
        self,
        world: World,
        name: str,
        names: str,
        mix: Mix,
        history: History,
        group: str,
        queues: Sequence[Queue],
        tags: str = "*",
    ) -> None:
        super().__init__(world, name, names, mix, history)
        self.group = group
        self.queues = tuple(queues)
        self.places: dict[Queue, int] = {}
        self._tags = tags

    async def _work(self, session: Session) -> None:
        async with asyncio.TaskGroup() as readers:
            for queue in self.queues:
                readers.create_task(self._read(Admin(session), queue))

    async def _read(self, admin: Admin, queue: Queue) -> None:
        offset = await self._begin(admin, queue)
        failures = 0
        while True:
            try:
                offset = await self._pull(admin, queue, offset)
                if self._draw.chance(0.3):
                    await self._commit(admin, queue, offset)
                failures = 0
            except TROUBLE:
                await self._pause(failures)
                failures += 1

    async def _begin(self, admin: Admin, queue: Queue) -> int:
        failures = 0
        while True:
            try:
                offset = await admin.committed_offset(self.group, queue) or 0
            except TROUBLE:
                await self._pause(failures)
                failures += 1
                continue
            self.history.add(Began(self.now(), self.group, queue, offset, self._tags))
            self.places[queue] = offset
            return offset

    async def _pull(self, admin: Admin, queue: Queue, offset: int) -> int:
        hold_s = self.mix.hold_s * self._draw.fraction()
        count = 1 + self._draw.below(32)
        got = await admin.pull(queue, offset, count, self.group, hold=hold_s, tags=self._tags)
        now, further = self.now(), int(got.next_offset)
        if got.outcome is PullOutcome.MOVED:
            self.history.add(Moved(now, self.group, queue, offset, further))
        elif got.messages or further != offset:
            copies = tuple(copy_of(message) for message in got.messages)
            self.history.add(Pulled(now, self.group, queue, offset, further, copies))
        else:
            await asyncio.sleep(IDLE_S * self._draw.fraction())
        self.places[queue] = further
        return further

    async def _commit(self, admin: Admin, queue: Queue, offset: int) -> None:
        self.history.add(Committing(self.now(), self.group, queue, offset))
        await admin.commit_offset(self.group, queue, offset)
        self.history.add(Committed(self.now(), self.group, queue, offset))
