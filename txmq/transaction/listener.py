"""What an application says about its local transactions, and how it is asked."""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from txmq.client.values import SendResult, SendStatus
from txmq.errors import RollBack, UsageError
from txmq.message import Message, ReceivedMessage
from txmq.runtime.threads import Runner
from txmq.transaction.state import LocalTransactionState

__all__ = [
    "Called",
    "Draft",
    "Half",
    "HalfMessage",
    "Said",
    "TransactionListener",
    "check_listener",
]

log = logging.getLogger(__name__)

_UNKNOWN: Final = LocalTransactionState.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage(Message):
    """A message that is stored and that nobody sees yet: what becomes of it is being decided."""

    id: str
    """The transaction's id, ``xid``: whoever is asked about the transaction is told the same. Keep
    it with what the local transaction writes."""
    sent: SendResult

    @property
    def key(self) -> str:
        """The first of its keys, or its id where it has none."""
        return self.keys[0] if self.keys else self.id

    def doubt(self) -> UsageError | None:
        """Why no local transaction may commit after it; none if it lies where it is safe."""
        # As stock producers do: what may be lost with the broker's memory is given up.
        if self.sent.status is SendStatus.OK:
            return None
        return UsageError(f"the half message is stored, but not safely: {self.sent.status.name}")


@dataclass(slots=True, kw_only=True)
class Draft:
    """A half message that is sent in the middle of its local transaction, and not before."""

    id: str
    """The transaction's."""
    group: str
    topic: str
    """Empty where that is not known yet."""
    half: HalfMessage | None = None
    """What has been sent."""
    said: LocalTransactionState | None = None
    """What the local transaction came to; from then on nothing is sent any more."""
    problem: Exception | None = None
    """What its listener failed with."""


Half: TypeAlias = HalfMessage | Draft
LocalState: TypeAlias = LocalTransactionState | Awaitable[LocalTransactionState]


class TransactionListener(Protocol):
    """Runs local transactions, and knows afterwards what became of them.

    Both methods may be ``async``. A plain one runs in a thread: in one of the producer's, or for
    ``execute_local_transaction`` of a :class:`txmq.blocking.TransactionProducer` in the caller's.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalState:
        """Carry out the local transaction, and say what it came to.

        It runs once the half message is stored. Whatever it raises leaves open what became of it,
        but for :class:`txmq.errors.RollBack`, which says it.

        Args:
            message: The message; its ``id`` belongs into what is written.
            arg: What was given to ``send_in_transaction``.
        """
        ...

    @abstractmethod
    def check_local_transaction(self, message: ReceivedMessage) -> LocalState:
        """Say what became of a local transaction, perhaps of another process of the group.

        Look for what it has written, under the message's ``id``. Before you say ``ROLLBACK`` make
        sure that it can no longer commit: it may still be running.
        """
        ...


class Said(NamedTuple):
    """What an application has said, and what it raised instead."""

    state: LocalTransactionState
    problem: Exception | None = None


def check_listener(listener: object) -> None:
    """Find out now whether a listener can be called, and not when the first check comes.

    Raises:
        UsageError: It has no such methods, or they take something else.
    """
    for name, given in (("execute_local_transaction", 2), ("check_local_transaction", 1)):
        method = getattr(listener, name, None)
        if isinstance(listener, type) or not callable(method):
            raise UsageError(f"a TransactionListener has {name}; {listener!r} has none to call")
        try:
            inspect.signature(method).bind(*[object()] * given)
        except TypeError as problem:
            raise UsageError(f"{name} is called with {given} arguments: {problem}") from problem
        except ValueError:
            continue  # Some that are built in do not tell.


class Called:
    """A listener's method made ready to be asked; whatever comes of it is an answer.

    Args:
        method: The method.
        runner: Where it runs unless it is ``async``.
    """

    def __init__(self, method: Callable[..., LocalState], runner: Runner) -> None:
        self._method = method
        self._runner = runner
        call = getattr(method, "__call__", None)  # noqa: B004 - an object may have an async call
        self.is_async = inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(call)

    async def ask(self, xid: str, *given: object, runner: Runner | None = None) -> Said:
        """Call it, elsewhere where somebody says so, and make sense of what it says or raises."""
        try:
            if self.is_async:
                said = await cast("Awaitable[object]", self._method(*given))
            else:
                said = await self._elsewhere(given, runner or self._runner)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # Not we are cancelled, but something that it waited for.
            return _unclear(xid, RuntimeError("what the listener waited for was cancelled"))
        except RollBack as problem:
            return Said(LocalTransactionState.ROLLBACK, problem)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it leaves the outcome open
            return _unclear(xid, problem)
        if _is_cancelled():
            # It kept to itself that it was cancelled; what it says counts all the same.
            log.warning("the listener took no notice of being cancelled with transaction %s", xid)
        return _sense(xid, said)

    async def _elsewhere(self, given: tuple[object, ...], runner: Runner) -> object:
        # The caller's context goes along, as with asyncio.to_thread: traces are kept in it.
        work = partial(copy_context().run, self._method, *given)
        said = await runner.run(work)
        # A plain function may also hand on what an async one returned.
        return await said if inspect.isawaitable(said) else said


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _unclear(xid: str, problem: Exception) -> Said:
    log.error("the listener failed with transaction %s", xid, exc_info=problem)
    return Said(_UNKNOWN, problem)


def _sense(xid: str, said: object) -> Said:
    if isinstance(said, LocalTransactionState):
        return Said(said)
    problem = TypeError(f"a listener returns a LocalTransactionState, not {said!r}")
    log.error("the listener makes no sense of transaction %s: %s", xid, problem)
    return Said(_UNKNOWN, problem)
