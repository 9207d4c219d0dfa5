"""The states of a transaction at its broker, in one table.

The log has the final word, not this table: a step counts once its marker is durable, and a
transaction exists only if its half message does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

__all__ = ["STEPS", "Event", "State", "diagram"]


class State(Enum):
    """The state of a transaction."""

    __hash__ = object.__hash__  # Enum's own hash takes as long as the rest of a step.

    PREPARED = "prepared"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Event(Enum):
    """An event that may change the state."""

    __hash__ = object.__hash__

    COMMIT = "END(commit)"
    ROLL_BACK = "END(rollback)"
    EXHAUSTED = "check_max checks without a decision"


STEPS: Final[Mapping[tuple[State, Event], State]] = {
    (State.PREPARED, Event.COMMIT): State.COMMITTED,
    (State.PREPARED, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.PREPARED, Event.EXHAUSTED): State.PARKED,
    (State.PARKED, Event.COMMIT): State.COMMITTED,
    (State.PARKED, Event.ROLL_BACK): State.ROLLED_BACK,
    # A repeated event changes nothing and is not an error.
    (State.PARKED, Event.EXHAUSTED): State.PARKED,
    (State.COMMITTED, Event.COMMIT): State.COMMITTED,
    (State.ROLLED_BACK, Event.ROLL_BACK): State.ROLLED_BACK,
}
"""All steps. A missing pair is a conflict: the first decision holds."""


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    [*] --> PREPARED: half message stored"
    for (state, event), target in STEPS.items():
        if target is not state:
            yield f"    {state.name} --> {target.name}: {event.value}"
    for state in State:
        if not any(was is state and now is not state for (was, _), now in STEPS.items()):
            yield f"    {state.name} --> [*]"
