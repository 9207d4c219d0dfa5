"""The process that the pages describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from txmq_broker.app import Broker
from txmq_broker.replication.follower import Follower

__all__ = ["LoneProcess", "MonitoredProcess"]


class MonitoredProcess(Protocol):
    """A process that leads, follows, or does neither at the moment.

    Attributes:
        broker: The broker while it leads, or belongs to no set.
        follower: The follower while it copies another log.
        leaderships: How often the process began to lead a set.
    """

    broker: Broker | None
    follower: Follower | None
    leaderships: int


@dataclass
class LoneProcess:
    """A process without a coordinator."""

    broker: Broker | None = None
    follower: Follower | None = None
    leaderships: int = 0
