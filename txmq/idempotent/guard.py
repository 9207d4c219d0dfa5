"""What a guard is, and how one stands in front of a function: :func:`idempotent`.

A guard is asked by a key. It gives an :class:`Attempt`, which is entered, and says whether the
function is to be called; if so, whatever the guard needs to remember that is done at its end, with
the function's own work where the guard is in the same database.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import DualContext
from txmq.errors import ConfigError, KeyConflict, KeyInProgress, UsageError
from txmq.idempotent.verdict import Found, Verdict, decoded, encoded
from txmq.message import Later

__all__ = ["Attempt", "Guard", "PlainGuard", "SessionGuard", "idempotent"]

K_contra = TypeVar("K_contra", contravariant=True)
K = TypeVar("K")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R")
P = ParamSpec("P")

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 3
"""How often a function is called anew, at once, where the database has undone its work for the sake
of somebody else's. Beyond that whoever brought the message comes again later."""

Payload: TypeAlias = bytes | bytearray | memoryview | str | None


class Attempt(DualContext["Attempt[S]"], Generic[S]):
    """``with`` or ``async with``: one attempt to do what a key stands for.

    :attr:`verdict` says whether it is to be done. Only with ``FIRST`` there is something to do, in
    :attr:`session` where the guard has one; at the end of the block it is done, unless an exception
    comes out of it, which leaves the key free.
    """

    def __init__(self) -> None:
        self.found = Found(Verdict.IN_PROGRESS)
        self.kept: str | None = None
        self.is_abandoned = False

    @property
    def verdict(self) -> Verdict:
        """What the guard says."""
        return self.found.verdict

    @property
    def result(self) -> Any:
        """What was kept when it was done, if anything was."""
        return decoded(self.found.result)

    @property
    @abstractmethod
    def session(self) -> S:
        """Where the work is done, with ``FIRST``; ``None`` for a guard that has none."""

    def keep(self, result: object) -> None:
        """Store a result with the key, for whoever comes again; what JSON can carry.

        Raises:
            UsageError: That it is not, or there is nothing to do.
            LimitExceeded: It is too large.
        """
        if self.verdict is not Verdict.FIRST:
            raise UsageError("only what is done now has a result to keep")
        self.kept = encoded(result)

    @abstractmethod
    async def begin(self) -> Self:
        """Ask for the key, and have it if nobody else has.

        Raises:
            Exception: What the guard's library raises; nothing was done.
        """

    @abstractmethod
    async def end(self, problem: BaseException | None) -> None:
        """Have it done, or free the key if a problem came.

        Raises:
            OutcomeUnknown: It may be done, or not; whoever comes again will know.
            LeaseLost: It is done, and somebody else may do it, too.
            Exception: Why it could not be done; nothing of it remains.
        """

    def is_undone_for_others(self, problem: Exception) -> bool:
        """Whether what came out of the block was undone for somebody else's sake, so that another
        attempt makes sense at once: a deadlock, a serialization failure.
        """
        return failure(problem) is Failure.RETRY

    def abandon(self) -> None:
        """Leave everything as a process does that is killed here; for tests, which then leave the
        block.
        """
        self.is_abandoned = True


class Guard(Protocol[K_contra, S]):
    """Whoever knows what was done."""

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        ...

    def attempt(self, key: K_contra, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """An attempt, to be entered once.

        Args:
            key: What is to be done once.
            scope: Among which others; the same key stands for something else in another scope.
            payload: What came with the key: something else under the same key is a conflict.
                Nothing is compared where there is none.

        Raises:
            UsageError: That is no key.
        """
        ...


class SessionGuard(Guard[K_contra, S], Protocol[K_contra, S]):
    """One with a session in which the work is done."""

    @property
    def has_session(self) -> Literal[True]:
        """It has."""
        ...


class PlainGuard(Guard[K_contra, None], Protocol[K_contra]):
    """One that stands beside the work."""

    @property
    def has_session(self) -> Literal[False]:
        """It has none."""
        ...


@dataclass(frozen=True, slots=True)
class Guarded:
    """A function and what guards it; a decorated function has it as ``__idempotent__``."""

    function: Callable[..., Any]
    guard: Any
    key: Callable[..., Any]
    payload: Callable[..., Payload]
    scope: str
    keeps_result: bool

    def under(self, guard: Any) -> Callable[..., Any]:
        """The same function under another guard."""
        return _decorated(replace(self, guard=guard))

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attempt[Any]:
        """An attempt at one call."""
        key, payload = self.key(*args, **kwargs), self.payload(*args, **kwargs)
        attempt: Attempt[Any] = self.guard.attempt(key, scope=self.scope, payload=payload)
        return attempt

    def given(self, attempt: Attempt[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the function is called with."""
        return (attempt.session, *args) if self.guard.has_session else args

    def take(self, attempt: Attempt[Any], said: Any) -> None:
        """See what the function has returned, before it is done."""
        if said is Later:
            said = Later()  # As consumers take it.
        if isinstance(said, Later):
            # What a batch had before its first is undone as well.
            raise _Postponed(replace(said, first=0))
        if self.keeps_result:
            attempt.keep(said)

    def told(self, attempt: Attempt[Any]) -> Any:
        """What is said to whoever has nothing to do."""
        if attempt.verdict is Verdict.DONE:
            return attempt.result
        if attempt.verdict is Verdict.CONFLICT:
            raise KeyConflict(f"{self.scope} has done something else under this key before")
        raise KeyInProgress(f"{self.scope} is at work on this key somewhere else")


class _Postponed(Exception):
    """The function has said that it shall be called again later, so nothing is done."""

    def __init__(self, said: Later) -> None:
        super().__init__(said)
        self.said = said


class _SessionFirst(Protocol[S_co]):
    """Decorates what takes a session first."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[S_co, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], R], /) -> Callable[P, R | None]: ...


class _AsItIs(Protocol):
    """Decorates what takes none."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def idempotent(
    guard: SessionGuard[K, S],
    *,
    key: Callable[..., K],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> _SessionFirst[S]: ...
@overload
def idempotent(
    guard: PlainGuard[K],
    *,
    key: Callable[..., K],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> _AsItIs: ...
def idempotent(
    guard: Any,
    *,
    key: Callable[..., Any],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> Any:
    """Have a function do once what a key stands for, however often it is called; a decorator.

    The function is called with the guard's session first, where it has one. It is called only
    where the key is new. Who comes again is given the result that was kept, or ``None``. By the
    time the decorated function returns everything is committed, so a message may be acknowledged.
    A function that returns :class:`txmq.Later` has done nothing, and its key is free; a batch comes
    again whole.

    It works wherever a function is called: by consumers of ours, by those of other libraries, by
    nobody but your own code. Decorate the function with this first, and with what calls it above.

    Args:
        guard: Whoever knows what was done.
        key: What is done once: called with what the function is called with, but for the session.
        payload: What came with the key, likewise; the ``body`` of a first argument that has one.
            Something else under the same key is refused.
        scope: Among which others the key counts; by default the function's own name, with its
            module. Give one that stays when a function is renamed while messages may come again,
            and to what has no name of its own: a lambda, a partial, an object, ``_``.
        keeps_result: Store what the function returns, for whoever comes again. Where nothing is
            said, the guard knows: a :class:`~txmq.idempotent.token.TokenGuard` does it.

    Raises:
        ConfigError: The guard is for another kind of function, or a scope is needed.
        KeyInProgress: From a call: somebody else is at work on the key. Consumers of ours bring the
            message again later.
        KeyConflict: From a call: something else was done under the key. Consumers of ours put the
            message with the dead letters.
        OutcomeUnknown: From a call: it may be done, or not; call it again.
        Exception: From a call: what the function, or the guard's library, has raised; nothing was
            done.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _see_that_it_fits(function, guard)
        named = _scope_of(function) if scope is None else scope
        keeps = _keeps(function, guard, keeps_result)
        return _decorated(Guarded(function, guard, key, payload or body_of, named, keeps))

    return decorate


def body_of(*args: object, **kwargs: object) -> Payload:
    """The body of what a function is called with first, if it has one."""
    del kwargs
    body = getattr(args[0], "body", None) if args else None
    return body if isinstance(body, bytes | bytearray | memoryview | str) else None


def _decorated(guarded: Guarded) -> Callable[..., Any]:
    wrap = _waiting if is_async(guarded.function) else _blocking
    call = functools.wraps(guarded.function)(wrap(guarded))
    vars(call)["__idempotent__"] = guarded
    if guarded.guard.has_session:
        # Frameworks look at what a function takes; the session comes from us.
        signature = inspect.signature(guarded.function)
        first, *others = signature.parameters.values()
        if first.kind is inspect.Parameter.VAR_POSITIONAL:
            others = [first, *others]  # It takes the session, and whatever follows.
        vars(call)["__signature__"] = signature.replace(parameters=others)
        hints = dict(call.__annotations__)
        hints.pop(first.name, None)
        call.__annotations__ = hints
    return call


def _blocking(guarded: Guarded) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(ATTEMPTS_MAX)):
            attempt = guarded.attempt(args, kwargs)
            try:
                with attempt:
                    if attempt.verdict is not Verdict.FIRST:
                        return guarded.told(attempt)
                    said = guarded.function(*guarded.given(attempt, args), **kwargs)
                    if inspect.isawaitable(said):
                        _never_awaited(said)
                    guarded.take(attempt, said)
            except _Postponed as postponed:
                return postponed.said
            except Exception as problem:
                if not _may_retry(attempt, problem, left):
                    raise
            else:
                return said
        raise AssertionError("the last attempt returns or raises")

    return call


def _waiting(guarded: Guarded) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(ATTEMPTS_MAX)):
            attempt = guarded.attempt(args, kwargs)
            try:
                async with attempt:
                    if attempt.verdict is not Verdict.FIRST:
                        return guarded.told(attempt)
                    said = await guarded.function(*guarded.given(attempt, args), **kwargs)
                    guarded.take(attempt, said)
            except _Postponed as postponed:
                return postponed.said
            except Exception as problem:
                if not _may_retry(attempt, problem, left):
                    raise
            else:
                return said
        raise AssertionError("the last attempt returns or raises")

    return call


def _may_retry(attempt: Attempt[Any], problem: Exception, left: int) -> bool:
    if not left or not attempt.is_undone_for_others(problem):
        return False
    log.info("undone by the database, and tried again at once: %s", problem)
    return True


def _never_awaited(said: Any) -> None:
    if inspect.iscoroutine(said):
        said.close()
    raise UsageError("a plain function returned something to await: nothing was done in it yet")


def _see_that_it_fits(function: Callable[..., Any], guard: Any) -> None:
    name = _name_of(function)
    if not callable(getattr(guard, "attempt", None)):
        raise ConfigError(f"{guard!r} is no guard")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name} yields: nothing would be done when it is called")
    if is_async(function) is guard.is_blocking:
        wanted = (
            "it is async, so one of asyncio's, such as an AsyncEngine or a redis.asyncio.Redis"
            if guard.is_blocking
            else "it blocks, so one that blocks, such as an Engine or a redis.Redis"
        )
        raise ConfigError(f"{name} needs a guard over another source: {wanted}")
    if guard.has_session:
        taken = list(inspect.signature(function).parameters)
        if not taken:
            raise ConfigError(f"{name} takes no session: it is called with one first")
        if taken[0] == "self":
            raise ConfigError(
                f"{name} is called with a session first, and would take it for its object: "
                "decorate the method of an object, not of a class"
            )


def _keeps(function: Callable[..., Any], guard: Any, wanted: bool | None) -> bool:
    # A guard that has no opinion leaves it to the decorator, and one that has no room says so.
    usual = getattr(guard, "keeps_result", None)
    if wanted and usual is False:
        raise ConfigError(
            f"{_name_of(function)} keeps its result, and its guard has no room for it"
        )
    return bool(usual) if wanted is None else wanted


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is to be awaited; an object may have an async call."""
    call = getattr(function, "__call__", None)  # noqa: B004 - what it is matters
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _scope_of(function: Callable[..., Any]) -> str:
    # Two that share a scope by chance would leave each other's work out.
    if getattr(function, "__name__", "_") in {"<lambda>", "_"}:
        raise ConfigError(f"{_name_of(function)} has no name of its own: give it a scope")
    return _name_of(function)


def _name_of(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module in {"__main__", "__mp_main__"}:
        module = _program(module)
    return f"{module}.{name or type(function).__qualname__}"


def _program(module: str) -> str:
    """A program's name, the same whether it is run, imported, or begun anew by multiprocessing."""
    main = sys.modules.get(module)
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name).removesuffix(".__main__")
    return PurePath(getattr(main, "__file__", None) or module).stem
