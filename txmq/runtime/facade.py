"""Blocking facades of asyncio client objects: calls from other threads wait for the loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from txmq.errors import UsageError
from txmq.runtime.background import Background

__all__ = ["AsyncContext", "Facade", "OpenableFacade", "in_loop", "iterates", "waits"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Facade(Generic[T_co]):
    """A blocking facade: an object of the asyncio client, with its loop."""

    def __init__(self, background: Background, real: T_co) -> None:
        self._background = background
        self._real = real


def waits(
    method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[T], P], R]:
    """Make a facade's method from a coroutine function; it waits for the result."""

    @functools.wraps(method)
    def call(self: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._background.wait(method(self._real, *args, **kwargs))

    return call


def iterates(
    method: Callable[Concatenate[T, P], AsyncIterator[R]],
) -> Callable[Concatenate[Facade[T], P], Iterator[R]]:
    """Make a facade's method from an asynchronous generator; it returns a plain iterator."""

    @functools.wraps(method)
    def call(self: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _items(self._background, method(self._real, *args, **kwargs))

    return call


def _items(background: Background, found: AsyncIterator[R]) -> Iterator[R]:
    async def next_item() -> tuple[R] | None:
        try:
            return (await anext(found),)
        except StopAsyncIteration:
            return None

    while (item := background.wait(next_item())) is not None:
        yield item[0]


def in_loop(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Facade[T], P], R]:
    """Make a facade's method that runs a plain method in the loop's thread."""

    @functools.wraps(method)
    def call(self: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run() -> R:
            return method(self._real, *args, **kwargs)

        return self._background.wait(run())

    return call


class AsyncContext(Protocol):
    """An object with an asynchronous start and end."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


X = TypeVar("X", bound=AsyncContext)


class OpenableFacade(Facade[X]):
    """An object that ``with`` opens and closes."""

    def __init__(self, background: Background, real: X, *, is_own: bool) -> None:
        super().__init__(background, real)
        self._is_own = is_own

    @property
    def real(self) -> X:
        """The object of the asyncio client."""
        return self._real

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in its loop, and wait for the result.

        Raises:
            UsageError: The loop does not run, or this thread has one.
            Exception: Any error of the coroutine.
        """
        return self._background.wait(work)

    def start(self) -> None:
        """Open it, as ``with`` does; for programs that start and stop it in different places.

        Raises:
            UsageError: It is already open, or a required part is missing.
            TxmqError: Any error of its counterpart in :mod:`txmq`.
        """
        self.__enter__()

    def stop(self) -> None:
        """Close it, as leaving ``with`` does; has no effect if it is not open."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        if self._is_own and self._background.is_running:
            raise UsageError(f"this {self._background.noun} is open already")
        try:
            if self._is_own:
                self._background.start()
            self._background.wait(self._real.__aenter__())
        except BaseException:
            if self._is_own:
                self._background.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._background.is_running:
            return  # It is closed, or belongs to the parent process of a fork.
        try:
            self._background.wait(self._real.__aexit__(kind, error, trace))
        finally:
            if self._is_own:
                self._background.stop()
