"""Turns a stopped follower's directory into a leader's, for a set without a coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from txmq.errors import UsageError
from txmq.runtime.clock import SystemClock
from txmq.runtime.disk import LocalDisk
from txmq.runtime.entropy import SystemEntropy
from txmq_broker.access.audit import AuditEntry, AuditLog
from txmq_broker.config import StoreSettings
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.services.keeper import Keeper

__all__ = ["Promotion", "promote"]


class Promotion(NamedTuple):
    """The state of a promoted directory."""

    epoch: int
    """The epoch in which it leads."""
    end: int
    """The end of its log."""
    last_ms: int
    """The time stamp of its newest record; 0 if it has none."""


def promote(
    data: Path, reason: str, *, operator: str, host: str, allow_data_loss: bool = False
) -> Promotion:
    """Promote a directory whose broker is stopped.

    Args:
        data: The directory.
        reason: Why; recorded in the directory and in the audit.
        operator: Who does it.
        host: The machine.
        allow_data_loss: True to promote even a copy that never had its leader's whole log.

    Raises:
        UsageError: The directory is not a copy, may have lost something, or is incomplete.
        StoreError: A broker has the directory open, or it is damaged.
        OSError: The disk failed.
    """
    return asyncio.run(_promote(data, reason, operator, host, allow_data_loss))


async def _promote(
    data: Path, reason: str, operator: str, host: str, allow_data_loss: bool
) -> Promotion:
    disk, clock = LocalDisk(data), SystemClock()
    state = Keeper(disk).copy_state()
    if not state.is_copy:
        leads = f": it leads already, in epoch {state.epoch}" if state.promoted_ms else ""
        raise UsageError(f"{data} is not the directory of a follower{leads}")
    copy = LogCopy(disk, StoreSettings(), clock, SystemEntropy())
    try:
        copy.lock()
        if copy.doubt:
            raise UsageError(
                f"{data} may lack something that it had: {copy.doubt}; start it as a follower to "
                "have it copied again, or promote another follower"
            )
        if not copy.is_open:
            raise UsageError(f"{data} has nothing of its leader's log yet")
        if not (state.is_complete or allow_data_loss):
            raise UsageError(
                f"{data} never had everything that its leader had; promote another follower, or "
                "add --allow-data-loss to lose what is missing"
            )
        audit = AuditLog(disk, clock)
        audit.open(copy.owner)
        try:
            fields = {"reason": reason, "epoch": str(copy.epoch + 1), "end": str(copy.end)}
            audit.append(AuditEntry(clock.wall_ms(), "PROMOTE", host, operator, fields))
        finally:
            audit.close()
        copy.promote(reason)
        return Promotion(copy.epoch, copy.end, copy.store.log.last_ms)
    finally:
        await copy.close()
