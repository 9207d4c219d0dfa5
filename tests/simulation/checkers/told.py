"""Short words for telling histories in the checkers' own tests."""

from __future__ import annotations

from tests.simulation.history import (
    Acknowledged,
    Audited,
    Began,
    Committed,
    Committing,
    Copy,
    Down,
    Pulled,
    Refused,
    Sending,
    mark,
)
from txmq.message import Queue

__all__ = [
    "Q",
    "acknowledged",
    "audit",
    "began",
    "commit",
    "copy",
    "down",
    "pulled",
    "refused",
    "send",
    "sent",
]

Q = Queue("Topic", "broker-a", 0)


def body(send: str, index: int = 0) -> bytes:
    return f"body of {send}.{index}".encode()


def copy(send, offset, *, attempt=0, index=0, at=None, data=None, tags="", stored_ms=None):
    """What a queue holds of a message; by default it lies where its offset says."""
    position = 100 * offset if at is None else at
    return Copy(
        offset=offset,
        position=position,
        offset_id=f"id-{position}",
        mark=mark(send, attempt, index),
        tags=tags,
        stored_ms=offset if stored_ms is None else stored_ms,
        body=body(send, index) if data is None else data,
    )


def send(at, name, *, attempt=0, count=1, client="producer", answered=True):
    bodies = tuple(body(name, index) for index in range(count))
    return Sending(at, client, name, attempt, bodies, answered)


def acknowledged(at, name, offset, *, attempt=0, count=1, queue=Q):
    ids = tuple(f"id-{100 * (offset + index)}" for index in range(count))
    return Acknowledged(at, name, attempt, queue, offset, ids)


def refused(at, name, effect, *, attempt=0):
    return Refused(at, name, attempt, "no", effect)


def sent(at, name, offset, *, count=1, queue=Q):
    """A send that is acknowledged at once."""
    return [send(at, name, count=count), acknowledged(at, name, offset, count=count, queue=queue)]


def audit(at, *copies, began=None, queue=Q):
    return Audited(at, queue.broker, at if began is None else began, {queue: copies})


def began(at, offset, *, tags="*", group="group"):
    return Began(at, group, Q, offset, tags)


def pulled(at, offset, *copies, to=None, group="group"):
    further = copies[-1].offset + 1 if to is None else to
    return Pulled(at, group, Q, offset, further, copies)


def commit(at, offset, *, group="group"):
    """A commit that is taken at once."""
    return [Committing(at, group, Q, offset), Committed(at, group, Q, offset)]


def down(at, *, kept=False):
    return Down(at, Q.broker, "crash", kept)
