"""Repairs the damaged parts of a follower's log with spans from its leader.

Both logs have the same bytes at the same positions, so intact spans replace damaged ones. An
interrupted repair leaves a smaller damaged part, which is found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from txmq.errors import BrokerRefused, CorruptRecord, RemoteProtocolError
from txmq.protocol.codes import RequestCode
from txmq.protocol.copies import FetchedSpans, FetchSpans
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.disk import NO_ROOM, Disk
from txmq.text import RepeatedLines
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.services.table_saves import run_in_thread
from txmq_broker.store.log.damaged_parts import DamagedPart
from txmq_broker.store.log.identity import write_identity
from txmq_broker.store.log.segments import cut_folder, keep_aside
from txmq_broker.store.log.spans import check_spans

__all__ = ["LogRepair"]

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_TIMEOUT_S: Final = 5.0

_RETRIED: Final = (BrokerRefused, CorruptRecord, RemoteProtocolError)


class LogRepair:
    """The repairs of one copy.

    Args:
        copy: The copy.
        verifier: Checks whether a part is intact.
        member: The name of this follower.
        disk: The directory.
        clock: Gives the time for the names of side folders.

    Attributes:
        look_again: To be called when the damaged parts have changed.
        on_repaired: Called with the part, the leader's address, and the folder with the damaged
            bytes.
    """

    def __init__(
        self, copy: LogCopy, verifier: LogVerifier, member: str, disk: Disk, clock: Clock
    ) -> None:
        self._copy = copy
        self._verifier = verifier
        self._member = member
        self._disk = disk
        self._clock = clock
        self._lines = RepeatedLines()
        self._changed = asyncio.Event()
        self._kept: dict[DamagedPart, str] = {}
        """The side folders of parts whose repair has begun."""
        self.look_again = self._changed.set
        self.on_repaired: Callable[[DamagedPart, str, str], None] = lambda *_: None

    async def run(self, connection: Connection) -> None:
        """Repair damaged parts until cancelled or the connection is lost.

        Raises:
            TransportError: The leader does not answer.
            StoreError: A sync failed.
            OSError: The disk failed.
        """
        damaged = self._copy.damaged
        while True:
            self._changed.clear()
            for part in damaged:
                try:
                    await self._repair(part, connection)
                except _RETRIED as error:
                    self._report(part, error)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    self._report(part, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if damaged else None):
                    await self._changed.wait()

    def _report(self, part: DamagedPart, error: Exception) -> None:
        if (times := self._lines.note(f"{part} {error}")) is not None:
            log.warning("the log %s is not repaired yet, trying again: %s%s", part, error, times)

    async def _repair(self, part: DamagedPart, connection: Connection) -> None:
        if await self._verifier.is_whole(part):
            log.warning("the log is whole again %s", part)
            self._copy.damaged.remove(part)
            return
        at = part.start
        while at < part.end:
            spans = await self._fetch(at, part.end, connection)
            if part not in self._kept:
                self._kept[part] = await self._keep_aside(part)
            await self._copy.put_back(at, spans)
            at += len(spans)
        if not await self._verifier.is_whole(part):
            raise CorruptRecord(part.start, "the disk changes what is written there")
        kept = self._kept.pop(part)
        self._copy.damaged.remove(part)
        log.warning(
            "the log %s was repaired with what %s has; %s keeps the damaged bytes",
            part,
            connection.address,
            kept,
        )
        self.on_repaired(part, connection.address, kept)

    async def _fetch(self, position: int, end: int, connection: Connection) -> bytes:
        """Fetch whole spans from a position on.

        Raises:
            BrokerRefused: The leader has none there.
            RemoteProtocolError: The leader sent something else.
        """
        copy = self._copy
        wanted = FetchSpans(self._member, copy.epoch, position, end)
        found = await connection.request(RequestCode.FETCH_SPANS, wanted, timeout_s=_TIMEOUT_S)
        answer = found.read(FetchedSpans)
        segments = copy.store.log.segments
        extent = segments.extent_at(position)
        heads = check_spans(found.body, position, segments.log_id, 0, answer.epoch)
        if answer.file_start != extent.start or position + len(found.body) > extent.end:
            raise RemoteProtocolError(
                f"position {position} lies in the file {answer.file_start} there, and here in "
                f"{extent.start}, which ends at {extent.end}"
            )
        if not heads or answer.epoch < copy.epoch:
            raise RemoteProtocolError(f"the leader of epoch {answer.epoch} sent no spans")
        return found.body

    async def _keep_aside(self, part: DamagedPart) -> str:
        """Copy the damaged bytes into a side folder; return the folder."""
        segments = self._copy.store.log.segments
        extent, log_id = segments.extent_at(part.start), segments.log_id
        folder = cut_folder(part.start, self._clock.wall_ms())

        def keep() -> None:
            write_identity(self._disk, log_id, folder)
            keep_aside(self._disk, extent, part.start, folder, part.end)

        await run_in_thread(self._disk, keep)
        return folder
