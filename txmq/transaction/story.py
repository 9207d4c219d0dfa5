"""The nine steps of a transaction in order, as log lines and as spans of a trace.

They are the steps of the classic transfer between two banks: the producer manages the transaction,
the broker coordinates it, and the local transaction belongs to the resource. ``DEBUG`` shows the
lines; for your own handlers, their records carry the transaction's ``xid`` and the number of the
``step``. Log lines and spans use the same words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from enum import Enum
from typing import Final

from txmq.client.observe.hooks import SendHooks, TransactionHook
from txmq.limits import STORIES_MAX

__all__ = ["Step", "Stories", "log", "note"]

log = logging.getLogger(__name__)


class Step(Enum):
    """A step: its number, a word for it, and a text with room for a detail."""

    OPENED = 1, "open", "group %s opens the transaction"
    SENT = 2, "send", "the producer sends the half message for %s"
    STORED = 3, "store", "the broker stores it at %s, invisible to consumers"
    REPORTED = 4, "report", "the broker reports %s"
    CALLED = 5, "run", "the local transaction runs%s"
    RETURNED = 6, "return", "the local transaction returns %s"
    RECEIVED = 7, "receive", "the producer receives %s"
    DECIDED = 8, "decide", "the broker receives %s"
    CONFIRMED = 9, "confirm", "the transaction is %s"


class _Story:
    """A transaction that at least one watch follows."""

    __slots__ = ("_hooks", "xid")

    def __init__(self, xid: str, watches: Sequence[TransactionHook]) -> None:
        self.xid = xid
        self._hooks = watches

    def begin_step(self, number: int, word: str, text: str) -> None:
        for watch in self._hooks:
            watch.begin_step(number, word, text)

    def note(self, text: str) -> None:
        for watch in self._hooks:
            watch.note(text)

    @contextmanager
    def inside(self) -> Iterator[None]:
        leaves = [watch.enter() for watch in self._hooks]
        outer = _CURRENT.get()
        _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.set(outer)
            for leave in reversed(leaves):
                leave()

    def end(self, state: str, is_acknowledged: bool, error: BaseException | None) -> None:
        for watch in self._hooks:
            watch.end(state, is_acknowledged, error)


_CURRENT: Final[ContextVar[_Story | None]] = ContextVar("txmq_story", default=None)
_UNWATCHED: Final = nullcontext()


class Stories:
    """The steps of a producer's transactions, reported to its watches and to the log.

    Args:
        look: Returns the producer's watches, if it has any.
    """

    def __init__(self, look: Callable[[], SendHooks | None]) -> None:
        self.look = look
        self._open: dict[str, _Story] = {}

    def open(self, xid: str, topic: str, group: str) -> None:
        """Report the first step; watches follow the transaction from now until its end."""
        watches = self.look()
        if watches is not None and (found := watches.begin_transaction(topic, xid)):
            self.end(xid)  # A message may be sent again under the same id.
            if len(self._open) >= STORIES_MAX:
                self.end(next(iter(self._open)))
            self._open[xid] = _Story(xid, found)
        self.tell(xid, Step.OPENED, group)

    def tell(self, xid: str, step: Step, detail: object = "") -> None:
        """Report a step, which ends the previous one. States are shown by name."""
        story = self._open.get(xid)
        if story is not None or log.isEnabledFor(logging.DEBUG):
            number, word, text = step.value
            line = text % (detail.name if isinstance(detail, Enum) else detail)
            extra = {"xid": xid, "step": number}
            log.debug("transaction %s, step %d: %s", xid, number, line, extra=extra)
            if story is not None:
                story.begin_step(number, word, line)

    def inside(self, xid: str) -> AbstractContextManager[None]:
        """A context in which spans and notes of this task or thread belong to the current step."""
        story = self._open.get(xid)
        return _UNWATCHED if story is None else story.inside()

    def end(
        self,
        xid: str,
        state: str = "",
        *,
        is_acknowledged: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """Report the end of a transaction in this process.

        Args:
            xid: The transaction's id.
            state: Its outcome; empty if it is not known.
            is_acknowledged: Whether the broker has confirmed the outcome.
            error: The reason for a failure.
        """
        if (story := self._open.pop(xid, None)) is not None:
            story.end(state, is_acknowledged, error)

    def close(self) -> None:
        """Report the end of every transaction that is still followed."""
        while self._open:
            self.end(next(iter(self._open)))


def note(xid: str, text: str, *details: object) -> None:
    """Report an event within a step; the text is formatted with the details, as for logging."""
    story = _CURRENT.get()
    if story is not None and story.xid != xid:
        story = None  # A task started inside another transaction keeps that one's context.
    if story is not None or log.isEnabledFor(logging.DEBUG):
        line = text % details
        log.debug("transaction %s: %s", xid, line, extra={"xid": xid})
        if story is not None:
            story.note(line)
