"""The process that the pages describe, and why it would not acknowledge a send now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from txmq_broker.app import Broker
from txmq_broker.replication.follower import Follower

__all__ = ["LoneProcess", "MonitoredProcess", "objection", "role_of"]


class MonitoredProcess(Protocol):
    """A process that leads, follows, or does neither at the moment.

    Attributes:
        broker: The broker while it leads, or belongs to no set.
        follower: The follower while it copies another log.
        leaderships: The number of times that the process began to lead a set.
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


def role_of(process: MonitoredProcess) -> str:
    """``leader``, ``follower``, or ``waiting``."""
    if process.broker is not None:
        return "leader"
    return "waiting" if process.follower is None else "follower"


def objection(process: MonitoredProcess) -> str:
    """Why a send would not be acknowledged now; empty if it would."""
    if process.broker is not None:
        return _broker_objection(process.broker)
    if process.follower is None:
        return "the process neither leads nor follows yet"
    leader = process.follower.status.leader
    return f"the process follows {leader or 'no leader yet'}; only the leader takes sends"


def _broker_objection(broker: Broker) -> str:
    if broker.failure is not None:
        return str(broker.failure)
    parts = broker.parts
    if not parts.is_open():
        return "the broker has stopped"
    if parts.leadership is not None and not parts.leadership.is_certain():
        return "the lease of this leader is over"
    refusal = parts.flusher.refusal()
    if refusal is not None:
        return str(refusal)
    if not parts.is_registered():
        return "no name server knows this broker, so clients cannot find it"
    return ""
