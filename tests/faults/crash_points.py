"""Every step of a transaction, or of a message that comes later, at which a broker may die: seams
of the product, named from outside.

A label is a phase of their life, a seam that it passes, and a side of that seam. The list
of labels is generated from the table; whoever kills a broker at each of them has been everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final, NamedTuple

from txmq.limits import SPAN_BYTES_MAX
from txmq.protocol.span import DecisionKind
from txmq.remoting.connection import Connection
from txmq_broker.core.transactions import Transactions
from txmq_broker.handlers.pull import PullHandlers
from txmq_broker.services.checker import Checker
from txmq_broker.services.deliverer import Deliverer
from txmq_broker.services.flusher import Flusher
from txmq_broker.store.checkpoints import Checkpoints
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.half_store import HalfStore
from txmq_broker.store.log.commit_log import CommitLog
from txmq_broker.store.queue_store import ConsumeQueue, KeyIndex

__all__ = [
    "CHECK",
    "COMMIT",
    "COPY",
    "DELIVER",
    "LABELS",
    "PARK",
    "PREPARE",
    "RECALL",
    "ROLL_BACK",
    "SAVE",
    "WAIT",
    "phase_of",
    "watched",
]

PREPARE: Final = "prepare"
COMMIT: Final = "commit"
COPY: Final = "commit that writes the body again"
ROLL_BACK: Final = "roll back"
PARK: Final = "park"
CHECK: Final = "check"
SAVE: Final = "checkpoint"
WAIT: Final = "wait"
DELIVER: Final = "deliver"
RECALL: Final = "recall"

_DECIDES: Final = (PREPARE, COMMIT, COPY, ROLL_BACK, PARK)
_DELAYS: Final = (WAIT, DELIVER, RECALL)
_WRITES: Final = _DECIDES + _DELAYS
_ANSWERED: Final = (PREPARE, COMMIT, COPY, ROLL_BACK, WAIT, RECALL)


class Seam(NamedTuple):
    """A method that a transaction or a message comes through, in some phases of its life."""

    name: str
    owner: type
    method: str
    phases: tuple[str, ...]


SEAMS: Final = (
    Seam("stage the half message", HalfStore, "prepare", (PREPARE,)),
    Seam("stage the decision", HalfStore, "decide", (COMMIT, COPY, ROLL_BACK, PARK)),
    Seam("stage the body again", HalfStore, "_stage_copy", (COPY, PARK)),
    Seam("stage the message that waits", DelayStore, "join", (WAIT,)),
    Seam("stage the message that is due", DelayStore, "leave", (DELIVER,)),
    Seam("stage the recall", DelayStore, "recall", (RECALL,)),
    Seam("write the span", CommitLog, "write", _WRITES),
    Seam("begin the sync", Flusher, "_begin_sync", _WRITES),
    Seam("note the sync", CommitLog, "confirm", _WRITES),
    Seam("mark the sync", CommitLog, "mark", (PREPARE, COMMIT, DELIVER)),
    Seam("release the span", Flusher, "release", _WRITES),
    Seam("extend a queue", ConsumeQueue, "publish", _WRITES),
    Seam("extend the keys", KeyIndex, "extend", _WRITES),
    Seam("publish the transaction", HalfStore, "publish", _DECIDES),
    Seam("publish the delay", DelayStore, "publish", _DELAYS),
    Seam("answer", Connection, "send", _ANSWERED),
    Seam("tell the checker", Checker, "published", _DECIDES),
    Seam("tell the deliverer", Deliverer, "published", _DELAYS),
    Seam("wake the pulls", PullHandlers, "arrived", _WRITES),
    Seam("answer a held pull", PullHandlers, "_resume", (COMMIT, COPY, DELIVER)),
    Seam("ask the producer", Checker, "_ask", (CHECK,)),
    Seam("hear that it is unknown", Checker, "note_unknown", (CHECK,)),
    Seam("spend the check", Transactions, "spend_check", (CHECK,)),
    Seam("write the indexes", Checkpoints, "begin", (SAVE,)),
    Seam("note the indexes", Checkpoints, "confirm", (SAVE,)),
)


def _label(phase: str, seam: Seam, side: str) -> str:
    return f"{phase}: {side} {seam.name}"


LABELS: Final = [
    _label(phase, seam, side)
    for seam in SEAMS
    for phase in seam.phases
    for side in ("before", "after")
]


def phase_of(label: str) -> str:
    """In which phase of a life a label lies."""
    return label.partition(":")[0]


@contextmanager
def watched(reached: Callable[[str], None]) -> Iterator[None]:
    """Have every label told as brokers come to it; what is told may kill them there."""
    walk = _Walk(reached)
    with ExitStack() as undo:
        for seam in SEAMS:
            method = getattr(seam.owner, seam.method)
            undo.callback(setattr, seam.owner, seam.method, method)
            setattr(seam.owner, seam.method, walk.through(seam, method))
        yield


class _Walk:
    """The position of the broker; its drivers do one thing at a time."""

    def __init__(self, reached: Callable[[str], None]) -> None:
        self._reached = reached
        self._phase = ""
        self._is_releasing = False

    def through(self, seam: Seam, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, with both its sides told."""

        @wraps(method)
        def walked(*given: Any, **named: Any) -> Any:
            phase = self._phase_at(seam, *given)
            self._pass(phase, seam, "before")
            was, self._is_releasing = self._is_releasing, seam.method == "release"
            self._is_releasing |= was
            try:
                result = method(*given, **named)
            finally:
                self._is_releasing = was
            self._pass(phase, seam, "after")
            return result

        return walked

    def _pass(self, phase: str, seam: Seam, side: str) -> None:
        if phase in seam.phases:
            self._reached(_label(phase, seam, side))

    def _phase_at(self, seam: Seam, *given: Any) -> str:
        if seam.owner is Connection:
            # Of everything written to peers, only the answers that somebody waited for.
            connection, *frames = given
            return self._phase if self._is_releasing and (connection._out or frames) else ""
        if seam.owner is HalfStore and seam.method == "decide":
            halves, ((_, _, _, kind, _, _),), _ = given
            self._phase = _phase_of_decision(halves, kind)
        elif seam.owner is HalfStore and seam.method == "prepare":
            self._phase = PREPARE
        elif seam.owner is DelayStore and seam.method != "publish":
            (self._phase,) = seam.phases
        return seam.phases[0] if len(seam.phases) == 1 else self._phase


def _phase_of_decision(halves: HalfStore, kind: DecisionKind) -> str:
    if kind is DecisionKind.COMMITTED:
        # Where a file is no larger than the longest span, no body is safe to be left in it.
        return COMMIT if halves.log.segment_size > 2 * SPAN_BYTES_MAX else COPY
    return ROLL_BACK if kind is DecisionKind.ROLLED_BACK else PARK
