"""The TM: opens a transaction, runs a function in it, and makes both sides one fact.

It is a producer of transactions whose listener is a resource: the half message is sent, the
function runs in a database transaction behind the fence, the broker is told what the resource
knows. Checks are answered by the fence, in any process that has a manager of the group open.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from txmq.client.client import Client
from txmq.client.settings import settings_or
from txmq.client.values import SendStatus
from txmq.errors import LocalProtocolError, RollBack, UsageError
from txmq.message import Message
from txmq.protocol import properties
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.transaction.listener import HalfMessage
from txmq.transaction.manager_branch import (
    Attempts,
    LocalTransaction,
    Resource,
    Work,
    branch_of,
)
from txmq.transaction.manager_current import Transaction, current, entered, refuse_another
from txmq.transaction.manager_message import Keys, Properties, Shape, Text
from txmq.transaction.producer import TransactionProducer
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState, TransactionOutcome, TransactionState
from txmq.transaction.story import Step, tell
from txmq.transaction.tally import TransactionTally
from txmq.transaction.threads import Runner

__all__ = ["Begun", "TransactionManager"]

P = ParamSpec("P")
S = TypeVar("S")

_ROLLBACK = LocalTransactionState.ROLLBACK
_UNKNOWN = LocalTransactionState.UNKNOWN


class Begun(Generic[S]):
    """A transaction that is begun, and not ended: its half message is stored."""

    def __init__(
        self,
        half: HalfMessage,
        local: LocalTransaction[S],
        attempts: Attempts,
        guard: AbstractContextManager[None],
    ) -> None:
        self.half = half
        self.local = local
        self.attempts = attempts
        self.guard = guard


class TransactionManager(Generic[S]):
    """Makes a database's commit and a message's being seen one fact.

    ::

        tm = TransactionManager("icbc", names, SQLResource(engine))

        @tm.transactional(topic="transfer", keys=lambda order: order.id)
        def transfer_out(session: Session, order: Transfer) -> None: ...

        async with tm:
            outcome = await transfer_out(order)

    Keep one open in every process that can answer for the group's transactions, all with the same
    database. Opening it verifies the resource; the resource itself is closed by whoever made it.

    Args:
        group: The producer group, whose members answer for each other.
        names: The name servers, ``host:port`` separated by ``;``, or a client to share.
        resource: The database.
        settings: How it sends, runs, ends and answers.
        network: Where streams come from; a client that is shared has its own.
        clock: Where the time comes from, likewise.
        entropy: Where chance comes from, likewise.

    Raises:
        ConfigError: ``names`` names no server, or one in a way that is no address.
        LocalProtocolError: The group's name holds what names may not hold.
        LimitExceeded: The group's name is too long.
    """

    def __init__(
        self,
        group: str,
        names: str | Client,
        resource: Resource[S],
        settings: ManagerSettings | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        chosen = settings_or(ManagerSettings, settings)
        self._resource = resource
        self._branch = branch_of(group, resource, chosen, self._ports)
        self._producer = TransactionProducer(
            group, names, self._branch, chosen, network=network, clock=clock, entropy=entropy
        )

    def _ports(self) -> tuple[Clock, Entropy]:
        session = self._producer.client.session
        return session.clock, session.entropy

    @property
    def group(self) -> str:
        """The producer group."""
        return self._producer.group

    @property
    def tally(self) -> TransactionTally:
        """What it has seen since it was opened."""
        return self._producer.tally

    async def __aenter__(self) -> Self:
        """Verify the resource, and be known to the brokers.

        Raises:
            ResourceError: The database cannot take part, or does not answer.
            UsageError: It is open already.
        """
        # First: a broker may ask at once.
        await self._resource.verify()
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for what is under way, for ``stop_s`` at most."""
        await self._producer.__aexit__(kind, problem, trace)

    # Decorated functions

    def transactional(
        self,
        *,
        topic: Text,
        tags: Text = "",
        keys: Keys = (),
        body: Callable[..., object] | None = None,
        properties: Properties | None = None,
    ) -> Callable[
        [Callable[Concatenate[S, P], Any]],
        Callable[P, Coroutine[Any, Any, TransactionOutcome]],
    ]:
        """Make a function a transaction: its first argument is the session, and whoever calls it
        gives the others, and awaits the outcome.

        The message is made from these arguments, before the function runs. Each part is the same
        for all calls, or a function of the arguments. An ``async`` function is for a resource of
        asyncio; a plain one is for one that blocks, and runs in a thread.

        What the function raises rolls back both sides, and comes out again;
        :class:`txmq.errors.RollBack` does not, and is the outcome's ``problem``.

        Args:
            topic: The message's topic.
            tags: Its tag.
            keys: Its key, or several.
            body: Makes the body: bytes, or what is written as JSON. Unless it is given, that is the
                argument, or where there are several, all of them by their names.
            properties: Its properties.

        Raises:
            UsageError: The function is of the wrong kind for the resource.
        """

        def decorate(
            function: Callable[Concatenate[S, P], Any],
        ) -> Callable[P, Coroutine[Any, Any, TransactionOutcome]]:
            shape = self.shape(function, topic, tags, keys, body, properties)

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> TransactionOutcome:
                message = shape.message(args, kwargs)
                return await self.run(message, lambda session: function(session, *args, **kwargs))

            return signed(call, shape.signature)

        return decorate

    def shape(
        self,
        function: Callable[..., Any],
        topic: Text,
        tags: Text,
        keys: Keys,
        body: Callable[..., object] | None,
        properties: Properties | None,
    ) -> Shape:
        """How the messages of a function are made; see :meth:`transactional`.

        Raises:
            UsageError: The function is of the wrong kind for the resource.
        """
        name = getattr(function, "__qualname__", repr(function))
        if inspect.iscoroutinefunction(function) is self._resource.is_blocking:
            wanted = "blocks: a plain" if self._resource.is_blocking else "is awaited: an async"
            raise UsageError(f"this resource {wanted} function is for it, unlike {name}")
        signature = inspect.signature(function)
        arguments = list(signature.parameters.values())[1:]
        return Shape(
            name=name,
            signature=signature.replace(parameters=arguments),
            topic=topic,
            tags=tags,
            keys=keys,
            body=body,
            properties=properties or {},
        )

    async def run(
        self, message: Message, call: Callable[[S], Any], runner: Runner | None = None
    ) -> TransactionOutcome:
        """Run a function in a transaction; see :meth:`transactional`.

        Args:
            message: The message.
            call: The function; it is given the session.
            runner: Where it runs if it is a plain one, unless in a thread of its own.

        Raises:
            TransactionOverdue: It took too long.
            RolledBackByCheck: It began too late.
            TxmqError: As for :meth:`txmq.TransactionProducer.send_in_transaction`.
            Exception: What the function raised, or why the database refused the commit.
        """
        refuse_another()
        work = Work(call, self._now_ms())
        try:
            outcome = await self._producer.transact(self._marked(message), work, runner)
        except asyncio.CancelledError:
            if work.half is not None and work.left is not _UNKNOWN:
                self._producer.decide_soon(work.half, work.left)
            raise
        if work.half is None:
            raise outcome.problem or UsageError("its local transaction was not run")
        return _settled(outcome, work.problem, work.result)

    # A block of code

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction[S]]:
        """A transaction for code that is no function: its end commits, an exception rolls back.

        ::

            async with tm.transaction(message) as transaction:
                transaction.session.add(...)
            print(transaction.outcome)

        It is run once: a serialization failure comes out, and nothing remains. For a resource of
        asyncio; one that blocks would stall the loop, and is for decorated functions, and for
        :mod:`txmq.blocking`.

        Raises:
            TxmqError: As for :meth:`run`.
            Exception: What the code raised, or why the database refused the commit.
        """
        if self._resource.is_blocking:
            raise UsageError(
                "this resource blocks, and would stall the loop: decorate a plain function"
            )
        begun = await self.begin(message)
        limit = asyncio.timeout(begun.attempts.left_s)
        transaction: Transaction[S] | None = None
        problem: BaseException | None = None
        try:
            async with begun.local as session:
                transaction = Transaction(begun.half, session)
                with entered(transaction):
                    async with limit:
                        yield transaction
        except TimeoutError as late:
            problem = begun.attempts.overdue() if limit.expired() else late
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - comes out below
            problem = raised
        except BaseException:
            await self.leave(begun)
            raise
        outcome = await self.end(begun, problem)
        if transaction is not None:
            transaction.outcome = outcome

    async def begin(self, message: Message) -> Begun[S]:
        """Open a transaction, the first part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
        """
        refuse_another()
        born_ms = self._now_ms()
        half = await self._producer.prepare(self._marked(message))
        if half.sent.status is not SendStatus.OK:
            status = half.sent.status.name
            await self._producer.decide(half, _ROLLBACK)
            raise UsageError(f"the half message is stored, but not safely: {status}")
        guard = self._producer.undecided(half)
        guard.__enter__()
        tell(half.id, Step.CALLED)
        local = self._branch.local(half.id, born_ms)
        return Begun(half, local, self._branch.attempts(half.id), guard)

    async def end(self, begun: Begun[S], problem: BaseException | None) -> TransactionOutcome:
        """Decide a transaction, the last part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
            BaseException: What the code raised, as for :meth:`run`.
        """
        half, state = begun.half, begun.local.state
        tell(half.id, Step.SAID, state.name)
        tell(half.id, Step.HEARD, state.name)
        try:
            if isinstance(problem, asyncio.CancelledError):
                if state is not _UNKNOWN:
                    self._producer.decide_soon(half, state)
                raise problem
            outcome = await self._producer.decide(half, state)
        finally:
            await self.leave(begun)
        return _settled(outcome, problem, None)

    async def leave(self, begun: Begun[S]) -> None:
        """Have checks of it answered; nothing is decided by that."""
        begun.guard.__exit__(None, None, None)

    def current(self) -> Transaction[S] | None:
        """The transaction of this manager that runs in this task or thread; none if none does."""
        found = current()
        return found if found is not None and found.group == self.group else None

    # Messages

    def _now_ms(self) -> int:
        return self._producer.client.session.clock.wall_ms()

    def _marked(self, message: Message) -> Message:
        if not isinstance(message, Message):
            return message  # The producer says what is wrong with it.
        if properties.UNIQUE_KEY in message.properties:
            raise LocalProtocolError("a message of a manager is given its id, and brings none")
        named = {**message.properties, properties.FENCE: self._resource.identity}
        return replace(message, properties=named)


def signed(call: Callable[P, Any], signature: inspect.Signature) -> Callable[P, Any]:
    """Let it be seen what a decorated function takes: frameworks look."""
    vars(call)["__signature__"] = signature
    return call


def _settled(
    outcome: TransactionOutcome, problem: BaseException | None, result: object
) -> TransactionOutcome:
    """What the caller is given, or what it is raised."""
    if problem is None:
        return replace(outcome, result=result)
    if outcome.state is TransactionState.ROLLED_BACK and not isinstance(problem, RollBack):
        problem.add_note(f"transaction {outcome.xid} is rolled back")
        raise problem
    known = problem if isinstance(problem, Exception) else None
    return replace(outcome, problem=known)
