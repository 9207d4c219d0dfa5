"""``start()`` and ``stop()`` for objects that ``async with`` opens and closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

__all__ = ["Lifecycle"]


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
        """Open it, as ``async with`` does; for programs whose start and end lie apart.

        Raises:
            UsageError: It is already open, or a required part is missing.
            TxmqError: Any error of entering it with ``async with``.
        """
        await self.__aenter__()

    async def stop(self) -> None:
        """Close it, as leaving ``async with`` does; has no effect if it is not open."""
        await self.__aexit__(None, None, None)
