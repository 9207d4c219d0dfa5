"""Short words for telling histories in the checkers' own tests."""

from __future__ import annotations

from tests.simulation.history import (
    Acknowledged,
    Asked,
    Audited,
    Began,
    Committed,
    Committing,
    Copy,
    Decided,
    Down,
    EndAnswered,
    EndSent,
    HalfSending,
    HalfTaken,
    Marker,
    OpenAudited,
    Pulled,
    Refused,
    Sending,
    Standing,
    Word,
    half_mark,
    mark,
)
from txmq.message import Queue

__all__ = [
    "Q",
    "acknowledged",
    "answered",
    "asked",
    "audit",
    "began",
    "commit",
    "copy",
    "decided",
    "down",
    "half",
    "looked",
    "of_half",
    "pulled",
    "refused",
    "send",
    "said",
    "sent",
    "taken",
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


# Transactions


def half(at, xid, *, group="bank", data=None, queue=Q):
    """A half message is sent."""
    return HalfSending(at, "producer", group, xid, queue, 0, body(xid) if data is None else data)


def taken(at, xid, offset, *, position=None):
    """It was sent a second ago, and is stored."""
    position = 1000 * offset if position is None else position
    return [half(at - 1, xid), HalfTaken(at, xid, Q.broker, offset, position)]


def decided(at, xid, committed=True, *, by="local transaction"):
    """The database has it."""
    return Decided(at, "bank", xid, committed, by)


def said(at, xid, says, *, who="producer"):
    """Somebody says how it ended."""
    return EndSent(at, xid, Word(says, who))


def answered(at, xid, says, *, who="producer", code=0):
    """Somebody said how it ended a second ago, and is answered."""
    return [said(at - 1, xid, says, who=who), EndAnswered(at, xid, Word(says, who), code)]


def asked(at, xid, offset, *, group="bank", data=None, position=None):
    """A producer is asked about a transaction."""
    position = 1000 * offset if position is None else position
    shown = body(xid) if data is None else data
    return Asked(at, "producer", group, xid, Q.topic, Q.number, offset, position, shown)


def of_half(xid, offset, *, data=None):
    """What is read of a half message, or of the message it became."""
    shown = body(xid) if data is None else data
    return Copy(offset, 1000 * offset, f"id-{offset}", half_mark(xid), "", 0, shown, xid)


def looked(
    at,
    *,
    halves=(),
    markers=(),
    prepared=(),
    parked=(),
    listed_parked=None,
    copies=None,
    began=None,
):
    """A look at a broker's transactions.

    ``prepared`` and ``parked`` name transactions by their half messages, as ``halves`` has them.
    """
    shown = tuple(of_half(xid, offset) for offset, xid in enumerate(halves))
    standing = {
        message.key: Standing(message.offset, message.position, message.key in parked)
        for message in shown
        if message.key in prepared or message.key in parked
    }
    return OpenAudited(
        at,
        Q.broker,
        at if began is None else began,
        standing,
        tuple(parked if listed_parked is None else listed_parked),
        shown,
        tuple(Marker(offset, kind) for offset, kind in markers),
        tuple(parked if copies is None else copies),
    )
