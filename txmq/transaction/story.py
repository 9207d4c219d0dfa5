"""The nine steps of a transaction in their order: as log lines, and for whoever looks on.

They are those of the classic transfer between two banks: the producer manages the transaction, the
broker coordinates it, and the local transaction is the resource's. ``DEBUG`` shows the lines, whose
records carry the transaction's ``xid`` and the number of the ``step`` for handlers of your own.
Both are told here, and by the same words, so that they cannot disagree.
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

__all__ = ["Step", "Stories", "note"]

log = logging.getLogger(__name__)


class Step(Enum):
    """What happens: its number, a word for it, and a text with room for what it is about."""

    OPENED = 1, "open", "it is opened by group %s"
    SENT = 2, "send", "its message for %s is sent"
    STORED = 3, "store", "the broker stores it at %s, where nobody sees it"
    REPORTED = 4, "report", "the broker reports %s"
    CALLED = 5, "run", "the local transaction is run%s"
    SAID = 6, "say", "the local transaction says %s"
    HEARD = 7, "hear", "the producer hears %s"
    TOLD = 8, "tell", "the broker is told %s"
    CONFIRMED = 9, "confirm", "it is %s"


class _Story:
    """One that somebody looks on at."""

    __slots__ = ("_watches", "xid")

    def __init__(self, xid: str, watches: Sequence[TransactionHook]) -> None:
        self.xid = xid
        self._watches = watches

    def begin_step(self, number: int, word: str, text: str) -> None:
        for each in self._watches:
            each.begin_step(number, word, text)

    def note(self, text: str) -> None:
        for each in self._watches:
            each.note(text)

    @contextmanager
    def inside(self) -> Iterator[None]:
        leaves = [each.enter() for each in self._watches]
        outer = _CURRENT.get()
        _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.set(outer)
            for leave in reversed(leaves):
                leave()

    def end(self, state: str, is_acknowledged: bool, problem: BaseException | None) -> None:
        for each in self._watches:
            each.end(state, is_acknowledged, problem)


_CURRENT: Final[ContextVar[_Story | None]] = ContextVar("txmq_story", default=None)
_NOBODY: Final = nullcontext()


class Stories:
    """Those of a producer. Where nobody looks on, nothing is kept of them.

    Args:
        look: Tells who looks on.
    """

    def __init__(self, look: Callable[[], SendHooks | None]) -> None:
        self.look = look
        self._open: dict[str, _Story] = {}

    def open(self, xid: str, topic: str, group: str) -> None:
        """Write the first step down; what is told is looked at from now on, until the end."""
        watches = self.look()
        if watches is not None and (found := watches.begin_transaction(topic, xid)):
            self.end(xid)  # It may be sent again under its id.
            if len(self._open) >= STORIES_MAX:
                self.end(next(iter(self._open)))
            self._open[xid] = _Story(xid, found)
        self.tell(xid, Step.OPENED, group)

    def tell(self, xid: str, step: Step, about: object = "") -> None:
        """Write a step down; the one before is over. States are told by their names."""
        if not (self._open or log.isEnabledFor(logging.DEBUG)):
            return  # As nearly always, and nine times for each transaction.
        story = self._open.get(xid)
        if story is not None or log.isEnabledFor(logging.DEBUG):
            number, word, text = step.value
            said = text % (about.name if isinstance(about, Enum) else about)
            about_it = {"xid": xid, "step": number}
            log.debug("transaction %s, step %d: %s", xid, number, said, extra=about_it)
            if story is not None:
                story.begin_step(number, word, said)

    def inside(self, xid: str) -> AbstractContextManager[None]:
        """While inside, what begins in this task or thread, and is noted in it, belongs to the
        step that is taken now.
        """
        story = self._open.get(xid)
        return _NOBODY if story is None else story.inside()

    def end(
        self,
        xid: str,
        state: str = "",
        *,
        is_acknowledged: bool = False,
        problem: BaseException | None = None,
    ) -> None:
        """It is over here.

        Args:
            xid: The transaction's id.
            state: What is known of it; empty where nothing is.
            is_acknowledged: Whether the broker has said so.
            problem: Why it went wrong.
        """
        if (story := self._open.pop(xid, None)) is not None:
            story.end(state, is_acknowledged, problem)

    def close(self) -> None:
        """Nothing more is told of any."""
        while self._open:
            self.end(next(iter(self._open)))


def note(xid: str, text: str, *about: object) -> None:
    """Write down what happens within a step, in words with room for what it is about."""
    story = _CURRENT.get()
    if story is not None and story.xid != xid:
        story = None  # A task that was begun inside another one has kept its context.
    if story is not None or log.isEnabledFor(logging.DEBUG):
        said = text % about
        log.debug("transaction %s: %s", xid, said, extra={"xid": xid})
        if story is not None:
            story.note(said)
