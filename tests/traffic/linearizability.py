"""Checks that what clients saw is linearizable: that each operation took effect at one moment.

That moment lies between the operation's beginning and its answer, and the operations in the order
of their moments are what one correct machine would have answered. An operation without an answer
may take effect at any moment after its beginning, or never.

The search is that of Wing and Gong, with Lowe's memory of the configurations that it has tried, as
in Porcupine. It looks at one transaction or one queue at a time: a history is linearizable if that
of each object is. Both models only ever gain, so an operation that changes nothing now would change
nothing later; the search takes it at once and never has to reconsider it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Protocol, TypeAlias, TypeVar

import msgspec

__all__ = [
    "ABSENT",
    "COMMITTED",
    "OPEN",
    "ROLLED_BACK",
    "Append",
    "End",
    "Operation",
    "Read",
    "Show",
    "Write",
    "contradiction",
]

ABSENT, OPEN, COMMITTED, ROLLED_BACK = "absent", "open", "committed", "rolled back"
"""The states of a transaction."""

State = TypeVar("State")

_LISTED = 5
"""The messages of one operation that a report names."""


class Write(msgspec.Struct, frozen=True, tag=True):
    """A transaction is opened or decided, successfully; to repeat that is a success."""

    state: str


class Show(msgspec.Struct, frozen=True, tag=True):
    """A transaction is in one of these states."""

    states: tuple[str, ...]


class Append(msgspec.Struct, frozen=True, tag=True):
    """Messages come to lie at the end of a queue."""

    messages: tuple[str, ...]
    offset: int | None = None
    """That of the first one, where the answer says it."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """From an offset on, a queue has these messages; ``None`` stands for a gap."""

    offset: int
    messages: tuple[str | None, ...]


class End(msgspec.Struct, frozen=True, tag=True):
    """A queue ends before this offset."""

    offset: int


Action: TypeAlias = Write | Show | Append | Read | End


class Operation(msgspec.Struct, frozen=True):
    """What a client did, from its beginning to its answer, in seconds."""

    begun: float
    ended: float | None
    """``None`` if it had no answer, or one that does not say whether it took effect."""
    who: str
    """Who did it, and how, in a few words."""
    action: Action

    @property
    def deadline(self) -> float:
        """When it has taken effect at the latest."""
        return inf if self.ended is None else self.ended

    def __str__(self) -> str:
        until = "no answer" if self.ended is None else f"{self.ended:.6f}"
        return f"{self.begun:.6f} to {until}: {self.who}: {_text(self.action)}"


def contradiction(key: str, operations: Iterable[Operation]) -> str | None:
    """What cannot be true of one transaction or one queue; ``None`` if all of it can.

    Args:
        key: Names the transaction or the queue.
        operations: All that clients did with it.
    """
    known = tuple(operations)
    if any(isinstance(operation.action, Append | Read | End) for operation in known):
        return _queue_contradiction(key, known)
    return _explained(key, known, _Transaction())


# The models


class _Model(Protocol[State]):
    start: State

    def step(self, state: State, action: Action) -> State | None:
        """The state after an action; ``None`` if it cannot happen in this state."""

    def without(self, eased: Sequence[Operation]) -> tuple[_Model[State], list[Operation]]:
        """The model if these may have happened at any moment or not at all, and what is left."""


class _Transaction:
    """A register that is written once."""

    start = ABSENT

    def step(self, state: str, action: Action) -> str | None:
        match action:
            case Write(state=wanted) if wanted == OPEN:
                return wanted if state == ABSENT else state
            case Write(state=wanted):
                return wanted if state in (OPEN, wanted) else None
            case Show(states=states) if state in states:
                return state
            case _:
                return None

    def without(self, eased: Sequence[Operation]) -> tuple[_Transaction, list[Operation]]:
        return self, [
            msgspec.structs.replace(operation, begun=-inf, ended=None)
            for operation in eased
            if isinstance(operation.action, Write)
        ]


class _Queue:
    """A log whose messages are known by their offsets, so that its end is all of its state.

    Args:
        contents: What lies at each offset that somebody saw; ``None`` is a gap.
        anytime: The offsets that may have been filled at any moment.
    """

    start = 0

    def __init__(
        self, contents: Mapping[int, str | None], anytime: frozenset[int] = frozenset()
    ) -> None:
        self._contents = contents
        self._anytime = anytime
        self._offsets = {
            message: offset for offset, message in contents.items() if message is not None
        }

    def step(self, end: int, action: Action) -> int | None:
        match action:
            case Append(messages=messages):
                place = self._offset_of(messages)
                start = end if place is None else self._grown(end, place)
                if start is None or not self._fits(messages, start):
                    return None
                return start + len(messages)
            case Read(offset=offset, messages=messages):
                least = offset + len(messages)
                return end if least <= end else self._grown(end, least)
            case End(offset=offset):
                return self._grown(end, offset)
            case _:
                return None

    def _grown(self, end: int, wanted: int) -> int | None:
        """The wanted end, if what may happen at any moment leads to it."""
        is_possible = end <= wanted and all(at in self._anytime for at in range(end, wanted))
        return wanted if is_possible else None

    def _offset_of(self, messages: tuple[str, ...]) -> int | None:
        """Where the first of these messages lies, if somebody saw one of them."""
        seen = (self._offsets.get(message) for message in messages)
        places = (place - at for at, place in enumerate(seen) if place is not None)
        return next(places, None)

    def _fits(self, messages: tuple[str, ...], start: int) -> bool:
        # A message that nobody saw fits only where nobody looked.
        return all(
            self._contents.get(offset, message) == message
            and self._offsets.get(message, offset) == offset
            for offset, message in enumerate(messages, start)
        )

    def without(self, eased: Sequence[Operation]) -> tuple[_Queue, list[Operation]]:
        anytime = set(self._anytime)
        left: list[Operation] = []
        for operation in eased:
            if isinstance(operation.action, Append):
                messages = operation.action.messages
                start = self._offset_of(messages)
                if start is None:
                    left.append(msgspec.structs.replace(operation, begun=-inf, ended=None))
                else:
                    anytime.update(range(start, start + len(messages)))
        return _Queue(self._contents, frozenset(anytime)), left


def _queue_contradiction(key: str, operations: Sequence[Operation]) -> str | None:
    sources: dict[int, tuple[str | None, Operation]] = {}
    offsets: dict[str, tuple[int, Operation]] = {}
    for operation in operations:
        for offset, message in _placed(operation.action):
            known, source = sources.setdefault(offset, (message, operation))
            if known != message:
                return _two(f"{key}: offset {offset} has two messages", source, operation)
            if message is not None:
                place, source = offsets.setdefault(message, (offset, operation))
                if place != offset:
                    return _two(f"{key}: {message} has two offsets", source, operation)
    contents = {offset: message for offset, (message, _) in sources.items()}
    possible = [one for one in operations if not _is_vain(one, offsets)]
    ends = (one.action.offset for one in operations if isinstance(one.action, End))
    is_all_seen = len(contents) == max([*ends, *(offset + 1 for offset in contents)], default=0)
    return _explained(key, possible if is_all_seen else operations, _Queue(contents))


def _is_vain(operation: Operation, seen: Container[str]) -> bool:
    """Whether it had no answer and left no trace: where all is seen, it took no place."""
    action = operation.action
    return (
        isinstance(action, Append)
        and operation.ended is None
        and not any(message in seen for message in action.messages)
    )


def _two(claim: str, one: Operation, other: Operation) -> str:
    return f"{claim}:\n    {one}\n    {other}"


def _placed(action: Action) -> Iterator[tuple[int, str | None]]:
    """The messages that an action shows at their offsets."""
    match action:
        case Append(messages=messages, offset=int() as offset):
            yield from enumerate(messages, offset)
        case Read(messages=messages, offset=offset):
            yield from enumerate(messages, offset)
        case _:
            pass


# The search


class _Search:
    """The operations without a place in the order yet, by their beginnings."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = sorted(operations, key=lambda operation: operation.begun)
        count = len(self._operations)
        self._next = [*range(1, count + 1), 0]
        """The next one of each; the last place stands for the beginning."""
        self._before = [count, *range(count)]
        self.awaited = sum(operation.ended is not None for operation in operations)
        """How many must have a place."""
        self.taken = 0
        """Those that have one, as bits."""

    def candidates(self) -> list[int]:
        """Operations that began before any other had its answer."""
        operations, following = self._operations, self._next
        begun: list[int] = []
        first_deadline = inf
        at = following[-1]
        while at < len(operations) and operations[at].begun <= first_deadline:
            begun.append(at)
            first_deadline = min(first_deadline, operations[at].deadline)
            at = following[at]
        return [at for at in begun if operations[at].begun <= first_deadline]

    def choices(self, state: State, model: _Model[State]) -> Iterator[tuple[int, State]]:
        """What may come next, and the state after it."""
        changes: list[tuple[int, State]] = []
        for at in self.candidates():
            operation = self._operations[at]
            after = model.step(state, operation.action)
            if after is not None and after != state:
                changes.append((at, after))
            elif after is not None and operation.ended is not None:
                return iter([(at, state)])
        return iter(changes)

    def take(self, at: int) -> None:
        """Put one next in the order."""
        before, after = self._before[at], self._next[at]
        self._next[before], self._before[after] = after, before
        self.taken ^= 1 << at
        self.awaited -= self._operations[at].ended is not None

    def put_back(self, at: int) -> None:
        """Take the last one from the order."""
        before, after = self._before[at], self._next[at]
        self._next[before] = self._before[after] = at
        self.taken ^= 1 << at
        self.awaited += self._operations[at].ended is not None


def _has_order(operations: Sequence[Operation], model: _Model[State]) -> bool:
    search = _Search(operations)
    seen: set[tuple[int, State]] = set()
    state = model.start
    frames = [(-1, state, search.choices(state, model))]
    while search.awaited:
        last, state, choices = frames[-1]
        at, after = next(choices, (-1, state))
        if at < 0:
            if last < 0:
                return False
            search.put_back(last)
            frames.pop()
            continue
        search.take(at)
        if after != state and (search.taken, after) in seen:
            search.put_back(at)
            continue
        seen.add((search.taken, after))
        frames.append((at, after, search.choices(after, model)))
    return True


# The report


def _explained(key: str, operations: Sequence[Operation], model: _Model[State]) -> str | None:
    if _has_order(operations, model):
        return None
    lines = (f"\n    {operation}" for operation in _smallest(operations, model))
    return f"{key}: no order of these is possible:{''.join(lines)}"


def _smallest(operations: Sequence[Operation], model: _Model[State]) -> list[Operation]:
    """Operations that contradict each other; with any one of them eased, an order is possible."""

    def is_broken(kept: Sequence[Operation], eased: Sequence[Operation]) -> bool:
        easier, left = model.without(eased)
        return not _has_order([*kept, *left], easier)

    kept = _until_broken(operations, model)
    eased: list[Operation] = []
    size = len(kept)
    while size:
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            more = eased + kept[start : start + size]
            if is_broken(rest, more):
                kept, eased = rest, more
            else:
                start += size
        size //= 2
    return kept


def _until_broken(operations: Sequence[Operation], model: _Model[State]) -> list[Operation]:
    """What was known at the first moment at which no order was possible any more."""

    def known_at(moment: float) -> list[Operation]:
        return [
            msgspec.structs.replace(operation, ended=None)
            if operation.deadline > moment
            else operation
            for operation in operations
            if operation.begun <= moment
        ]

    moments = sorted({operation.ended for operation in operations if operation.ended is not None})
    first = bisect_left(moments, True, key=lambda moment: not _has_order(known_at(moment), model))
    return known_at(moments[first])


def _text(action: Action) -> str:
    match action:
        case Write(state=state):
            return f"made it {state}"
        case Show(states=states):
            return f"found it {' or '.join(states)}"
        case Append(messages=messages, offset=offset):
            return f"appended {_listed(messages)} at {'?' if offset is None else offset}"
        case Read(offset=offset, messages=messages):
            return f"read {_listed(messages)} at {offset}"
        case End(offset=offset):
            return f"found its end at {offset}"


def _listed(messages: Sequence[str | None]) -> str:
    names = [message or "nothing" for message in messages]
    return " ".join(names if len(names) <= _LISTED else [*names[:_LISTED], "..."])
