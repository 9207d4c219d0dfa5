"""Ships a leader's log to its followers.

A follower asks for the log from the end of its copy on, and its request stays open until there is
something to send. Spans are read from the files of the log, so a follower that is far behind costs
the leader no memory. A span is shipped as soon as it is written, so that the disks of the leader
and its followers sync at the same time.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from txmq.errors import CorruptRecord, InternalError, InvalidParameter, NoPermission
from txmq.protocol import command as commands
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command
from txmq.protocol.copies import (
    NO_SPAN,
    CopiedTables,
    FetchedSpans,
    FetchSpans,
    FollowAnswer,
    FollowerEntry,
    FollowLog,
    NoteCopied,
)
from txmq.protocol.span import HEAD_BYTES, ends_in, read_head
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import short_name
from txmq_broker.replication.acknowledgements import (
    Acknowledgements,
    HeldChanges,
    TableVersions,
)
from txmq_broker.replication.leader_tables import LeaderTables
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.services.slices import LongRequests, Steps
from txmq_broker.store.log.spans import whole_spans
from txmq_broker.store.message_store import MessageStore

__all__ = ["LogShipper", "ReplicaIds"]

_TICK_S: Final = 0.25
_HOLD_S: Final = 0.5
"""How long a follower's request stays open before the answer sends the committed offsets. So a new
leader's offsets are never more than a second old.
"""

_SHOW_S: Final = 0.01
"""How often the acknowledged position is sent to a follower that serves reads."""

_SHIPPED_AT_ONCE: Final = 1024 * 1024

_DEFLATED_FROM: Final = 4 * 1024 * 1024
"""Tables larger than this are compressed: those of about 25,000 topics."""
_LEVEL: Final = 1


@dataclass(slots=True)
class FollowerLink:
    """A connected follower."""

    connection: Connection
    broker_id: int = 0
    """The id under which it registers."""
    serves_reads: bool = False
    is_out: bool = False
    """Whether its copy does not count as in sync."""
    copied: int = -1
    """The end of its durable copy, by its last report."""
    damaged_parts: int = 0
    verified_ms: int = 0
    """When it last finished verifying its log; 0 before the first time."""
    can_lead: bool = True
    acknowledged: int = -1
    """The acknowledged position that it received last: readers there see the log up to it."""
    is_shared: bool = False
    """Whether its log is a prefix of this leader's log."""
    open: tuple[Command, FollowLog] | None = None
    """Its open request."""
    first: TableVersions | None = None
    """The versions of the tables in the answer that compared the histories."""
    versions: TableVersions | None = None
    """The versions of the tables that were sent to it."""
    taken: TableVersions | None = None
    """The versions that it has saved; its next request confirms them."""
    offsets_at: float = field(default=float("-inf"))
    """When the offsets were last sent to it."""


class LogShipper:
    """The connected followers of one broker.

    Args:
        store: The log.
        clock: Measures how long requests stay open.
        tables: The leader's tables.
        answers: The in-sync set, and the answers that wait for it.
        refusal: Returns why a member may not follow; empty if it may.
        verifier: Checks positions where damage is suspected.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        tables: LeaderTables,
        answers: Acknowledgements,
        refusal: Callable[[str], str],
        verifier: LogVerifier,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tables = tables
        self._joins = LongRequests(
            [RequestCode.FOLLOW_LOG], self._join, clock, "requests of followers that join"
        )
        self._answers = answers
        self._refusal = refusal
        self._verifier = verifier
        self._older = self._newer = store.log.end
        """Where the log ended at the tick before the last one, and at the last one."""
        self._links: dict[str, FollowerLink] = {}
        self._changes = HeldChanges(answers, self._taken_by)
        self._timer: asyncio.TimerHandle | None = None
        self._show_timer: asyncio.TimerHandle | None = None
        self._ids = ReplicaIds()

    def figures(self) -> dict[str, int]:
        """The number of connected followers, and how many bytes the slowest one lacks."""
        end = self._store.log.end
        copied = [max(self._copied_to(member), 0) for member in self._links]
        return {
            "followers": len(self._links),
            "bytes_not_copied": max((end - position for position in copied), default=0),
        }

    def followers(self, known: Iterable[str]) -> list[FollowerEntry]:
        """The connected followers, and the other known members of the set."""
        members = self._links.keys() | self._answers.in_sync | set(known)
        return [self._entry(member) for member in sorted(members)]

    def successors(self) -> list[str]:
        """The in-sync followers that could lead now, the one with the longest copy first."""
        found = [
            member
            for member, link in self._links.items()
            if link.can_lead and member in self._answers.in_sync and link.connection.is_open
        ]
        return sorted(found, key=self._answers.copied_to, reverse=True)

    def reader(self) -> int:
        """The id of an in-sync follower that serves reads, or 0 without one."""
        found = [
            link.broker_id
            for member, link in self._links.items()
            if link.serves_reads and member in self._answers.in_sync and link.connection.is_open
        ]
        return min(found, default=0)

    def _copied_to(self, member: str) -> int:
        """The end of a follower's durable copy, in sync or not; -1 if it is unknown."""
        link = self._links.get(member)
        return self._answers.copied_to(member) if link is None or not link.is_out else link.copied

    def _entry(self, member: str) -> FollowerEntry:
        link = self._links.get(member)
        entry = FollowerEntry(
            member,
            link.connection.address if link is not None and link.connection.is_open else "",
            is_in_sync=member in self._answers.in_sync,
        )
        if link is not None:
            entry.damaged_parts, entry.verified_ms = link.damaged_parts, link.verified_ms
        position = self._copied_to(member)
        if position >= 0:
            lag = self._answers.lag_of(position)
            entry.position = position
            entry.bytes_behind = self._store.log.end - position
            entry.seconds_behind, entry.is_longer = round(lag.seconds, 3), lag.is_longer
        return entry

    # Requests of followers

    def follow(self, connection: Connection, request: Command) -> bytes | None:
        """See :class:`~txmq.protocol.copies.FollowLog`.

        Raises:
            NoPermission: The follower was removed from the set, has seen a newer epoch, or may not
                receive the accounts.
        """
        wanted = request.read(FollowLog)
        if not wanted.waits:
            raise self._joins.postponed(request)
        link = self._link_of(connection, request, wanted)
        if link.taken != link.versions:
            link.taken = link.versions
            self._changes.release()
        is_behind = (
            wanted.position < self._store.log.end or link.versions != self._tables.versions()
        )
        if not link.is_shared or is_behind:
            return self._answer(request, wanted, link, is_shared=link.is_shared)
        link.open = request, wanted
        if link.serves_reads and link.acknowledged < self._store.log.end:
            self._watch_acknowledged()
        return None

    def _link_of(self, connection: Connection, request: Command, wanted: FollowLog) -> FollowerLink:
        if refusal := self._refusal(wanted.member):
            raise NoPermission(refusal)
        if wanted.epoch > self._store.log.epoch:
            self._answers.note_epoch(wanted.epoch)
            raise NoPermission(
                f"{wanted.member} has seen epoch {wanted.epoch}, and this leader has epoch "
                f"{self._store.log.epoch}; it no longer leads"
            )
        link = self._links.get(wanted.member)
        if link is None and self._answers.has_tokens:
            self._forget_namesakes(wanted.member)
        if link is None or link.connection is not connection or not wanted.waits:
            self._tables.accounts.check(connection, request)
            # The positions that it confirmed before still hold.
            link = self._links[wanted.member] = FollowerLink(connection)
        link.broker_id = self._ids.id_of(self._name_of(wanted.member), wanted.broker_id)
        link.serves_reads = wanted.serves_reads and wanted.broker_id == link.broker_id
        link.is_shared = self._is_shared(wanted)
        link.can_lead = wanted.can_lead
        link.is_out = wanted.is_out
        link.damaged_parts, link.verified_ms = wanted.damaged_parts, wanted.verified_ms
        if link.is_out:
            self._answers.leave(wanted.member)
        self.watch()
        return link

    def _join(self, connection: Connection, request: Command) -> Steps:
        """Compare the histories, and send all tables, in parts because they may be large."""
        wanted = request.read(FollowLog)
        link = self._link_of(connection, request, wanted)
        # The copy may be behind these offsets, so the first answer at the log's end repeats them.
        link.first = self._tables.versions() if wanted.takes_changes else None
        parts = []
        for part in self._tables.saved_parts():
            parts.append(part)
            yield
        is_deflated = wanted.takes_deflated and sum(map(len, parts)) > _DEFLATED_FROM
        if is_deflated:
            deflate = zlib.compressobj(_LEVEL)
            for place, part in enumerate(parts):
                parts[place] = deflate.compress(part)
                yield
            parts.append(deflate.flush())
        link.is_shared = self._is_shared(wanted)
        return self._answer_with(
            request,
            wanted,
            link,
            b"".join(parts),
            is_shared=link.is_shared,
            is_deflated=is_deflated,
        )

    def _name_of(self, member: str) -> str:
        """A member's name without the token of its directory."""
        return short_name(member) if self._answers.has_tokens else member

    def _forget_namesakes(self, member: str) -> None:
        """Forget a member that lost its directory: it returned with another token in its name."""
        for other in list(self._links):
            if other != member and self._name_of(other) == self._name_of(member):
                del self._links[other]
                self._answers.leave(other)

    def leave_removed(self) -> None:
        """Stop shipping to members that must no longer follow."""
        for member in sorted(self._links.keys() | self._answers.in_sync):
            if not (refusal := self._refusal(member)):
                continue
            link = self._links.pop(member, None)
            if link is not None and link.open is not None:
                request, _ = link.open
                link.connection.send(commands.answer(request, NoPermission.code, remark=refusal))
            self._answers.leave(member)

    def note_copied(self, connection: Connection, request: Command) -> None:
        """See :class:`~txmq.protocol.copies.NoteCopied`.

        Raises:
            InvalidParameter: The follower has more than this log, or does not follow.
        """
        copied = request.read(NoteCopied)
        link = self._links.get(copied.member)
        if link is None or link.connection is not connection or not link.is_shared:
            raise InvalidParameter(f"{copied.member} does not follow over this connection")
        if copied.position > self._store.log.end:
            raise InvalidParameter(
                f"{copied.member} has the log to {copied.position}, and it ends at "
                f"{self._store.log.end}"
            )
        link.copied = copied.position
        if link.is_out:
            return
        # A follower joins only once it has the tables that every member of the set has.
        if copied.member in self._answers.awaited or link.taken == self._tables.versions():
            self._answers.note_copied(copied.member, copied.position)

    def fetch(self, connection: Connection, request: Command) -> bytes:
        """See :class:`~txmq.protocol.copies.FetchSpans`.

        Raises:
            InvalidParameter: The sender does not follow, or this log does not have that part.
            CorruptRecord: That part is damaged here, too.
        """
        wanted = request.read(FetchSpans)
        link, segments = self._links.get(wanted.member), self._store.log.segments
        if link is None or link.connection is not connection or not link.is_shared:
            raise InvalidParameter(f"{wanted.member} does not follow over this connection")
        if not segments.start <= wanted.position < wanted.end <= segments.end:
            raise InvalidParameter(
                f"the log of this leader goes from {segments.start} to {segments.end}"
            )
        # Its open request predates the damage.
        link.is_out, link.damaged_parts = True, max(1, link.damaged_parts)
        self._answers.leave(wanted.member)
        spans = self._whole_spans(wanted.position)
        needed = [end for end in ends_in(spans, wanted.position) if end >= wanted.end]
        header = FetchedSpans(self._store.log.epoch, segments.extent_at(wanted.position).start)
        body = spans[: needed[0] - wanted.position] if needed else spans
        return commands.answer(request, header=header, body=body)

    def _is_shared(self, wanted: FollowLog) -> bool:
        segments = self._store.log.segments
        if wanted.last_start == NO_SPAN:
            return wanted.position == segments.start
        if not segments.start <= wanted.last_start < wanted.position <= segments.end:
            return False
        data = segments.read(wanted.last_start, HEAD_BYTES)
        head = read_head(data, 0, wanted.last_start)
        if head is None:
            self._refuse_doubt(wanted)
            return False
        known = (wanted.position, wanted.last_epoch, wanted.last_checksum)
        return (head.position + head.size, head.epoch, head.checksum) == known

    def _refuse_doubt(self, wanted: FollowLog) -> None:
        """Refuse to compare a span whose head may be damaged in this log.

        If this leader denied having the span, the follower would cut its intact copy.
        """
        segments, position = self._store.log.segments, wanted.position
        is_behind = position == segments.end
        is_behind |= read_head(segments.read(position, HEAD_BYTES), 0, position) is not None
        if self._verifier.damaged.holds(wanted.last_start) or (
            is_behind and not self._verifier.vouches_for(wanted.last_start)
        ):
            self._verifier.suspect(wanted.last_start)
            raise CorruptRecord(wanted.last_start, "the histories cannot be compared there")

    # Answers to followers

    def written(self) -> None:
        """Ship newly written spans to the followers that wait for them."""
        for link in self._links.values():
            self._answer_open(link)

    def _answer_open(self, link: FollowerLink) -> None:
        if link.open is not None:
            request, wanted = link.open
            link.open = None
            try:
                answer = self._answer(request, wanted, link, is_shared=True)
            except CorruptRecord as error:
                answer = commands.answer(request, InternalError.code, remark=str(error))
            link.connection.send(answer)

    def _answer(
        self, request: Command, wanted: FollowLog, link: FollowerLink, *, is_shared: bool
    ) -> bytes:
        spans = self._spans(wanted.position) if is_shared else b""
        is_end = wanted.position + len(spans) == self._store.log.segments.end
        tables = self._changed_tables(wanted, link, is_end=is_end)
        is_deflated = wanted.takes_deflated and len(tables) > _DEFLATED_FROM
        if is_deflated:
            tables = zlib.compress(tables, _LEVEL)
        return self._answer_with(
            request, wanted, link, tables, spans, is_shared=is_shared, is_deflated=is_deflated
        )

    def _answer_with(
        self,
        request: Command,
        wanted: FollowLog,
        link: FollowerLink,
        tables: bytes,
        spans: bytes = b"",
        *,
        is_shared: bool,
        is_deflated: bool,
    ) -> bytes:
        segments = self._store.log.segments
        # A log without a record has no file yet.
        file_start = segments.extent_at(wanted.position).start if segments.starts else 0
        header = FollowAnswer(
            log=f"{segments.log_id:016x}",
            epoch=self._store.log.epoch,
            start=segments.start,
            end=segments.end,
            is_shared=is_shared,
            file_start=file_start,
            tables_bytes=len(tables),
            acknowledged=self._answers.acknowledged,
            broker_id=link.broker_id,
            is_deflated=is_deflated,
        )
        link.acknowledged = header.acknowledged
        return commands.answer(request, header=header, body=tables + spans)

    def _spans(self, position: int) -> bytes:
        segments = self._store.log.segments
        if position == segments.end:
            return b""
        if position < self._older:
            return self._whole_spans(position)
        left = segments.extent_at(position).end - position
        data = segments.read(position, min(_SHIPPED_AT_ONCE, left))
        whole = 0
        for end in ends_in(data, position):
            if end - position > len(data):
                if not whole:
                    return segments.read(position, end - position)
                break
            whole = end - position
        return data[:whole]

    def _whole_spans(self, position: int) -> bytes:
        """Spans with correct checksums, from a position on.

        Raises:
            CorruptRecord: The span at the position is damaged.
        """
        segments = self._store.log.segments
        extent = segments.extent_at(position)
        file = segments.files[segments.starts.index(extent.start)]
        reason = "what this leader has there differs from what was written"
        try:
            found = whole_spans(file, extent, position, segments.log_id, _SHIPPED_AT_ONCE)
            for data, _ in found:
                return data
        except OSError as error:
            reason = f"the disk of this leader cannot read it: {error}"
        self._verifier.suspect(position)
        raise CorruptRecord(position, reason)

    def _changed_tables(self, wanted: FollowLog, link: FollowerLink, *, is_end: bool) -> bytes:
        """The tables that the follower needs before the spans in this answer, as JSON."""
        now = self._clock.monotonic()
        versions = self._tables.versions()
        is_changed = versions != link.versions
        has_offsets = is_end and (is_changed or now - link.offsets_at >= _HOLD_S)
        if not has_offsets and not is_changed:
            return b""
        accounts = None if link.versions is None else link.versions[2]
        known, link.versions = link.versions or link.first, versions
        every = self._tables.saved()
        # Only changed tables: a large one would cost both sides more than everything else.
        tables = CopiedTables()
        if known is None or known[0] != versions[0]:
            if known is not None and wanted.takes_changes:
                tables.topic_changes = self._tables.topic_changes(known[0])
            if tables.topic_changes is None:
                tables.topics = every.topics
        if known is None or known[1] != versions[1]:
            tables.groups = every.groups
        if has_offsets:
            link.offsets_at = now
            tables.offsets, tables.floors = every.offsets, every.floors
        if accounts != versions[2]:
            tables.accounts = self._tables.accounts.texts()
        return tables.write()

    # Changes of the tables

    def hold_change(self, connection: Connection, answer: bytes) -> None:
        """Send an answer once every follower in the set has the current tables."""
        self._changes.hold(self._tables.versions(), connection, answer)
        self.written()
        self._changes.release()
        self.watch()

    def _taken_by(self, member: str) -> TableVersions | None:
        link = self._links.get(member)
        return None if link is None else link.taken

    # Reads from followers

    def _watch_acknowledged(self) -> None:
        if self._show_timer is None:
            loop = asyncio.get_running_loop()
            self._show_timer = loop.call_later(_SHOW_S, self._send_acknowledged)

    def _send_acknowledged(self) -> None:
        """Send the acknowledged position to the followers that serve reads."""
        self._show_timer = None
        acknowledged = self._answers.acknowledged
        for link in self._links.values():
            if link.serves_reads and link.open is not None and link.connection.is_open:
                if link.acknowledged < acknowledged:
                    self._answer_open(link)
                elif acknowledged < self._store.log.end:
                    self._watch_acknowledged()

    # Timers

    def watch(self) -> None:
        """Start the timer, unless it already runs."""
        if self._timer is None:
            self._older = self._newer = self._store.log.end
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        older, newer = self._newer, self._store.log.end
        now = self._clock.monotonic()
        for member, link in list(self._links.items()):
            if not link.connection.is_open:
                del self._links[member]
                self._answers.leave(member)
            elif now - link.offsets_at >= _HOLD_S:
                self._answer_open(link)
        self._answers.tick(self._links.keys())
        self._changes.release()
        if self._links or self._changes.are_held or self._answers.watches:
            self.watch()
        self._older, self._newer = older, newer

    def close(self) -> None:
        """Stop the timers, and drop all held answers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._show_timer is not None:
            self._show_timer.cancel()
            self._show_timer = None
        self._changes.clear()
        self._answers.close()


class ReplicaIds:
    """The ids of a leader's followers, from 1 on; 0 is the leader's own.

    A member keeps its id while this leader leads. A new leader usually assigns the same id, because
    the follower asks for it.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, member: str, wanted: int) -> int:
        """The id of a member.

        Args:
            member: Its name.
            wanted: The id that it had before, or 0. If it is taken, the member gets another one.
        """
        found = self._ids.get(member)
        if found is not None:
            return found
        taken = set(self._ids.values())
        free = next(number for number in range(1, len(taken) + 2) if number not in taken)
        self._ids[member] = found = wanted if wanted > 0 and wanted not in taken else free
        return found
