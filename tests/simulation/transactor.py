"""Transactional producers: half message, local transaction, END, and answers when they are asked.

What a local transaction came to stands in the database of the producer's group, which survives
every crash; whatever a producer says about a transaction it reads there. Only liars do otherwise,
and the history knows who lies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.history import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Asked,
    ClientDown,
    EndAnswered,
    EndSent,
    HalfRefused,
    HalfSending,
    HalfTaken,
    History,
    Word,
    WrongEnd,
    half_mark,
)
from tests.simulation.ledger import Ledger
from tests.simulation.mix import Mix, TransactionMix
from tests.simulation.workload import MARK, TAGS, TROUBLE, Client
from txmq.client import Session
from txmq.client.routes import TEMPLATE, TEMPLATE_QUEUES_MAX
from txmq.client.send_request import Envelope, sealed
from txmq.errors import refusal
from txmq.message import Message, Queue
from txmq.protocol import record as records
from txmq.protocol.bodies import Heartbeat, ProducerRegistration
from txmq.protocol.codes import SUCCESS, RequestCode, SysFlag
from txmq.protocol.command import Command
from txmq.protocol.headers import (
    CheckState,
    EndTransaction,
    SendAnswer,
    SendMessageV2,
)
from txmq.protocol.record import split_offset_id
from txmq.remoting.connection import Connection, no_service
from txmq.remoting.pool import ConnectionPool
from txmq.testing import World

__all__ = ["ANSWER_S", "Half", "Transactor"]

ANSWER_S = 3.0
TRIES = 6
"""So often a half message is sent at most, and an END that is to be answered."""

SPOKEN: Final = {
    COMMIT: int(SysFlag.COMMITTED),
    ROLLBACK: int(SysFlag.ROLLED_BACK),
    UNKNOWN: 0,
}
OPPOSITE: Final = {COMMIT: ROLLBACK, ROLLBACK: COMMIT}

WRONG: Final = ("value", "group", "offset", "position")
"""In which ways an END may make no sense."""


@dataclass(frozen=True, slots=True)
class Half:
    """A half message: what is to be sent, and the places it got."""

    xid: str
    group: str
    queue: Queue
    body: bytes
    tags: str
    immunity_s: int = 0
    offset: int = -1
    position: int = -1

    def end(self, says: str, *, is_check: bool = False) -> EndTransaction:
        """An END for it."""
        spoken = SPOKEN[says]
        xid = self.xid
        return EndTransaction(
            self.group, self.offset, self.position, spoken, is_check, xid, xid, self.queue.topic
        )

    def wrong(self, how: str) -> EndTransaction:
        """An END for it that nobody can want to be taken."""
        header = self.end(COMMIT)
        if how == "value":
            header.commit_or_rollback = 5
        elif how == "group":
            header.producer_group = "strangers"
        elif how == "offset":
            header.tran_state_table_offset += 1_000_000
        else:
            header.commit_log_offset += 1
        return header


class Transactor(Client):
    """A producer of a group, with some transactions under way at a time."""

    def __init__(
        self,
        world: World,
        name: str,
        names: str,
        mix: Mix,
        history: History,
        ledger: Ledger,
        queues: Sequence[Queue],
        brokers: Sequence[str],
    ) -> None:
        super().__init__(world, name, names, mix, history)
        assert mix.transactions is not None
        self.dials: TransactionMix = mix.transactions
        self.is_enough = False
        self._world = world
        self._ledger = ledger
        self._queues = queues
        self._brokers = brokers
        self._count = 0
        self._under_way = 0
        self._inbox: asyncio.Queue[tuple[Connection, Command]] = asyncio.Queue()
        self._awake = asyncio.Event()

    # Life and death

    def start(self) -> None:
        """Begin, or begin again after a crash; nothing where it runs."""
        if self._task is None or self._task.done():
            self._under_way = self.dials.lanes
            self._awake = asyncio.Event()
            self._awake.set()
            self._inbox = asyncio.Queue()
            super().start()

    @property
    def is_idle(self) -> bool:
        """Whether all it began has come to an end."""
        return self._task is not None and not self._task.done() and not self._under_way

    def calm(self) -> None:
        """Stop crashing and pausing, and begin nothing new."""
        self.is_enough = True
        self._awake.set()

    def _step(self) -> None:
        """Perhaps die here, and come back later."""
        draw = self._draw
        if self.is_enough or not draw.chance(self.dials.die_chance):
            return
        self.history.add(ClientDown(self.now(), self.name))
        after = (0.05, 1.0, 8.0)[draw.below(3)] * draw.fraction()
        self._world.loop.call_later(after, self.start, context=Context())
        if draw.chance(0.5):
            self.machine.kill()
        else:
            self.machine.crash()

    async def _live(self) -> None:
        machine = self.machine
        session = Session(
            self._names, machine.network, machine.clock, machine.entropy, service=self._serve
        )
        async with session:
            await self._work(session)

    async def _work(self, session: Session) -> None:
        other = ConnectionPool(self.machine.network, self.machine.clock, self._serve)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat(session))
                tasks.create_task(self._answer(tasks))
                for _ in range(self.dials.lanes):
                    tasks.create_task(self._lane(session, other, tasks))
        finally:
            await other.close()

    async def _beat(self, session: Session) -> None:
        client_id = f"{self.name}@{self._lives}"
        body = Heartbeat(client_id, [ProducerRegistration(self._ledger.group)]).write()
        while True:
            await self._awake.wait()
            for address in self._brokers:
                with suppress(*TROUBLE):
                    await session.request(address, RequestCode.HEART_BEAT, body=body)
            await asyncio.sleep(self.dials.beat_s)

    async def _doze(self) -> None:
        self._awake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.dials.doze_s * self._draw.fraction()):
                await self._awake.wait()
        self._awake.set()

    # Transactions

    async def _lane(
        self, session: Session, other: ConnectionPool, tasks: asyncio.TaskGroup
    ) -> None:
        draw, dials = self._draw, self.dials
        for _ in range(dials.count):
            if self.is_enough:
                break
            await self._transact(session, other, tasks)
            if not self.is_enough and draw.chance(dials.doze_chance):
                await self._doze()
            await asyncio.sleep(dials.think_s * draw.fraction())
        self._under_way -= 1

    async def _transact(
        self, session: Session, other: ConnectionPool, tasks: asyncio.TaskGroup
    ) -> None:
        draw, dials = self._draw, self.dials
        half = self._compose()
        self._step()
        taken = await self._prepare(session, other, half)
        if taken is None:
            return  # A half message that may be stored is checked later; nothing was committed.
        self._step()
        await asyncio.sleep(dials.local_s * draw.fraction())
        self._step()
        is_clear = not draw.chance(dials.unclear_chance)
        if is_clear or draw.chance(0.5):
            wanted = not draw.chance(dials.rollback_chance)
            committed = self._ledger.insert(self.now(), taken.xid, wanted, "local transaction")
            self._step()
            says = COMMIT if committed else ROLLBACK
            words = [Word(says, "producer")] if is_clear else []
            if draw.chance(dials.lie_chance):
                words.insert(draw.below(2), Word(OPPOSITE[says], "liar"))
        else:
            words = []
        if not words and draw.chance(0.5):
            words = [Word(UNKNOWN, "producer")]
        for word in words:
            for _ in range(draw.below(dials.repeats + 1)):
                self._under_way += 1
                tasks.create_task(self._repeat(session, other, taken, word))
        if draw.chance(0.5):
            await asyncio.gather(*[self._end(session, taken, word) for word in words])
        else:
            for word in words:
                await self._end(session, taken, word)
                self._step()
        if draw.chance(dials.again_chance):
            self._under_way += 1
            tasks.create_task(self._send_again(session, other, taken))

    def _compose(self) -> Half:
        draw, dials = self._draw, self.dials
        self._count += 1
        xid = f"{self.name}.{self._lives}-{self._count}"
        if draw.chance(dials.mood_chance):
            self._ledger.moods[xid] = dials.moods[draw.below(len(dials.moods))]
        return Half(
            xid,
            self._ledger.group,
            self._queues[draw.below(len(self._queues))],
            f"{xid} ".encode() + draw.token(draw.below(self.mix.body_max + 1)),
            TAGS[draw.below(len(TAGS))],
            1 + draw.below(dials.immunity_s) if draw.chance(dials.immunity_chance) else 0,
        )

    async def _prepare(self, session: Session, other: ConnectionPool, half: Half) -> Half | None:
        """Send the half message until it is acknowledged, or not much longer."""
        for attempt in range(TRIES):
            self.history.add(
                HalfSending(
                    self.now(), self.name, half.group, half.xid, half.queue, attempt, half.body
                )
            )
            try:
                return await self._send(session, other, half)
            except TROUBLE as problem:
                reason = f"{type(problem).__name__}: {problem}"
                self.history.add(HalfRefused(self.now(), half.xid, attempt, reason))
            self._step()
            await self._pause(attempt)
        return None

    async def _send(self, session: Session, other: ConnectionPool, half: Half) -> Half:
        draw = self._draw
        address = await session.address_of(half.queue)
        ways = [await session.connection(address)]
        if draw.chance(self.dials.twin_chance):
            # Opened before anything is sent, so that late messages reach the same broker process.
            ways.append(await other.connection(address))
        envelope = _envelope(half)
        header = SendMessageV2(
            producer_group=half.group,
            topic=half.queue.topic,
            default_topic=TEMPLATE,
            default_topic_queue_nums=TEMPLATE_QUEUES_MAX,
            queue_id=half.queue.number,
            # Some clients set it only in the properties.
            sys_flag=envelope.sys_flag | (0 if draw.chance(0.2) else int(SysFlag.PREPARED)),
            born_timestamp=session.clock.wall_ms(),
            flag=0,
            properties=envelope.properties,
        )
        asked = [
            way.ask(RequestCode.SEND_MESSAGE_V2, header, body=envelope.body, timeout_s=ANSWER_S)
            for way in ways
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        taken: Half | None = None
        for answer in answers:
            if isinstance(answer, Command) and answer.code == SUCCESS:
                told = answer.read(SendAnswer)
                *_, position = split_offset_id(told.msg_id)
                taken = replace(half, offset=told.queue_offset, position=position)
                self.history.add(
                    HalfTaken(self.now(), half.xid, half.queue.broker, told.queue_offset, position)
                )
        if taken is not None:
            return taken
        (answer, *_) = answers
        if isinstance(answer, BaseException):
            raise answer
        raise refusal(answer.code, answer.remark or "")

    # Ends

    async def _end(self, session: Session, half: Half, word: Word) -> None:
        """Say how it ended: once and not waiting for an answer, or until there is one."""
        is_oneway = self._draw.chance(self.dials.oneway_chance)
        for attempt in range(1 if is_oneway else TRIES):
            try:
                connection = await session.connection(await session.address_of(half.queue))
                if await self._say(connection, half, word, is_oneway=is_oneway):
                    return
            except TROUBLE:
                pass
            self._step()
            await self._pause(attempt)

    async def _repeat(
        self, session: Session, other: ConnectionPool, half: Half, word: Word
    ) -> None:
        """Repeat the END, at once or later, on this or another connection."""
        draw = self._draw
        await asyncio.sleep(self.dials.repeat_s * draw.fraction())
        with suppress(*TROUBLE):
            address = await session.address_of(half.queue)
            way = other if draw.chance(0.5) else session
            await self._say(await way.connection(address), half, word)
        self._under_way -= 1

    async def _say(
        self,
        connection: Connection,
        half: Half,
        word: Word,
        *,
        is_check: bool = False,
        is_oneway: bool = False,
    ) -> bool:
        """Send an END; whether it was settled by that."""
        header = half.end(word.says, is_check=is_check)
        self.history.add(EndSent(self.now(), half.xid, word))
        code = RequestCode.END_TRANSACTION
        if is_oneway:
            connection.oneway(code, header)
            return True
        answer = await connection.ask(code, header, timeout_s=ANSWER_S)
        self.history.add(EndAnswered(self.now(), half.xid, word, answer.code))
        return not refusal(answer.code, "").retryable if answer.code else True

    async def _send_again(self, session: Session, other: ConnectionPool, half: Half) -> None:
        """Send the half message later once more, as a network that holds it back would."""
        await asyncio.sleep(self.dials.repeat_s * self._draw.fraction())
        with suppress(*TROUBLE):
            await self._send(session, other, half)
        self._under_way -= 1

    # Checks

    def _serve(self, connection: Connection, request: Command) -> bytes | None:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._inbox.put_nowait((connection, request))
            return None
        return no_service(connection, request)

    async def _answer(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            connection, request = await self._inbox.get()
            await self._awake.wait()
            tasks.create_task(self._answer_one(connection, request))

    async def _answer_one(self, connection: Connection, request: Command) -> None:
        half = self._shown(request)
        draw, ledger, xid = self._draw, self._ledger, half.xid
        times, mood = ledger.ask(xid), ledger.moods.get(xid, "")
        if mood == "mute":
            return
        if mood.startswith("unsure") and (mood != "unsure" or times <= 2):
            await self._reply(connection, half, UNKNOWN)
            return
        if mood.startswith("wrong") and (mood != "wrong" or times <= 2):
            await self._blunder(connection, half, WRONG[draw.below(len(WRONG))])
            return
        await asyncio.sleep(
            (4 * self.dials.interval_s if mood == "late" else 0.01) * draw.fraction()
        )
        committed = ledger.insert(self.now(), xid, committed=False, by="check")
        self._step()
        await self._reply(connection, half, COMMIT if committed else ROLLBACK)

    def _shown(self, request: Command) -> Half:
        header = request.read(CheckState)
        record, _ = records.unpack(request.body)
        named = record.property_map()
        xid = header.transaction_id or ""
        asked = Asked(
            self.now(),
            self.name,
            self._ledger.group,
            xid,
            record.topic,
            record.queue_id,
            header.tran_state_table_offset,
            header.commit_log_offset,
            record.plain_body(),
        )
        self.history.add(asked)
        group = named.get("PGROUP", "")
        queue = Queue(record.topic, "", record.queue_id)
        return Half(
            xid, group, queue, b"", "", 0, header.tran_state_table_offset, header.commit_log_offset
        )

    async def _reply(self, connection: Connection, half: Half, says: str) -> None:
        is_oneway = self._draw.chance(self.dials.oneway_chance)
        word = Word(says, "check")
        with suppress(*TROUBLE):
            await self._say(connection, half, word, is_check=True, is_oneway=is_oneway)

    async def _blunder(self, connection: Connection, half: Half, how: str) -> None:
        header = half.wrong(how)
        header.from_transaction_check = True
        with suppress(*TROUBLE):
            answer = await connection.ask(RequestCode.END_TRANSACTION, header, timeout_s=ANSWER_S)
            self.history.add(WrongEnd(self.now(), half.xid, how, answer.code))


def _envelope(half: Half) -> Envelope:
    named = {
        "UNIQ_KEY": half.xid,
        MARK: half_mark(half.xid),
        "TRAN_MSG": "true",
        "PGROUP": half.group,
    }
    if half.immunity_s:
        named["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(half.immunity_s)
    message = Message(
        topic=half.queue.topic,
        body=half.body,
        tags=half.tags,
        keys=(half.xid,),
        properties=named,
    )
    return sealed(message, half.xid)
