"""The local transactions of a manager: run behind the fence, within their time, again if need be.

A branch is the listener that the manager gives to its producer. What it says is what the resource
knows, never what an exception seems to mean.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from txmq.errors import TransactionOverdue, UsageError
from txmq.message import ReceivedMessage
from txmq.protocol import properties
from txmq.runtime.backoff import Backoff
from txmq.runtime.clock import Clock
from txmq.runtime.deadlines import Deadline, Deadlines
from txmq.runtime.entropy import Entropy
from txmq.transaction.listener import Half, HalfMessage, TransactionListener
from txmq.transaction.manager_current import Entered, Transaction
from txmq.transaction.settings import ManagerSettings
from txmq.transaction.state import LocalTransactionState
from txmq.transaction.story import note

__all__ = ["Branch", "Call", "LocalTransaction", "Resource", "Work", "branch_of"]

log = logging.getLogger(__name__)

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.5


class LocalTransaction(Protocol[S_co]):
    """One local transaction; ``with`` or ``async with``, as its resource is."""

    @property
    def state(self) -> LocalTransactionState:
        """What may be told of it now."""
        ...

    def flush(self) -> None:
        """Write what the session has kept back so far; for ``with``."""
        ...

    async def aflush(self) -> None:
        """The same for ``async with``."""
        ...

    def __enter__(self) -> S_co: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def __aenter__(self) -> S_co: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Resource(Protocol[S_co]):
    """What takes part in transactions; :class:`txmq.SQLResource` is one."""

    @property
    def is_blocking(self) -> bool:
        """Whether its local transactions are for ``with``."""
        ...

    @property
    def identity(self) -> str:
        """Which fence decides for it."""
        ...

    async def verify(self) -> None:
        """See that it can take part."""
        ...

    def local(self, xid: str, group: str, born_ms: int) -> LocalTransaction[S_co]:
        """A local transaction."""
        ...

    async def check(
        self, xid: str, group: str, born_ms: int, *, identity: str = ""
    ) -> LocalTransactionState:
        """What became of one."""
        ...

    def may_retry(self, problem: BaseException) -> bool:
        """Whether nothing remains of it, and the same may work now."""
        ...

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """Carry out what is decided, where that is a step of its own."""
        ...

    async def attend(self) -> None:
        """See to what others have left behind, until cancelled."""
        ...


class Attempts:
    """How often a local transaction is run, and until when."""

    def __init__(self, xid: str, settings: ManagerSettings, clock: Clock, entropy: Entropy) -> None:
        self.xid = xid
        self._limit_s = settings.local_timeout_s
        self._left = settings.local_attempts
        self._clock = clock
        self._entropy = entropy
        self._deadline = clock.monotonic() + self._limit_s
        self._backoff: Backoff | None = None

    @property
    def left_s(self) -> float:
        """How long it may still take."""
        return self._deadline - self._clock.monotonic()

    def see_time(self) -> None:
        """See that it is not too late to commit.

        Raises:
            TransactionOverdue: It is.
        """
        if self.left_s <= 0.0:
            raise self.overdue()

    def overdue(self) -> TransactionOverdue:
        """The error for it."""
        return TransactionOverdue(
            f"the local transaction of {self.xid} took longer than {self._limit_s} s"
        )

    def pause_s(self, problem: BaseException) -> float | None:
        """How long to wait before it is run again; none if it is not."""
        self._left -= 1
        if self._backoff is None:
            self._backoff = Backoff(self._entropy, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause_s = self._backoff.next_pause()
        if not self._left or pause_s >= self.left_s:
            return None
        log.info("the local transaction of %s is run again: %s", self.xid, problem)
        return pause_s


class Work(Generic[S]):
    """One call of a function, as a local transaction.

    Args:
        call: The function, and its arguments after the session.
        born_ms: When the transaction began.
    """

    is_repeatable = True
    """Whether it may be run again under its id."""

    def __init__(self, call: Call, born_ms: int) -> None:
        self._call = call
        self.born_ms = born_ms
        self._half: HalfMessage | None = None
        self.result: Any = None
        self.problem: BaseException | None = None
        self.left = LocalTransactionState.UNKNOWN
        """What is known where its caller was cancelled in the middle; else nothing is."""

    @property
    def half(self) -> HalfMessage | None:
        """Its half message, once there is one and it has begun."""
        return self._half

    def call(self, session: S) -> Any:
        """Call it."""
        function, args, kwargs = self._call
        return function(session, *args, **kwargs)

    def start(self, half: Half, attempts: Callable[[str], Attempts]) -> Attempts:
        """It begins; how often, and until when."""
        assert isinstance(half, HalfMessage), "stored before it begins"
        self._half = half
        return attempts(half.id)

    def finish(self, local: LocalTransaction[S], attempts: Attempts, result: object) -> None:
        """Do what comes between the function and the commit; for ``with``."""

    async def afinish(self, local: LocalTransaction[S], attempts: Attempts, result: object) -> None:
        """The same for ``async with``."""


class Branch(TransactionListener, Generic[S]):
    """What the two kinds of resources have in common.

    Args:
        group: The producer group.
        resource: Where local transactions are.
        settings: How often they are run, and how long.
        ports: Gives the time and chance.
    """

    def __init__(
        self,
        group: str,
        resource: Resource[S],
        settings: ManagerSettings,
        ports: Callable[[], tuple[Clock, Entropy]],
    ) -> None:
        self._group = group
        self._resource = resource
        self._settings = settings
        self._ports = ports
        self._deadlines = Deadlines()

    def deadline(self, attempts: Attempts) -> Deadline:
        """While inside, a task is cancelled once it is too late to commit; that is the error."""
        return self._deadlines.within(attempts.left_s, attempts.overdue)

    def attempts(self, xid: str) -> Attempts:
        """For one local transaction."""
        return Attempts(xid, self._settings, *self._ports())

    def local(self, xid: str, born_ms: int) -> LocalTransaction[S]:
        """One attempt."""
        return self._resource.local(xid, self._group, born_ms)

    def pause_s(
        self, state: LocalTransactionState, attempts: Attempts, problem: BaseException
    ) -> float | None:
        """How long to wait before a local transaction is run again; none if it is not."""
        is_nothing_left = state is LocalTransactionState.ROLLBACK
        if is_nothing_left and self._resource.may_retry(problem):
            return attempts.pause_s(problem)
        return None

    def _again_s(
        self, work: Work[S], state: LocalTransactionState, attempts: Attempts, problem: Exception
    ) -> float | None:
        note(attempts.xid, "it ends with %r", problem)
        return self.pause_s(state, attempts, problem) if work.is_repeatable else None

    async def check_local_transaction(self, message: ReceivedMessage) -> LocalTransactionState:
        """Ask the fence; see :class:`TransactionListener`."""
        identity = message.properties.get(properties.FENCE, "")
        if not identity:
            # Whoever sent it keeps its local transactions elsewhere, and no row says nothing.
            log.warning("transaction %s was begun by no manager of %s", message.id, self._group)
            return LocalTransactionState.UNKNOWN
        return await self._resource.check(
            message.id, self._group, message.born_ms, identity=identity
        )


class _Blocking(Branch[S]):
    def execute_local_transaction(self, message: Half, arg: Work[S]) -> LocalTransactionState:
        attempts = arg.start(message, self.attempts)
        while True:
            local = self.local(message.id, arg.born_ms)
            try:
                with local as session:
                    with Entered(Transaction(message, session)):
                        result = arg.call(session)
                        _refuse_promise(result)
                        arg.finish(local, attempts, result)
                    attempts.see_time()
            except Exception as problem:  # noqa: BLE001 - what it means, the resource knows
                pause_s = self._again_s(arg, local.state, attempts, problem)
                if pause_s is None:
                    arg.problem = problem
                    return local.state
            else:
                arg.result = result
                return local.state
            threading.Event().wait(pause_s)


def _refuse_promise(result: object) -> None:
    """A plain function that returns what is to be awaited has done nothing so far."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(f"the function returned {type(result).__name__}, which nobody awaits")


class _Awaited(Branch[S]):
    async def execute_local_transaction(self, message: Half, arg: Work[S]) -> LocalTransactionState:
        attempts = arg.start(message, self.attempts)
        while True:
            local = self.local(message.id, arg.born_ms)
            try:
                async with local as session:
                    with Entered(Transaction(message, session)), self.deadline(attempts):
                        result = await arg.call(session)
                        await arg.afinish(local, attempts, result)
            except asyncio.CancelledError as problem:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    arg.left = local.state
                    raise
                # Not the caller is cancelled, but something that the function waited for.
                arg.problem = problem
                return local.state
            except Exception as problem:  # noqa: BLE001 - what it means, the resource knows
                pause_s = self._again_s(arg, local.state, attempts, problem)
                if pause_s is None:
                    arg.problem = problem
                    return local.state
            else:
                arg.result = result
                return local.state
            arg.left = local.state
            await asyncio.sleep(pause_s)


def branch_of(
    group: str,
    resource: Resource[S],
    settings: ManagerSettings,
    ports: Callable[[], tuple[Clock, Entropy]],
) -> Branch[S]:
    """The branch for a resource."""
    kind = _Blocking if resource.is_blocking else _Awaited
    return kind(group, resource, settings, ports)
