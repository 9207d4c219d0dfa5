"""Decides whether a send would be acknowledged now."""

from __future__ import annotations

from txmq_broker.app import Broker
from txmq_broker.monitoring.subject import MonitoredProcess

__all__ = ["objection", "role_of"]


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
        return "no name server knows this broker, so that clients do not find it"
    return ""
