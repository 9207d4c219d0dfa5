"""Sends messages that become visible only if a local transaction commits.

The half message is stored first, then the local transaction runs, then the broker receives its
decision. If anything fails on the way, the broker asks this producer's group, and a member answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from txmq.client.client import Client
from txmq.client.send.producer import Producer
from txmq.client.send.sender import Sender, check_kind
from txmq.client.settings import settings_or
from txmq.client.values import SendResult
from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.headers import CheckState
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.tasks import Runner
from txmq.text import quantity
from txmq.transaction import story
from txmq.transaction.checks import CheckAnswerer
from txmq.transaction.listener import (
    HalfMessage,
    LocalAnswer,
    TransactionListener,
    check_listener,
)
from txmq.transaction.resource import Resource
from txmq.transaction.run import ActiveTransactions, TransactionRun
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import LocalTransactionState, TransactionOutcome, TransactionTally

__all__ = ["TransactionProducer"]

log = logging.getLogger(__name__)

_DELAYS: Final = frozenset(properties.DELAYS)


class TransactionProducer(Producer):
    """A producer that also sends messages in transactions, and answers brokers that check them.

    ::

        async with TransactionProducer("bank", names, listener) as producer:
            outcome = await producer.send_in_transaction(message, order)

    Keep one open in every process that can answer for the group's transactions, even if it sends
    nothing. Leaving waits for transactions and checks in progress, for ``stop_s`` at most.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        listener: Runs local transactions, and knows their outcome.
        settings: The settings.
        network: Opens streams; a shared client has its own.
        clock: Gives the time, likewise.
        entropy: Gives randomness, likewise.

    Raises:
        ConfigError: ``names`` names no server, or holds an invalid address.
        UsageError: The listener cannot be called.
        LocalProtocolError: The group's name holds a character that names may not hold.
        LimitExceeded: The group's name is too long.
    """

    settings: TransactionSettings
    _noun: ClassVar[str] = "producer"
    """The name error messages use for it."""

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
        self.tally: TransactionTally = TransactionTally()
        self.stories: story.Stories = story.Stories(lambda: self._hooks)
        self._resource: Resource[Any] | None = None
        self._runs: ActiveTransactions | None = None
        self._marked: tuple[str | None, str] | None = None
        self._checks: CheckAnswerer | None = None

    async def __aenter__(self) -> Self:
        if self._runs is not None:
            raise UsageError("this producer is open already")
        # Before the first broker knows this producer: it may send checks at once.
        runs = ActiveTransactions(
            self.client, self.group, self.listener, self.settings, self.tally, self.stories,
            self._send_half, self.half_of, self._resource,
        )  # fmt: skip
        checks = CheckAnswerer(
            self.group, self.listener, runs.ends, self.settings, self.tally, self.stories.look,
            runs.undecided,
        )  # fmt: skip
        self._runs, self._checks = runs, checks
        try:
            await super().__aenter__()
        except BaseException:
            self._runs = self._checks = None
            await _stop(runs, checks)
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
        runs, checks = self._runs, self._checks
        async with AsyncExitStack() as stack:
            # These run even if the steps below are cancelled.
            stack.push_async_callback(super().__aexit__, kind, problem, trace)
            if runs is not None and checks is not None:
                stack.callback(self._forget_runs)
                stack.push_async_callback(_stop, runs, checks)
                await self._finish(runs, checks)

    def _forget_runs(self) -> None:
        self._runs = self._checks = None
        self.stories.close()

    async def _finish(self, runs: ActiveTransactions, checks: CheckAnswerer) -> None:
        """Let transactions and checks in progress end, while brokers send no new checks here."""
        runs.is_closing = True
        try:
            async with asyncio.timeout(self.settings.stop_s):
                await self.client.leave(self)
                await runs.wait()
                await checks.active.wait()
        except TimeoutError:
            log.warning(
                "group %s leaves %s and %s behind; brokers will ask", self.group,
                quantity(runs.count, "local transaction"),
                quantity(checks.active.count, "check"),
            )  # fmt: skip

    # Transactions

    async def send_in_transaction(self, message: Message, arg: object = None) -> TransactionOutcome:
        """Send a message that becomes visible if its local transaction commits, and run that.

        The listener's ``execute_local_transaction`` runs once the half message is stored. If a
        broker stored it, but not safely, it does not run, and both sides are rolled back. The
        message may set the time of the first check: its property
        ``CHECK_IMMUNITY_TIME_IN_SECONDS``.

        If the caller is cancelled during an ``async`` local transaction, that is cancelled too, and
        the outcome stays open until a broker's check. A plain one runs to its end, and is decided
        then.

        Args:
            message: The message; it must not be delayed.
            arg: Passed to the listener unchanged.

        Returns:
            The outcome. If it is not known yet, the broker checks until a member knows it.

        Raises:
            LocalProtocolError: The protocol cannot carry this message, or not in a transaction.
            LimitExceeded: It is too large.
            TransportError: The half message was not answered, and no local transaction ran; unless
                the effect is ``NONE``, a broker may ask about one.
            BrokerRefused: The broker refused the half message; likewise.
            TransactionConflict: It had been decided otherwise before. A person must look at that.
            OutcomeUnknown: The producer was closed meanwhile; a broker will ask.
            UsageError: The producer is not open.
        """
        return await self.transact(message, arg)

    async def transact(
        self, message: Message, arg: object = None, runner: Runner | None = None
    ) -> TransactionOutcome:
        """The same, with a runner for a plain local transaction; for :mod:`txmq.blocking`.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        outcome = await self.new_run(message).transact(arg, runner)
        assert outcome is not None, "its half message was sent"
        return outcome

    def new_run(self, message: Message | None = None) -> TransactionRun:
        """A transaction that has not begun.

        Args:
            message: Its message, unless the local transaction makes that.

        Raises:
            LocalProtocolError: As for :meth:`send_in_transaction`.
            UsageError: The producer is not open, or closes.
        """
        runs = self._runs
        if runs is None or self._sender is None:
            raise self._not_open()
        owner = self.client.session.owner
        if not owner.is_current:
            owner.check()
        if runs.is_closing:
            raise UsageError(f"this {self._noun} closes, and begins no more transactions")
        is_followed = self._hooks is not None or story.log.isEnabledFor(logging.DEBUG)
        if message is None:
            return TransactionRun(runs, self.client.session.ids.next(), is_followed)
        xid = self.check_half(message)
        if xid is None:
            xid = self.client.session.ids.next()
        return TransactionRun(runs, xid, is_followed, message)

    async def prepare(self, message: Message) -> HalfMessage:
        """Send a half message, the first part of :meth:`send_in_transaction`.

        It stays open until it is decided, here or by the answer to a check.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        return await self.new_run(message).prepare()

    def _send_half(self, message: Message, xid: str) -> Awaitable[SendResult]:
        sender = self._sender
        if sender is None:
            raise self._not_open()
        is_watched = self._hooks is not None or self._chain is not None
        if not (is_watched or message.properties) and message.wait_stored:
            return sender.send_half(message, None, xid, self._marks())
        half = self.half_of(message, xid)
        return self._send_watched(sender, half, xid) if is_watched else sender.send_half(half, None)

    async def _send_watched(self, sender: Sender, half: Message, xid: str) -> SendResult:
        send = sender.send_half
        with self.stories.inside(xid):
            if self._hooks is not None:
                send = partial(self._hooks.send, send)
            if self._chain is not None:
                return await self._chain.send(send, half, None)
            return await send(half, None)

    def _marks(self) -> str:
        """The properties that make a message a half message, as text."""
        identity = None if self._resource is None else self._resource.identity
        if identity == "":
            raise LocalProtocolError("the resource has no identity that checks could name")
        if self._marked is None or self._marked[0] != identity:
            named = self._marks_of(identity)
            self._marked = identity, properties.render(named)
        return self._marked[1]

    def _marks_of(self, identity: str | None) -> dict[str, str]:
        fence = {} if identity is None else {properties.FENCE: identity}  # Checks need that.
        return {
            **fence, properties.TRANSACTION: "true", properties.PRODUCER_GROUP: self.group
        }  # fmt: skip

    def check_half(self, message: Message) -> str | None:
        """Check a message that is sent in a transaction, and return the id that it brings, if any.

        Raises:
            LocalProtocolError: The message cannot be sent in a transaction.
        """
        if type(message) is not Message:
            if not isinstance(message, Message):
                raise LocalProtocolError(
                    f"a Message is sent, not a {type(message).__name__}; a transaction has one, "
                    "and others belong into an outbox, a table that the local transaction writes"
                )
            check_kind(message)
        named = message.properties
        if (
            message.delay_level
            or message.deliver_at_ms is not None
            or message.deliver_after_s is not None
            or (named and not _DELAYS.isdisjoint(named))
        ):
            raise LocalProtocolError("a message that is sent in a transaction cannot be delayed")
        if not named or properties.UNIQUE_KEY not in named:
            return None
        if self._resource is not None:
            raise LocalProtocolError("a message of a manager is given its id, and brings none")
        return named[properties.UNIQUE_KEY]

    def half_of(self, message: Message, xid: str) -> Message:
        """The encoded half message of a message."""
        marks = self._marks_of(None if self._resource is None else self._resource.identity)
        named = {properties.UNIQUE_KEY: xid, **message.properties, **marks}
        # Not replace(), which costs as much as the rest of this method.
        return Message(
            topic=message.topic, body=message.body, tags=message.tags, keys=message.keys,
            properties=named, flag=message.flag, wait_stored=message.wait_stored,
        )  # fmt: skip

    async def decide(
        self, half: HalfMessage, state: LocalTransactionState, problem: Exception | None = None
    ) -> TransactionOutcome:
        """Tell the broker the decision of a transaction, the last part of
        :meth:`send_in_transaction`. Once begun it goes on, even if the caller is cancelled.

        Args:
            half: The half message.
            state: The state of the local transaction.
            problem: What it raised, for the outcome.

        Raises:
            TransactionConflict: It had been decided otherwise before. A person must look at that.
            OutcomeUnknown: The producer was closed meanwhile; a broker will ask.
            UsageError: The producer is not open.
        """
        runs = self._runs
        if runs is None:
            raise self._not_open()
        is_followed = self._hooks is not None or story.log.isEnabledFor(logging.DEBUG)
        run = TransactionRun(runs, half.id, is_followed, sent=half.sent, known_half=half)
        outcome = await run.finish_apart(LocalAnswer(state, problem))
        assert outcome is not None, "its half message was sent"
        return outcome

    def _not_open(self) -> UsageError:
        return UsageError(
            f"this {self._noun} is not open; use it with 'async with', or await its start()"
        )

    # Checks

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """Take a broker's check; see :class:`txmq.client.broker_requests.TransactionOwner`."""
        if self._checks is not None:
            self._checks.take(connection, header, message)


async def _stop(runs: ActiveTransactions, checks: CheckAnswerer) -> None:
    runs.is_stopped = True
    try:
        await checks.stop()
    finally:
        await runs.stop()
