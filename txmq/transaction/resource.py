"""The interface of a manager's resource: one database, or several."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

from txmq.transaction.state import LocalTransactionState

__all__ = ["LocalTransaction", "Resource"]

S_co = TypeVar("S_co", covariant=True)


class LocalTransaction(Protocol[S_co]):
    """One local transaction; for ``with`` or ``async with``, depending on its resource."""

    @property
    def state(self) -> LocalTransactionState:
        """The current state."""
        ...

    def flush(self) -> None:
        """Flush the session's pending writes; for ``with``."""
        ...

    async def aflush(self) -> None:
        """See :meth:`flush`; for ``async with``."""
        ...

    def __enter__(self) -> S_co: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    # Not `async def`: pyright distinguishes coroutine functions from functions that return one.

    def __aenter__(self) -> Coroutine[Any, Any, S_co]: ...

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]: ...


class Resource(Protocol[S_co]):
    """A participant in transactions; :class:`txmq.SQLResource` is one.

    If :meth:`confirm` does nothing, set ``has_second_phase = False``: callers then need not wait
    for the confirmation of a decision.
    """

    @property
    def is_blocking(self) -> bool:
        """Whether local transactions use ``with`` instead of ``async with``."""
        ...

    @property
    def identity(self) -> str:
        """The identity of its fence."""
        ...

    async def verify(self) -> None:
        """Raise if the resource cannot take part."""
        ...

    def local(self, xid: str, group: str, born_ms: int) -> LocalTransaction[S_co]:
        """Make a local transaction."""
        ...

    async def check(
        self, xid: str, group: str, born_ms: int, *, identity: str = ""
    ) -> LocalTransactionState:
        """The state of a local transaction; an undecided one is decided now."""
        ...

    def may_retry(self, problem: BaseException) -> bool:
        """Whether the failed attempt left no trace, and another one may succeed."""
        ...

    async def confirm(self, xid: str, state: LocalTransactionState) -> None:
        """Carry out a decision, if that is a separate step."""
        ...

    async def attend(self) -> None:
        """Recover the transactions of crashed processes, until cancelled."""
        ...
