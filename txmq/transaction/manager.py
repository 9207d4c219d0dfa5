"""The TM: opens a transaction, runs a function in it, and makes both sides one fact.

It is a producer of transactions whose listener is a resource: the half message is sent, the
function runs in a database transaction behind the fence, the broker is told what the resource
knows. Checks are answered by the fence, in any process that has a manager of the group open.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from txmq.client.client import Client
from txmq.client.lifecycle import Lifecycle
from txmq.client.settings import settings_or
from txmq.errors import ConfigError, TransactionConflict, UsageError
from txmq.message import Message
from txmq.runtime.clock import Clock
from txmq.runtime.entropy import Entropy
from txmq.runtime.network import Network
from txmq.runtime.threads import Runner
from txmq.transaction.listener import HalfMessage
from txmq.transaction.manager_branch import (
    Attempts,
    Call,
    LocalTransaction,
    Resource,
    Work,
    branch_of,
)
from txmq.transaction.manager_current import Entered, Transaction, current, refuse_another
from txmq.transaction.manager_message import Keys, MadeFrom, Properties, Shape, Text
from txmq.transaction.manager_producer import ResourceProducer
from txmq.transaction.manager_result import Late, explain, settled
from txmq.transaction.producer import DecideHalf
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState, TransactionOutcome
from txmq.transaction.story import Step, note
from txmq.transaction.tally import TransactionTally

__all__ = ["Begun", "TransactionManager"]

P = ParamSpec("P")
S = TypeVar("S")

_ROLLBACK = LocalTransactionState.ROLLBACK

_NO_SESSION: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
_MARK: Final = "__txmq_transaction__"
"""By what a decorated function is known."""


class Begun(Generic[S]):
    """A transaction that is begun, and not ended: its half message is stored."""

    def __init__(
        self,
        half: HalfMessage,
        local: LocalTransaction[S],
        attempts: Attempts,
        guard: AbstractContextManager[DecideHalf],
        inside: AbstractContextManager[None],
    ) -> None:
        self.half = half
        self.local = local
        self.attempts = attempts
        self.guard = guard
        self.decide = guard.__enter__()
        """Tells the broker, also where the manager has closed meanwhile."""
        self.inside = inside
        """For whoever runs the local transaction, as long as it runs."""


class TransactionManager(Lifecycle, Generic[S]):
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
        ConfigError: ``names`` names no server, or one in a way that is no address; or what should
            be a resource is none.
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
        if not hasattr(resource, "is_blocking"):
            given = type(resource).__name__
            raise ConfigError(f"give it a resource, such as SQLResource(engine), not {given}")
        self._resource = resource
        self._branch = branch_of(group, resource, chosen, self._ports)
        self._producer = ResourceProducer(
            group, names, resource, self._branch, chosen,
            network=network, clock=clock, entropy=entropy,
        )  # fmt: skip
        self._late = Late(self._producer, self._branch, chosen)

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
        made_from: MadeFrom = "arguments",
    ) -> Callable[
        [Callable[Concatenate[S, P], Any]],
        Callable[P, Coroutine[Any, Any, TransactionOutcome]],
    ]:
        """Make a function a transaction: its first argument is the session, and whoever calls it
        gives the others, and awaits the outcome.

        The message is made from these arguments, before the function runs. Each part is the same
        for all calls, or a function of the arguments. An ``async`` function is for a resource of
        asyncio; a plain one is for one that blocks, and runs in a thread.

        Made from the result, it is sent after the function has run and before the commit, while the
        local transaction keeps its locks; each part is the same for all calls, or a function of
        what the function has returned.

        What the function raises rolls back both sides, and comes out again;
        :class:`txmq.errors.RollBack` does not, and is the outcome's ``problem``.

        Args:
            topic: The message's topic.
            tags: Its tag.
            keys: Its key, or several.
            body: Makes the body: bytes, or what is written as JSON. Unless it is given, that is the
                argument, or where there are several, all of them by their names; or the result.
            properties: Its properties.
            made_from: ``"arguments"``, or ``"result"`` where the message needs what only the
                database knows, as keys that it generates.

        Raises:
            UsageError: The function is of the wrong kind for the resource, or a part of the message
                cannot be made so.
        """

        def decorate(
            function: Callable[Concatenate[S, P], Any],
        ) -> Callable[P, Coroutine[Any, Any, TransactionOutcome]]:
            shape = self.shape(function, topic, tags, keys, body, properties, made_from)

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> TransactionOutcome:
                return await self.called(shape, function, args, kwargs)

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
        made_from: MadeFrom,
    ) -> Shape:
        """How the messages of a function are made; see :meth:`transactional`.

        Raises:
            UsageError: As for :meth:`transactional`.
        """
        name = getattr(function, "__qualname__", repr(function))
        if made_from == "result":
            self._late.see_limit()
        if _MARK in getattr(function, "__dict__", {}):
            raise UsageError(
                f"{name} is a transaction already, and has one message; others belong into an "
                "outbox, a table that it writes"
            )
        if inspect.iscoroutinefunction(function) is self._resource.is_blocking:
            wanted = "blocks: a plain" if self._resource.is_blocking else "is awaited: an async"
            raise UsageError(f"this resource {wanted} function is for it, unlike {name}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{name} yields, and would run after its transaction if at all")
        signature = inspect.signature(function)
        arguments = list(signature.parameters.values())
        if not arguments or arguments[0].kind in _NO_SESSION:
            raise UsageError(f"the first argument of {name} is the session, and it takes none")
        if arguments[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            del arguments[0]  # Otherwise it takes the session, and whatever follows.
        return Shape(
            name=name,
            signature=signature.replace(parameters=arguments),
            topic=topic,
            tags=tags,
            keys=keys,
            body=body,
            properties=properties or {},
            made_from=made_from,
        )

    def called(
        self,
        shape: Shape,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        runner: Runner | None = None,
    ) -> Coroutine[Any, Any, TransactionOutcome]:
        """One call of a decorated function, to be awaited.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: No message can be made of them.
            Exception: Whatever the functions raise that make its parts.
        """
        call = function, args, kwargs
        if shape.is_late:
            shape.bound(args, kwargs)
            return self._late.run(shape, call, runner)
        return self.run(shape.message(args, kwargs), call, runner)

    async def run(
        self, message: Message, call: Call, runner: Runner | None = None
    ) -> TransactionOutcome:
        """Run a function in a transaction; see :meth:`transactional`.

        Args:
            message: The message.
            call: The function, and its arguments after the session.
            runner: Where it runs if it is a plain one, unless in a thread of its own.

        Raises:
            TransactionOverdue: It took too long.
            RolledBackByCheck: It began too late.
            TxmqError: As for :meth:`txmq.TransactionProducer.send_in_transaction`.
            Exception: What the function raised, or why the database refused the commit.
        """
        refuse_another()
        work: Work[S] = Work(call, self._now_ms())
        try:
            outcome = await self._producer.transact(message, work, runner)
        except TransactionConflict as conflict:
            explain(conflict, work.problem)
            raise
        if work.half is None:
            raise outcome.problem or UsageError("its local transaction was not run")
        return settled(outcome, work.problem, work.result)

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
        transaction: Transaction[S] | None = None
        problem: BaseException | None = None
        try:
            with begun.inside:
                async with begun.local as session:
                    transaction = Transaction(begun.half, session)
                    with Entered(transaction), self._branch.deadline(begun.attempts):
                        yield transaction
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - comes out below
            problem = raised
        except BaseException:
            await self.leave(begun)
            raise
        outcome = await self.end(begun, problem)
        if transaction is None and problem is not None:
            raise problem  # There was no block, so nobody can be given the outcome.
        assert transaction is not None, "it had a session"
        transaction.outcome = outcome

    async def begin(self, message: Message) -> Begun[S]:
        """Open a transaction, the first part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
        """
        refuse_another()
        born_ms = self._now_ms()
        half = await self._producer.prepare(message)
        if (doubt := half.doubt()) is not None:
            await self._producer.decide(half, _ROLLBACK)
            raise doubt
        guard = self._producer.undecided(half)
        local = self._branch.local(half.id, born_ms)
        inside = self._producer.stories.inside(half.id)
        # Last: whoever is not given what is begun cannot end it.
        begun = Begun(half, local, self._branch.attempts(half.id), guard, inside)
        self._producer.stories.tell(half.id, Step.CALLED)
        return begun

    async def end(self, begun: Begun[S], problem: BaseException | None) -> TransactionOutcome:
        """Decide a transaction, the last part of :meth:`transaction`.

        Raises:
            TxmqError: As for :meth:`run`.
            BaseException: What the code raised, as for :meth:`run`.
        """
        half, state, stories = begun.half, begun.local.state, self._producer.stories
        if problem is not None:
            with stories.inside(half.id):
                note(half.id, "it ends with %r", problem)
        stories.tell(half.id, Step.SAID, state)
        stories.tell(half.id, Step.HEARD, state)
        try:
            if isinstance(problem, asyncio.CancelledError):
                self._producer.decide_soon(half, state)
                raise problem
            outcome = await begun.decide(state)
        except TransactionConflict as conflict:
            explain(conflict, problem)
            raise
        finally:
            begun.guard.__exit__(None, None, None)
        return settled(outcome, problem, None)

    async def leave(self, begun: Begun[S]) -> None:
        """Have checks of it answered; nothing is decided here, and nothing more is told of it."""
        begun.guard.__exit__(None, None, None)
        self._producer.stories.end(begun.half.id)

    def current(self) -> Transaction[S] | None:
        """The transaction of this manager that runs in this task or thread; none if none does."""
        found = current()
        return found if found is not None and found.group == self.group else None

    # Messages

    def _now_ms(self) -> int:
        return self._producer.client.session.clock.wall_ms()


def signed(call: Callable[P, Any], signature: inspect.Signature) -> Callable[P, Any]:
    """Let it be seen what a decorated function takes: frameworks look."""
    vars(call)["__signature__"] = signature
    vars(call)[_MARK] = True
    return call
