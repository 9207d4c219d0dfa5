"""Sends messages that are seen only if a local transaction commits.

The half message is stored first, then the local transaction runs, then the broker is told what came
of it. Whatever fails on the way, the broker asks this producer's group, and somebody answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

from txmq.client.client import Client
from txmq.client.send.producer import Producer
from txmq.client.send.sender import check_kind
from txmq.client.settings import settings_or
from txmq.client.values import SendResult
from txmq.errors import (
    Effect,
    LocalProtocolError,
    RemoteProtocolError,
    RollBack,
    TransactionConflict,
    TxmqError,
    UsageError,
)
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.headers import CheckState
from txmq.protocol.message_id import position_in
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.threads import Runner
from txmq.transaction.ends import Heard
from txmq.transaction.listener import (
    Draft,
    HalfMessage,
    TransactionListener,
    check_listener,
)
from txmq.transaction.opened import Opened
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    OUTCOMES,
    LocalTransactionState,
    Reply,
    TransactionOutcome,
)
from txmq.transaction.story import Step, Stories, note
from txmq.transaction.tally import TransactionTally

__all__ = ["DecideHalf", "TransactionProducer"]

log = logging.getLogger(__name__)

T = TypeVar("T")
DecideHalf: TypeAlias = Callable[[LocalTransactionState], Coroutine[Any, Any, TransactionOutcome]]

_DELAYS: Final = frozenset(properties.DELAYS)
_PERHAPS_STORED: Final = "if it is stored, the broker will ask;"
_NOT_ACKNOWLEDGED: Final = (
    "transaction %s is %s, but its broker has not said that it heard, and asks if it did not: %s"
)


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
    _called: ClassVar[str] = "producer"
    """What whoever has opened it, or has not, knows it as."""

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
        self.stories = Stories(lambda: self._hooks)
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
        if not self.client.session.owner.is_current:
            return
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
        self.stories.close()

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
            OutcomeUnknown: The producer was closed in the middle; a broker will ask.
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
        prepared = self._in_transaction(message)
        xid = prepared.properties[properties.UNIQUE_KEY]
        with running.local, running.undecided(xid):
            half = await self._first_part(prepared, xid)
            return await running.execute(half, arg, runner, self._decide, self._left)

    async def transact_late(
        self, draft: Draft, arg: object, runner: Runner | None = None
    ) -> TransactionOutcome | None:
        """The same for a local transaction that has its half message sent itself, with
        :meth:`prepare_late`, before it commits.

        Where it has not, nothing is decided, and there is no outcome.

        Raises:
            TransactionConflict: As for :meth:`decide`.
            UsageError: The producer is not open.
        """
        running = self._open_for_more()
        with running.local, running.undecided(draft.id):
            self.stories.open(draft.id, draft.topic, self.group)
            return await running.execute(draft, arg, runner, self._decide_late, self._left)

    async def prepare(self, message: Message) -> HalfMessage:
        """Send a half message, the first part of :meth:`send_in_transaction`.

        It stays open until it is decided, here or by the answer to a check.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        running = self._open_for_more()
        prepared = self._in_transaction(message)
        xid = prepared.properties[properties.UNIQUE_KEY]
        # It may be asked about before its answer is seen, by a process that was asleep.
        with running.undecided(xid):
            return await self._first_part(prepared, xid)

    async def _first_part(self, prepared: Message, xid: str) -> HalfMessage:
        self.stories.open(xid, prepared.topic, self.group)
        try:
            return await self._send_half(prepared, xid)
        except BaseException as problem:
            self.stories.end(xid, problem=problem)
            raise

    async def prepare_late(self, draft: Draft, message: Message) -> None:
        """Send the half message of a local transaction that is under way, also while this producer
        closes: what was begun is seen through.

        Raises:
            TxmqError: As for :meth:`prepare`; that transaction must not commit.
        """
        half = await self._send_half(self._in_transaction(message, draft.id), draft.id)
        if draft.said is not None:
            raise UsageError(f"transaction {draft.id} was left meanwhile")
        draft.half = half
        if (doubt := half.doubt()) is not None:
            raise doubt

    async def _send_half(self, prepared: Message, xid: str) -> HalfMessage:
        sending, stories = self._open(), self.stories
        stories.tell(xid, Step.SENT, prepared.topic)
        try:
            if self._hooks is None:
                sent = await sending.send_half(prepared, None)
            else:
                with stories.inside(xid):
                    sent = await self._hooks.send(sending.send_half, prepared, None)
            _place_of(sent)
        except TxmqError as problem:
            left = "it is not stored, and" if problem.effect is Effect.NONE else _PERHAPS_STORED
            problem.add_note(
                f"it was the half message of transaction {xid}: {left} nothing is committed"
            )
            raise
        stories.tell(xid, Step.STORED, sent.offset_id)
        stories.tell(xid, Step.REPORTED, sent.status)
        return HalfMessage(
            topic=prepared.topic, body=prepared.body, tags=prepared.tags, keys=prepared.keys,
            properties=prepared.properties, flag=prepared.flag, id=xid, sent=sent,
        )  # fmt: skip

    def _in_transaction(self, message: Message, xid: str = "") -> Message:
        if not isinstance(message, Message):
            raise LocalProtocolError(
                f"a Message is sent, not a {type(message).__name__}; a transaction has one, and "
                "others belong into an outbox, a table that the local transaction writes"
            )
        if type(message) is not Message:
            check_kind(message)
        if _is_delayed(message):
            raise LocalProtocolError("a message that is sent in a transaction cannot be delayed")
        named = {
            properties.UNIQUE_KEY: xid or self.client.session.ids.next(),
            **message.properties,
            **self._marks(message),
            properties.TRANSACTION: "true",
            properties.PRODUCER_GROUP: self.group,
        }
        # Not replace(), which costs as much as all the rest here.
        return Message(
            topic=message.topic, body=message.body, tags=message.tags, keys=message.keys,
            properties=named, flag=message.flag, wait_stored=message.wait_stored,
        )  # fmt: skip

    def _marks(self, message: Message) -> Mapping[str, str]:
        """More properties, by which whoever checks it knows what to look at."""
        del message
        return {}

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
            OutcomeUnknown: The producer was closed in the middle; a broker will ask.
            UsageError: The producer is not open.
        """
        running = self._running
        if running is None:
            raise UsageError(
                f"this {self._called} is not open; use it with 'async with', or await its start()"
            )
        return await self._see_through(running, half, state, problem)

    async def _see_through(
        self,
        running: Opened,
        half: HalfMessage,
        state: LocalTransactionState,
        problem: Exception | None = None,
    ) -> TransactionOutcome:
        with running.local:
            return await running.through(self._decide(running, half, state, problem), half)

    def decide_soon(self, half: HalfMessage, state: LocalTransactionState) -> None:
        """The same where nobody can wait for it, because whoever would is cancelled."""
        if (running := self._running) is not None:
            running.behind(self._decide(running, half, state, None), half)

    @contextmanager
    def undecided(self, half: HalfMessage) -> Iterator[DecideHalf]:
        """While inside, its local transaction runs here: checks of it are answered with "unknown",
        and the end of this producer waits for it, for ``stop_s`` at most.

        Gives what decides it, as :meth:`decide` does, also where this producer has closed
        meanwhile: what is committed is committed.

        Raises:
            UsageError: The producer is not open.
        """
        running = self._running
        if running is None:
            raise UsageError(
                f"this {self._called} is not open; use it with 'async with', or await its start()"
            )
        with running.local, running.undecided(half.id):
            yield partial(self._see_through, running, half)

    async def _decide_late(
        self,
        running: Opened,
        draft: Draft,
        state: LocalTransactionState,
        problem: Exception | None,
    ) -> TransactionOutcome | None:
        draft.said, draft.problem = state, problem
        if draft.half is None:
            with self.stories.inside(draft.id):
                note(draft.id, "no broker is known to have its message, and none is told")
            self.stories.end(draft.id, OUTCOMES[state, Reply.NONE][0].name, problem=problem)
            return None
        return await self._decide(running, draft.half, state, problem)

    async def _decide(
        self,
        running: Opened,
        half: HalfMessage,
        state: LocalTransactionState,
        problem: Exception | None,
    ) -> TransactionOutcome:
        heard, stories = Heard(Reply.NONE), self.stories
        if state is LocalTransactionState.UNKNOWN:
            stories.tell(half.id, Step.TOLD, "nothing, and will ask")
        else:
            stories.tell(half.id, Step.TOLD, state)
            heard = await running.tell(half, state)
        known = OUTCOMES.get((state, heard.reply))
        if known is not None:
            confirmed = "confirmed" if known[1] else "not confirmed"
            about = f"{known[0].value}, {confirmed} by the broker"
            stories.tell(half.id, Step.CONFIRMED, about)
        with stories.inside(half.id):
            late = await self._confirm(half.id, state)
        if known is None:
            self.tally.conflicts += 1
            conflict = TransactionConflict(half.id, state.name, heard.reply.value)
            stories.end(half.id, problem=conflict)
            raise conflict from heard.problem
        # One that had heard it before, by a check, acknowledges it by a refusal.
        unheard = None if known[1] else heard.problem
        if unheard is not None:
            log.warning(_NOT_ACKNOWLEDGED, half.id, known[0].value, unheard)
        outcome = TransactionOutcome(
            state=known[0],
            xid=half.id,
            sent=half.sent,
            is_acknowledged=known[1],
            problem=problem or unheard or late,
        )
        self.tally.ended(outcome)
        wrong = None if isinstance(problem, RollBack) else problem
        stories.end(half.id, known[0].name, is_acknowledged=known[1], problem=wrong or late)
        return outcome

    def _left(self, arg: Any) -> LocalTransactionState:
        """What is known of a local transaction that was cancelled."""
        del arg
        return LocalTransactionState.UNKNOWN

    async def _confirm(self, xid: str, state: LocalTransactionState) -> Exception | None:
        """Have the local transaction carry out what is decided, if that is left to do; what stands
        in the way.
        """
        del xid, state
        return None

    def _open_for_more(self) -> Opened:
        running = self._running
        if running is None or self._sender is None:
            raise UsageError(
                f"this {self._called} is not open; use it with 'async with', or await its start()"
            )
        self.client.session.owner.check()
        if running.is_closing:
            raise UsageError(f"this {self._called} closes, and begins no more transactions")
        return running

    def _parts(self) -> Opened:
        about = self.client, self.group, self.listener, self.settings
        return Opened(*about, self.tally, self.stories)

    # Checks

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """A broker asks; see :class:`txmq.client.broker_requests.Checked`."""
        if self._running is not None:
            self._running.checks.take(connection, header, message)


def _place_of(sent: SendResult) -> None:
    try:
        position_in(sent.offset_id)
    except RemoteProtocolError as problem:
        problem.effect = Effect.MAYBE
        raise


def _is_delayed(message: Message) -> bool:
    if message.delay_level or message.deliver_at_ms is not None:
        return True
    return message.deliver_after_s is not None or not _DELAYS.isdisjoint(message.properties)
