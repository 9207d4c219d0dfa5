"""``start()`` and ``stop()`` for objects that ``async with`` opens and closes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from txmq.errors import UsageError
from txmq.runtime.process import OwnerProcess, until_stopped

__all__ = ["Lifecycle", "not_open", "until_closed"]


class Lifecycle(ABC):
    """An object that is opened and closed, by ``async with`` or by ``start`` and ``stop``."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it is open."""

    @property
    def needs(self) -> Sequence[Lifecycle]:
        """The shared objects that must be open before it, such as a client."""
        return ()

    async def start(self) -> None:
        """Open it, as ``async with`` does; for programs that start and stop it in different places.

        Raises:
            UsageError: It is already open, or a required part is missing.
            TxmqError: Any error of entering it with ``async with``.
        """
        await self.__aenter__()

    async def stop(self) -> None:
        """Close it, as leaving ``async with`` does; has no effect if it is not open."""
        await self.__aexit__(None, None, None)


def not_open(state: str) -> UsageError:
    """The error for a call to an object that is not open; ``state`` says so, naming the object."""
    return UsageError(f"{state}; use it with 'async with', or await its start()")


async def until_closed(closed: asyncio.Event | None, owner: OwnerProcess, state: str) -> None:
    """Return once an object has closed.

    Args:
        closed: Set when it closes; ``None`` before it opens.
        owner: The process that opened it.
        state: See :func:`not_open`.

    Raises:
        UsageError: It was never open, or another process opened it.
    """
    if closed is None:
        raise not_open(state)
    owner.check()
    await until_stopped(closed)
