"""What is entered by ``with`` where its source blocks, and by ``async with`` where it is asyncio's.

What happens inside is written once, as coroutines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, TypeVar

from txmq.databases.door import drive
from txmq.errors import UsageError

__all__ = ["Block"]

T = TypeVar("T")


class Block(ABC, Generic[T]):
    """A block of somebody's code, with a beginning and an end of ours."""

    @property
    @abstractmethod
    def is_blocking(self) -> bool:
        """Whether its coroutines never wait, and it is for ``with``."""

    @abstractmethod
    async def begin(self) -> T:
        """What is done before the code inside, and what that is given."""

    @abstractmethod
    async def end(self, problem: BaseException | None) -> None:
        """What is done after it, with what it has raised; that is raised again."""

    def __enter__(self) -> T:
        """Begin, in this thread.

        Raises:
            UsageError: This is for ``async with``.
            Exception: As for :meth:`begin`.
        """
        if not self.is_blocking:
            raise UsageError("this source's sessions are for `async with`")
        return drive(self.begin())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it.

        Raises:
            Exception: As for :meth:`end`.
        """
        drive(self.end(problem))

    async def __aenter__(self) -> T:
        """See :meth:`__enter__`."""
        if self.is_blocking:
            raise UsageError("this source blocks: its sessions are for `with`, in a thread")
        return await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See :meth:`__exit__`."""
        await self.end(problem)
