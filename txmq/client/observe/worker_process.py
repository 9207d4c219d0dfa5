"""What a worker process tells the clients that its application opens.

``txmq worker`` sets :data:`CURRENT` before it loads the application, in the context of the
process's main task. In programs without a worker, it stays ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from txmq.message import Later, ReceivedMessage

__all__ = ["CURRENT", "AfterVerdict", "HandlingObserver", "WorkerProcess"]

AfterVerdict: TypeAlias = Callable[[Later | None, bool], None]
"""Receives a handler's verdict, and whether the handler failed."""


class HandlingObserver(Protocol):
    """Counts handled messages and periodic sends."""

    def before(self, group: str, messages: Sequence[ReceivedMessage]) -> AfterVerdict:
        """A handler of a group is about to receive messages of one topic."""
        ...

    def sent(self, schedule: str, *, has_failed: bool) -> None:
        """A periodic message was sent, or could not be."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """One of the processes of a worker."""

    number: int
    """From 1 on; the first one sends periodic messages."""
    stop_s: float
    """How long a stop waits for running handlers, whatever a consumer's settings say."""
    observer: HandlingObserver


CURRENT: Final[ContextVar[WorkerProcess | None]] = ContextVar("txmq_worker_process", default=None)
"""The worker process that runs here, if any."""
