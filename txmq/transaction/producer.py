"""Sends messages that become visible only if a local transaction commits.

The broker stores the half message, then the local transaction runs, then the broker receives the
decision. If anything fails on the way, the broker asks this producer's group, and a member answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from txmq.client.client import Client
from txmq.client.send.producer import Producer, Sender, check_kind
from txmq.client.send_request import is_delayed
from txmq.client.values import SendResult
from txmq.errors import LocalProtocolError, UsageError
from txmq.message import XID, Message, ReceivedMessage
from txmq.protocol import properties
from txmq.protocol.headers import CheckState
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.signatures import is_async
from txmq.runtime.tasks import Runner, Tasks
from txmq.settings.values import settings_or
from txmq.text import quantity
from txmq.transaction import story
from txmq.transaction.checks import CheckAnswerer
from txmq.transaction.listener import LocalState, TransactionListener, check_listener
from txmq.transaction.machine import LocalAnswer, ProducerContext, Transaction
from txmq.transaction.resource import Resource
from txmq.transaction.settings import TransactionSettings
from txmq.transaction.state import (
    HalfMessage,
    LocalTransactionState,
    Phase,
    TransactionOutcome,
    TransactionTally,
    check_count,
)

__all__ = ["HalfMessageProducer", "TransactionProducer"]

log = logging.getLogger(__name__)


class HalfMessageProducer(Producer):
    """Sends half messages, runs their transactions and answers brokers' checks.

    :class:`TransactionProducer` is one for a listener. A manager has one for its resource, which
    carries out decisions and recovers the transactions of crashed processes.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, or a client to share.
        check: Gives the state of a local transaction; it may be ``async``.
        settings: The settings.
        resource: The resource of a manager.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        ConfigError: ``names`` is empty or holds an invalid address.
        LocalProtocolError: The group's name has an invalid character.
        LimitExceeded: The group's name is too long.
    """

    settings: TransactionSettings

    def __init__(
        self,
        group: str,
        names: str | Client,
        check: Callable[[ReceivedMessage], LocalState],
        settings: TransactionSettings,
        *,
        resource: Resource[Any] | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(group, names, settings, network=network, clock=clock, entropy=entropy)
        self.tally: TransactionTally = TransactionTally()
        self.stories: story.Stories = story.Stories(lambda: self._hooks)
        self._check = check
        self._resource = resource
        self._context: ProducerContext | None = None
        self._checks: CheckAnswerer | None = None
        self._recovery = Tasks()
        self._marked: tuple[str | None, str] | None = None
        self._noun = "producer" if resource is None else "manager"
        """The name error messages use for it."""

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise UsageError("this producer is open already")
        # Do this before any broker knows this producer: checks may arrive at once.
        context = ProducerContext(
            self.client, self.group, self.settings, self.tally, self.stories,
            self._send_half, self.half_of, self.check_half, self._resource,
        )  # fmt: skip
        checks = CheckAnswerer(
            self.group, self._check, context.ends, self.settings, self.tally, self.stories.look,
            context.undecided,
        )  # fmt: skip
        self._context, self._checks = context, checks
        try:
            await super().__aenter__()
        except BaseException:
            self._context = self._checks = None
            await _stop(context, checks)
            raise
        if self._resource is not None:
            self._recovery.start(self._resource.attend(), f"recovery of group {self.group}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.client.session.owner.is_current:
            return
        context, checks = self._context, self._checks
        async with AsyncExitStack() as stack:
            # These run even if the steps below are cancelled. Transactions in progress need their
            # connections and the recovery until they have ended.
            stack.push_async_callback(self._recovery.stop)
            stack.push_async_callback(super().__aexit__, kind, problem, trace)
            if context is not None and checks is not None:
                stack.callback(self._forget)
                stack.push_async_callback(_stop, context, checks)
                await self._finish(context, checks)

    def _forget(self) -> None:
        self._context = self._checks = None
        self.stories.close()

    async def _finish(self, context: ProducerContext, checks: CheckAnswerer) -> None:
        """Unregister with the brokers, then wait for transactions and checks in progress."""
        context.is_closing = True
        try:
            async with asyncio.timeout(self.settings.stop_timeout):
                await self.client.leave(self)
                await context.idle.wait()
                await checks.active.wait()
        except TimeoutError:
            log.warning(
                "group %s leaves %s and %s behind; brokers will ask", self.group,
                quantity(sum(context.undecided.values()), "local transaction"),
                quantity(checks.active.count, "check"),
            )  # fmt: skip

    # Transactions

    def new(self, messages: Sequence[Message] = ()) -> Transaction[Any]:
        """A transaction that has not begun.

        Args:
            messages: Its messages, except those that the local transaction makes.

        Raises:
            LocalProtocolError: A message cannot be sent in a transaction.
            LimitExceeded: There are too many messages.
            UsageError: The producer is not open, or is closing.
        """
        context = self._context
        if context is None or self._sender is None:
            raise self._not_open()
        owner = self.client.session.owner
        if not owner.is_current:
            owner.check()
        if context.is_closing:
            raise UsageError(f"this {self._noun} is closing, and begins no more transactions")
        check_count(len(messages))
        xid, *others = map(self.check_half, messages) if messages else (None,)
        if any(others):
            raise LocalProtocolError(
                "only the first message of a transaction may have a unique key, which is the "
                "transaction's id"
            )
        if xid is None:
            xid = self.client.session.ids.next()
        return Transaction(self.group, xid, context, self._is_followed(), tuple(messages))

    def _is_followed(self) -> bool:
        return self._hooks is not None or story.log.isEnabledFor(logging.DEBUG)

    def _send_half(self, message: Message, message_id: str, xid: str) -> Awaitable[SendResult]:
        sender = self._sender
        if sender is None:
            raise self._not_open()
        is_watched = self._hooks is not None or self._chain is not None
        if (
            is_watched
            or message_id != xid
            or message.properties
            or not message.wait_stored
            or is_delayed(message)
        ):
            half = self.half_of(message, message_id, xid)
            if is_watched:
                return self._send_watched(sender, half, xid)
            return sender.send_half(half, None)
        # All plain messages have the same marks.
        identity = None if self._resource is None else self._resource.identity
        if self._marked is None or self._marked[0] != identity:
            self._marked = identity, properties.render(self._marks_of(identity))
        return sender.send_half(message, None, xid, self._marked[1])

    async def _send_watched(self, sender: Sender, half: Message, xid: str) -> SendResult:
        send = sender.send_half
        with self.stories.inside(xid):
            if self._hooks is not None:
                send = partial(self._hooks.send, send)
            if self._chain is not None:
                return await self._chain.send(send, half, None)
            return await send(half, None)

    def _marks_of(self, identity: str | None) -> dict[str, str]:
        """The properties that make a message a half message."""
        if identity == "":
            raise LocalProtocolError("the resource has no identity that checks could name")
        fence = {} if identity is None else {properties.FENCE: identity}  # Checks need it.
        return {
            **fence, properties.TRANSACTION: "true", properties.PRODUCER_GROUP: self.group
        }  # fmt: skip

    def check_half(self, message: Message) -> str | None:
        """Check a message for a transaction; returns its unique key, if it has one.

        Raises:
            LocalProtocolError: The message cannot be sent in a transaction.
        """
        if type(message) is not Message:
            if not isinstance(message, Message):
                raise LocalProtocolError(
                    f"a transaction sends Messages, not a {type(message).__name__}"
                )
            check_kind(message)
        named = message.properties
        if not named or properties.UNIQUE_KEY not in named:
            return None
        if self._resource is not None:
            raise LocalProtocolError("a manager assigns its messages' ids; remove the unique key")
        return named[properties.UNIQUE_KEY]

    def half_of(self, message: Message, message_id: str, xid: str) -> Message:
        """Turn a message into a half message, by adding its marks."""
        marks = self._marks_of(None if self._resource is None else self._resource.identity)
        if message_id != xid or XID in message.properties:
            # A forwarded message brings the id of another transaction along.
            marks[XID] = xid
        named = {properties.UNIQUE_KEY: message_id, **message.properties, **marks}
        # Not replace(), which would double the cost of this method.
        return Message(
            topic=message.topic, body=message.body, tags=message.tags, keys=message.keys,
            properties=named, flag=message.flag,
            delay_level=message.delay_level, deliver_at_ms=message.deliver_at_ms,
            deliver_after=message.deliver_after, wait_stored=message.wait_stored,
        )  # fmt: skip

    def _not_open(self) -> UsageError:
        return UsageError(
            f"this {self._noun} is not open; use it with 'async with', or await its start()"
        )

    # Checks

    def check(self, connection: Connection, header: CheckState, message: ReceivedMessage) -> None:
        """Take a broker's check; see :class:`txmq.client.cluster_client.TransactionOwner`."""
        if self._checks is not None:
            self._checks.take(connection, header, message)


async def _stop(context: ProducerContext, checks: CheckAnswerer) -> None:
    context.is_stopped = True
    try:
        await checks.stop()
    finally:
        await context.stop()


class TransactionProducer(HalfMessageProducer):
    """A producer that also sends messages in transactions, and answers brokers' checks of them.

    ::

        async with TransactionProducer("bank", names, listener) as producer:
            outcome = await producer.send_in_transaction(message, order)

    Keep one open in every process that can answer for the group's transactions, even if it sends
    nothing. Closing it waits for transactions and checks in progress, up to ``stop_timeout``.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        listener: Runs local transactions, and knows their outcome.
        settings: The settings.
        network: Opens streams; a shared client has its own.
        clock: Gives the time; a shared client has its own.
        entropy: Gives randomness; a shared client has its own.

    Raises:
        ConfigError: ``names`` is empty or holds an invalid address.
        UsageError: The listener cannot be called.
        LocalProtocolError: The group's name has an invalid character.
        LimitExceeded: The group's name is too long.
    """

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
        super().__init__(
            group, names, listener.check_local_transaction,
            settings_or(TransactionSettings, settings),
            network=network, clock=clock, entropy=entropy,
        )  # fmt: skip
        self.listener = listener
        self._is_async = is_async(listener.execute_local_transaction)

    async def send_in_transaction(
        self, message: Message | Sequence[Message], arg: object = None
    ) -> TransactionOutcome:
        """Send a half message, run its local transaction, and commit or roll back both.

        The listener's ``execute_local_transaction`` runs once the half message is stored. If the
        broker stored it, but not safely, both sides are rolled back instead. The message's property
        ``CHECK_IMMUNITY_TIME_IN_SECONDS`` sets the time of the first check.

        Cancelling the caller also cancels an ``async`` local transaction, and the outcome stays
        open until a broker's check. A plain local transaction runs to its end and is then decided.

        Args:
            message: The message, or several that share one decision. A delay of a message begins
                with the commit, and needs a txmq broker.
            arg: Passed to the listener unchanged.

        Returns:
            The outcome. If it is not known yet, the broker checks until a group member knows it.

        Raises:
            LocalProtocolError: The protocol cannot carry this message in a transaction.
            LimitExceeded: It is too large.
            RequestNotSupported: It is delayed, and its broker is not a txmq broker.
            TransportError: The broker did not answer the half message, and the local transaction
                did not run. Unless the error's ``effect`` is ``NONE``, a broker may check it.
            BrokerRefused: The broker refused the half message; otherwise as ``TransportError``.
            TransactionConflict: It was already decided the other way; an operator must resolve it.
            OutcomeUnknown: The producer was closed first; a broker will ask.
            UsageError: The producer is not open.
        """
        return await self.transact(message, arg)

    async def transact(
        self,
        message: Message | Sequence[Message],
        arg: object = None,
        runner: Runner | None = None,
    ) -> TransactionOutcome:
        """Like :meth:`send_in_transaction`, with the thread that runs a plain local transaction.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        transaction, execute = self._new(message), self.listener.execute_local_transaction
        threads = None if self._is_async else runner or transaction.context.threads
        outcome = await transaction.run(lambda: execute(transaction.message, arg), threads)
        assert outcome is not None, "its half message was sent"
        return outcome

    def _new(self, message: Message | Sequence[Message]) -> Transaction[Any]:
        if isinstance(message, Sequence) and not message:
            raise LocalProtocolError("a transaction needs a message")
        return self.new(message if isinstance(message, Sequence) else (message,))

    async def prepare(self, message: Message | Sequence[Message]) -> HalfMessage:
        """Send a half message, the first part of :meth:`send_in_transaction`. Of several, this
        returns the first one.

        The transaction stays open until :meth:`decide` or the answer to a check decides it.

        Raises:
            TxmqError: As for :meth:`send_in_transaction`.
        """
        transaction = self._new(message)
        half = await transaction.prepare()
        transaction.leave()
        return half

    async def decide(
        self, half: HalfMessage, state: LocalTransactionState, problem: Exception | None = None
    ) -> TransactionOutcome:
        """Send the broker the decision of a transaction, the last part of
        :meth:`send_in_transaction`. Once begun, this continues even if the caller is cancelled.

        Args:
            half: The half message.
            state: The state of the local transaction.
            problem: What it raised, for the outcome.

        Raises:
            TransactionConflict: It was already decided the other way; an operator must resolve it.
            OutcomeUnknown: The producer was closed first; a broker will ask.
            UsageError: The producer is not open.
        """
        if self._context is None:
            raise self._not_open()
        transaction: Transaction[None] = Transaction(
            self.group, half.id, self._context, self._is_followed(), phase=Phase.BEGUN,
            sent=(half.sent, *(other.sent for other in half.others)),
            known_halves=(half, *half.others),
        )  # fmt: skip
        outcome = await transaction.decide(LocalAnswer(state, problem))
        assert outcome is not None, "its half message was sent"
        return outcome
