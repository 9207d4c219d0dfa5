"""Whose turn it is among the queues of a topic that can be written to. Pure.

Each topic has a counter that goes on with every queue it gives. A message that is sent again goes
to another broker where there is one; with a fault table, brokers that are slow are passed over too.
"""

from __future__ import annotations

from txmq.client.latency import FaultTable
from txmq.client.routes import Route
from txmq.errors import NoPermission
from txmq.limits import TURNS_MAX
from txmq.message import Queue

__all__ = ["Turns"]


class Turns:
    """The counters of topics, the one used last at the end.

    Args:
        limit: How many topics are remembered; the one used longest ago begins anew.
    """

    def __init__(self, limit: int = TURNS_MAX) -> None:
        self._limit = limit
        self._counters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def next_queue(self, route: Route, first: int, avoid: str | None = None) -> Queue:
        """The queue whose turn it is to be written to.

        Args:
            route: The topic's route.
            first: Where to begin with a topic that is not remembered; chance, so that many
                clients which start together do not all begin with the same queue.
            avoid: The broker that failed just now; used only where there is no other.

        Raises:
            NoPermission: The topic is there and cannot be written to.
        """
        queues = _writable(route)
        if avoid is not None:
            for _ in queues:
                queue = queues[self._count(route.topic, first) % len(queues)]
                if queue.broker != avoid:
                    return queue
        return queues[self._count(route.topic, first) % len(queues)]

    def next_available(
        self, route: Route, first: int, faults: FaultTable, now: float, avoid: str | None = None
    ) -> Queue:
        """The next queue of a broker that is available, or of one of those that are least bad.

        Args:
            route: The topic's route.
            first: Where to begin with a topic that is not remembered.
            faults: What is known of the brokers; one that has none of these queues is removed
                where it would be picked.
            now: The time, as the fault table has it.
            avoid: The broker that failed just now; used only where no other is available.

        Raises:
            NoPermission: The topic is there and cannot be written to.
        """
        queues = _writable(route)
        turn = self._count(route.topic, first)
        spare: Queue | None = None
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if faults.is_available(queue.broker, now):
                if queue.broker != avoid:
                    return queue
                spare = spare or queue
        if spare is not None:
            return spare
        broker = faults.least_bad(now)
        assert broker is not None, "a broker that is not available is in the table"
        theirs = [each for each in queues if each.broker == broker]
        if not theirs:
            faults.remove(broker)
        among = theirs or queues
        return among[turn % len(among)]

    def _count(self, topic: str, first: int) -> int:
        turn = self._counters.pop(topic, first)
        self._counters[topic] = turn + 1
        if len(self._counters) > self._limit:
            del self._counters[next(iter(self._counters))]
        return turn


def _writable(route: Route) -> tuple[Queue, ...]:
    if not route.writable:
        raise NoPermission(f"topic {route.topic} has no queue that can be written to")
    return route.writable
