"""I2: a local transaction that committed has exactly one visible message, any other has none.

The databases of the producer groups are the measure. Transactions about which an operator or a liar
had a say are judged by less: their message is there once at most.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import (
    UNKNOWN,
    Audited,
    Copy,
    Decided,
    EndSent,
    Event,
    HalfSending,
    HalfTaken,
    OpenAudited,
    Pulled,
)
from txmq.message import Queue

__all__ = ["HONEST", "broken"]

HONEST = ("producer", "check")
"""Who says only what the database says."""


class _Book:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._sent: dict[str, HalfSending] = {}
        self._taken: set[str] = set()
        self._committed: dict[str, bool] = {}
        self._forced: set[str] = set()
        self._places: dict[str, dict[tuple[Queue, int], None]] = {}
        self._last: dict[str, dict[str, int]] = {}
        """What each broker showed last: how often each transaction."""
        self._open: dict[str, set[str]] = {}

    def take(self, event: Event) -> None:
        match event:
            case HalfSending():
                self._sent.setdefault(event.xid, event)
            case HalfTaken():
                self._taken.add(event.xid)
            case Decided():
                if self._committed.setdefault(event.xid, event.committed) != event.committed:
                    self.complaints.append(f"the database has {event.xid} in two ways")
            case EndSent() if event.word.who not in HONEST and event.word.says != UNKNOWN:
                self._forced.add(event.xid)
            case Pulled():
                for copy in event.copies:
                    self._see(event.queue, copy, event.at)
            case Audited():
                self._audit(event)
            case OpenAudited():
                self._open[event.broker] = set(event.listed)
            case _:
                pass

    def _audit(self, event: Audited) -> None:
        counts: dict[str, int] = {}
        for queue, copies in event.queues.items():
            for copy in copies:
                if copy.key in self._sent:
                    self._see(queue, copy, event.at)
                    counts[copy.key] = counts.get(copy.key, 0) + 1
        self._last[event.broker] = counts

    def _see(self, queue: Queue, copy: Copy, at: float) -> None:
        xid = copy.key
        sent = self._sent.get(xid)
        if sent is None:
            return
        if (queue, copy.body) != (sent.queue, sent.body):
            self.complaints.append(f"{xid} shows up at {at:.6f} otherwise than it was sent")
        places = self._places.setdefault(xid, {})
        places[queue, copy.offset] = None
        if len(places) == 1 and xid not in self._forced and not self._committed.get(xid):
            self.complaints.append(f"{xid} is visible at {at:.6f}, and its database has no commit")

    def judge(self) -> None:
        for xid, sent in self._sent.items():
            broker = sent.queue.broker
            if broker not in self._last or broker not in self._open:
                self.complaints.append(f"nobody looked at {broker} in the end")
                return
            count = self._last[broker].get(xid, 0)
            is_open = xid in self._open[broker]
            if is_open and count:
                self.complaints.append(f"{xid} is visible and still open")
            elif count > 1 or len(self._places.get(xid, ())) > 1:
                self.complaints.append(f"{xid} is visible more than once")
            elif xid in self._forced or is_open:
                continue
            elif self._committed.get(xid) and not count:
                self.complaints.append(f"{xid} is committed and not visible")
            elif count and xid not in self._taken:
                self.complaints.append(f"{xid} is visible, and its half message was never taken")
            elif count and not self._committed.get(xid):
                self.complaints.append(f"{xid} is visible in the end, and was not committed")


def broken(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; empty where nothing is."""
    book = _Book()
    for event in events:
        book.take(event)
    book.judge()
    return book.complaints
