"""Sends messages that are seen only if a local transaction commits.

The half message is stored first, then the local transaction runs, then the broker is told what came
of it. Whatever fails on the way, the broker asks this producer's group, and somebody answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from txmq.client.client import Client
from txmq.client.producer import Producer
from txmq.client.settings import settings_or
from txmq.client.values import SendResult
from txmq.errors import (
    Effect,
    LocalProtocolError,
    RemoteProtocolError,
    TransactionConflict,
    TxmqError,
    UsageError,
)
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.headers import CheckState
from txmq.protocol.message_id import split_offset_id
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.transaction.ends import Heard
from txmq.transaction.listener import HalfMessage, TransactionListener, check_listener
from txmq.transaction.opened import Opened
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    LocalTransactionState,
    Reply,
    TransactionOutcome,
)
from txmq.transaction.story import Step, tell
from txmq.transaction.tally import TransactionTally
from txmq.transaction.threads import Runner

__all__ = ["TransactionProducer"]

log = logging.getLogger(__name__)

_NOT_OPEN: Final = "this producer is not open; use it with 'async with'"


class TransactionProducer(Producer):
    """A producer that also sends messages in transactions, and answers brokers that ask about them.

    ::

        async with TransactionProducer("bank", names, listener) as producer:
            outcome = await producer.send_in_transaction(message, order)

    Keep one open in every process that can answer for the group's transactions, also where it
    sends nothing. Leaving waits for what is under way, for ``stop_s`` at most.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        listener: Runs local transactions, and knows what became of them.
        settings: How it sends, ends and answers.
        network: Where streams come from; a client that is shared has its own.
        clock: Where the time comes from, likewise.
        entropy: Where chance comes from, likewise.

    Raises:
        ConfigError: ``names`` names no server, or one in a way that is no address.
        UsageError: The listener cannot be called.
        LocalProtocolError: The group's name holds what names may not hold.
        LimitExceeded: The group's name is too long.
    """

    settings: TransactionSettings

    def __init__(
        self,
        group: str,
        names: str | Client,
        listener: TransactionListener,
        settings: TransactionSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        check_listener(listener)
        chosen = settings_or(TransactionSettings, settings)
        super().__init__(group, names, chosen, network=network, clock=clock, entropy=entropy)
        self.listener = listener
        self.tally = TransactionTally()
        self._running: Opened | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise UsageError("this producer is open already")
        # Before the first broker hears of us: it may ask at once.
        self._running = running = self._parts()
        try:
            await super().__aenter__()
        except BaseException:
            self._running = None
            await running.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        running = self._running
        async with AsyncExitStack() as at_last:
            # These are seen to also where what follows is cut short.
            at_last.push_async_callback(super().__aexit__, kind, problem, trace)
            if running is not None:
                at_last.callback(self._shut)
                at_last.push_async_callback(running.stop)
                await self._finish(running)

    def _shut(self) -> None:
        self._running = None

    async def _finish(self, running: Opened) -> None:
        """Let what is under way come to its end, while brokers ask nothing new here."""
        running.is_closing = True
        try:
            async with asyncio.timeout(self.settings.stop_s):
                await self.client.leave(self)
                await running.wait()
        except TimeoutError:
            log.warning("group %s leaves %s behind; brokers will ask", self.group, running)

    # Transactions

    async def send_in_transaction(self, message: Message, arg: object = None) -> TransactionOutcome:
        """Send a message that is seen if its local transaction commits, and run that.

        The listener's ``execute_local_transaction`` runs once the half message is stored; where a
        broker stored it, but not safely, it does not run, and all is rolled back. The message may
        name another time for the first check: its property ``CHECK_IMMUNITY_TIME_IN_SECONDS``.

        Cancelled during an ``async`` local transaction, that is cancelled too, and nothing is
        decided: a broker will ask. A plain one runs on to its end, and is decided then.

        Args:
            message: The message; not one that is delayed.
            arg: Given to the listener as it is.

        Returns:
            What is known now. Where nobody knows, the broker asks until somebody does.

        Raises:
            LocalProtocolError: The protocol cannot carry this message, or not in a transaction.
            LimitExceeded: It is too large.
            TransportError: No answer came to the half message, and no local transaction was run;
                where the effect is not ``NONE``, a broker may ask about one.
            BrokerRefused: The broker refused the half message; likewise.
            TransactionConflict: It had been decided otherwise before. Somebody must look at that.
            UsageError: The producer is not open.
        """
        return await self.transact(message, arg)

    async def transact(
        self, message: Message, arg: object = None, runner: Runner | None = None
    ) -> TransactionOutcome:
        """The same, with a word on where a plain local transaction runs; for
        :mod:`txmq.blocking`.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        running = self._open_for_more()
        with running.local.one():
            half = await self.prepare(message)
            with running.undecided(half):
                decide = partial(self._decide, running)
                state, problem = await running.execute(half, arg, runner, decide)
                tell(half.id, Step.HEARD, state.name)
                # Also of a producer that has closed meanwhile: what is committed is committed.
                return await running.through(decide(half, state, problem), half)

    async def prepare(self, message: Message) -> HalfMessage:
        """Send a half message, the first part of :meth:`send_in_transaction`.

        It stays open until it is decided, here or by the answer to a check.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        self._open_for_more()
        prepared = self._in_transaction(message)
        xid, sending = prepared.properties[properties.UNIQUE_KEY], self._open()
        tell(xid, Step.OPENED, self.group)
        tell(xid, Step.SENT, prepared.topic)
        try:
            if self._watches is None:
                sent = await sending.send_half(prepared, None)
            else:
                sent = await self._watches.send(sending.send_half, prepared, None)
            _place_of(sent)
        except TxmqError as problem:
            problem.add_note(f"it was the half message of transaction {xid}")
            raise
        tell(xid, Step.STORED, sent.offset_id)
        tell(xid, Step.REPORTED, sent.status.name)
        given = {each.name: getattr(prepared, each.name) for each in fields(Message)}
        return HalfMessage(**given, id=xid, sent=sent)

    def _in_transaction(self, message: Message) -> Message:
        if not isinstance(message, Message):
            raise LocalProtocolError(
                f"a Message is sent, not a {type(message).__name__}; a transaction has one, and "
                "others belong into an outbox, a table that the local transaction writes"
            )
        is_delayed = message.delay_level or message.deliver_at_ms is not None
        if is_delayed or message.deliver_after_s is not None or _names_delay(message):
            raise LocalProtocolError("a message that is sent in a transaction cannot be delayed")
        named = {
            properties.UNIQUE_KEY: self.client.session.ids.next(),
            **message.properties,
            properties.TRANSACTION: "true",
            properties.PRODUCER_GROUP: self.group,
        }
        return replace(message, properties=named)

    async def decide(
        self, half: HalfMessage, state: LocalTransactionState, problem: Exception | None = None
    ) -> TransactionOutcome:
        """Tell the broker what became of a transaction, the last part of
        :meth:`send_in_transaction`. Once begun it goes on, also where the caller is cancelled.

        Args:
            half: The half message.
            state: What the local transaction came to.
            problem: What it raised, for the outcome.

        Raises:
            TransactionConflict: It had been decided otherwise before. Somebody must look at that.
            UsageError: The producer is not open.
        """
        running = self._running
        if running is None:
            raise UsageError(_NOT_OPEN)
        with running.local.one():
            return await running.through(self._decide(running, half, state, problem), half)

    def decide_soon(self, half: HalfMessage, state: LocalTransactionState) -> None:
        """The same where nobody can wait for it, because whoever would is cancelled."""
        if (running := self._running) is not None:
            running.behind(self._decide(running, half, state, None), half)

    @contextmanager
    def undecided(self, half: HalfMessage) -> Iterator[None]:
        """While inside, its local transaction runs here: checks of it are answered with "unknown",
        and the end of this producer waits for it.

        Raises:
            UsageError: The producer is not open.
        """
        running = self._running
        if running is None:
            raise UsageError(_NOT_OPEN)
        with running.local.one(), running.undecided(half):
            yield

    async def _decide(
        self,
        running: Opened,
        half: HalfMessage,
        state: LocalTransactionState,
        problem: Exception | None,
    ) -> TransactionOutcome:
        heard = Heard(Reply.NONE)
        if state is LocalTransactionState.UNKNOWN:
            tell(half.id, Step.TOLD, "nothing, and will ask")
        else:
            tell(half.id, Step.TOLD, state.name)
            heard = await running.tell(half, state)
        known = OUTCOMES.get((state, heard.reply))
        if known is None:
            self.tally.conflicts += 1
            conflict = TransactionConflict(half.id, state.name, heard.reply.value)
            raise conflict from heard.problem
        if heard.problem is not None:
            log.warning("the END of transaction %s: %s", half.id, heard.problem)
        confirmed = "confirmed" if known[1] else "not confirmed"
        tell(half.id, Step.CONFIRMED, f"{known[0].value}, {confirmed} by the broker")
        outcome = TransactionOutcome(
            state=known[0],
            xid=half.id,
            half=half.sent,
            is_acknowledged=known[1],
            problem=problem or heard.problem,
        )
        self.tally.ended(outcome)
        return outcome

    def _open_for_more(self) -> Opened:
        running = self._running
        if running is None or self._sending is None:
            raise UsageError(_NOT_OPEN)
        if running.is_closing:
            raise UsageError("this producer closes, and begins no more transactions")
        return running

    def _parts(self) -> Opened:
        client, look = self.client, lambda: self._watches
        return Opened(client, self.group, self.listener, self.settings, self.tally, look)

    # Checks

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """A broker asks; see :class:`txmq.client.served.Checked`."""
        if self._running is not None:
            self._running.checks.take(connection, header, message)


def _place_of(sent: SendResult) -> None:
    try:
        split_offset_id(sent.offset_id)
    except RemoteProtocolError as problem:
        problem.effect = Effect.MAYBE
        raise


def _names_delay(message: Message) -> bool:
    return any(name in message.properties for name in properties.DELAYS)
