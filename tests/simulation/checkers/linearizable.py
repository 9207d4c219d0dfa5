"""What clients saw is linearizable, transaction by transaction and queue by queue.

A transaction is a register that is written once, by an END, an answer to a check or an operator;
what a broker shows of it, and what can be read of its message, are reads. A queue is a log that
only grows: by sends and commits, read by pulls. See :mod:`tests.traffic.linearizability`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.simulation.checkers.kept import decision_told
from tests.simulation.copy_history import FollowerRead
from tests.simulation.history import (
    COMMIT,
    ROLLBACK,
    Acknowledged,
    Audited,
    Began,
    Copy,
    EndAnswered,
    EndSent,
    EndShown,
    Event,
    HalfSending,
    HalfTaken,
    OpenAudited,
    Pulled,
    Sending,
    TransactionShown,
    Word,
    half_mark,
    mark,
)
from tests.traffic.linearizability import (
    ABSENT,
    COMMITTED,
    OPEN,
    ROLLED_BACK,
    Append,
    End,
    Operation,
    Read,
    Show,
    Write,
    contradiction,
)
from txmq.message import Queue

__all__ = ["broken"]

STATES: Final = {COMMIT: COMMITTED, ROLLBACK: ROLLED_BACK}
"""What a decision makes of a transaction."""

SHOWN: Final = {
    "prepared": OPEN,
    "parked": OPEN,
    "committed": COMMITTED,
    "rolled back": ROLLED_BACK,
    ABSENT: ABSENT,
}
"""What the states that a broker shows say about decisions."""

NOT_OPEN: Final = 22
"""How an operator is refused who decides a transaction that is decided, or not known."""

ANY_TAGS: Final = "*"


class _Records:
    """The operations of a history, by what they are about."""

    def __init__(self) -> None:
        self.of_transactions: dict[str, list[Operation]] = defaultdict(list)
        self.of_queues: dict[Queue, list[Operation]] = defaultdict(list)
        self._halves: dict[str, HalfSending] = {}
        self._taken: set[str] = set()
        self._said: dict[tuple[str, Word], list[float]] = defaultdict(list)
        """When a word was sent, for those without a clear answer."""
        self._first_said: dict[tuple[str, Word], float] = {}
        self._commit_begun: dict[str, float] = {}
        self._commit_known: dict[str, float] = {}
        self._visible: set[str] = set()
        self._sends: dict[tuple[str, int], Sending] = {}
        self._tags: dict[str, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case Sending():
                self._sends[event.send, event.attempt] = event
            case Acknowledged():
                self._acknowledge(event)
            case HalfSending():
                self._halves.setdefault(event.xid, event)
            case HalfTaken() if event.xid not in self._taken:
                self._taken.add(event.xid)
                self._half(event.xid, event.at)
            case EndSent() if event.word.says in STATES:
                self._say(event)
            case EndAnswered() if event.word.says in STATES:
                self._hear(event)
            case TransactionShown():
                show = Show((SHOWN[event.state],))
                self._see(event.xid, event.asked, event.at, event.address, show)
            case OpenAudited():
                for xid in event.listed:
                    self._see(xid, event.began, event.at, "the list of the open", Show((OPEN,)))
            case EndShown():
                operation = Operation(event.asked, event.at, event.address, End(event.offset))
                self.of_queues[event.queue].append(operation)
            case Began():
                self._tags[event.group] = event.tags
            case Pulled():
                is_whole = self._tags.get(event.group, ANY_TAGS) == ANY_TAGS
                begin = event.offset if is_whole else None
                self._read(event.queue, event.copies, event.at, event.group, begin)
            case FollowerRead():
                self._read(event.queue, event.copies, event.at, event.member)
            case Audited():
                for queue, copies in event.queues.items():
                    self._read(queue, copies, event.at, "an audit")
            case _:
                pass

    # Transactions

    def _half(self, xid: str, ended: float | None) -> None:
        sent = self._halves[xid]
        operation = Operation(sent.at, ended, sent.client, Write(OPEN))
        self.of_transactions[xid].append(operation)

    def _see(self, xid: str, begun: float, at: float, who: str, show: Show) -> None:
        if xid in self._halves:
            self.of_transactions[xid].append(Operation(begun, at, who, show))

    def _say(self, event: EndSent) -> None:
        self._said[event.xid, event.word].append(event.at)
        self._first_said.setdefault((event.xid, event.word), event.at)
        if event.word.says == COMMIT:
            self._commit_begun.setdefault(event.xid, event.at)

    def _hear(self, event: EndAnswered) -> None:
        xid, word = event.xid, event.word
        # Which of several equal requests this answers, nobody knows: the first began first.
        begun = self._first_said[xid, word]
        told = decision_told(event)
        if told is not None:
            if told == COMMIT:
                self._commit_known.setdefault(xid, event.at)
            is_done = event.code == 0
            action = Write(STATES[told]) if is_done else Show((STATES[told],))
        elif word.who == "operator" and event.code == NOT_OPEN:
            action = Show((ABSENT, COMMITTED, ROLLED_BACK))
        else:
            return
        self._said[xid, word].pop()
        self.of_transactions[xid].append(Operation(begun, event.at, word.who, action))

    # Queues

    def _acknowledge(self, event: Acknowledged) -> None:
        sending = self._sends.pop((event.send, event.attempt))
        append = Append(_marks(sending), event.offset)
        operation = Operation(sending.at, event.at, sending.client, append)
        self.of_queues[event.queue].append(operation)

    def _read(
        self,
        queue: Queue,
        copies: Iterable[Copy],
        at: float,
        who: str,
        begin: int | None = None,
    ) -> None:
        """Note what was read; without gaps from ``begin`` on, where that is given."""
        for run in _runs(copies, begin):
            operation = Operation(0.0, at, who, run)
            self.of_queues[queue].append(operation)
        for copy in copies:
            if copy.key not in self._visible:
                self._visible.add(copy.key)
                self._see(copy.key, 0.0, at, f"a read of {who}", Show((COMMITTED,)))

    # The end

    def finish(self) -> None:
        """Add what had no answer."""
        for xid in self._halves.keys() - self._taken:
            self._half(xid, None)
        for (xid, word), moments in self._said.items():
            if moments:
                begun = self._first_said[xid, word]
                operation = Operation(begun, None, word.who, Write(STATES[word.says]))
                self.of_transactions[xid].append(operation)
        for xid, begun in self._commit_begun.items():
            half = self._halves[xid]
            append = Append((half_mark(xid),))
            operation = Operation(begun, self._commit_known.get(xid), f"commit of {xid}", append)
            self.of_queues[half.queue].append(operation)
        for sending in self._sends.values():
            operation = Operation(sending.at, None, sending.client, Append(_marks(sending)))
            for operations in self.of_queues.values():
                operations.append(operation)


def _marks(sending: Sending) -> tuple[str, ...]:
    return tuple(mark(sending.send, sending.attempt, at) for at in range(len(sending.bodies)))


def _runs(copies: Iterable[Copy], begin: int | None) -> Iterator[Read]:
    """What was read: one run, gaps and all, or one for each stretch without gaps."""
    messages: list[str | None] = []
    start = begin
    for copy in copies:
        if start is None:
            start = copy.offset
        gap = copy.offset - start - len(messages)
        if gap and begin is None:
            yield Read(start, tuple(messages))
            messages, start, gap = [], copy.offset, 0
        messages += [None] * gap
        messages.append(copy.mark)
    if start is not None and messages:
        yield Read(start, tuple(messages))


def _found(operations: Mapping[str, list[Operation]]) -> Iterator[str]:
    for key, some in operations.items():
        found = contradiction(key, some)
        if found is not None:
            yield found


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    records = _Records()
    for event in events:
        records.take(event)
    records.finish()
    queues = {str(queue): some for queue, some in records.of_queues.items()}
    return [*_found(records.of_transactions), *_found(queues)]
