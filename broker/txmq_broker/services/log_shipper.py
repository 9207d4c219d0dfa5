"""Ships a leader's log to its followers, and holds answers until they have it.

A follower asks for the log from the end of its own copy on. Its request stays open until there is
something to send. What it asks for is read from the files of the log, so a follower that is far
behind costs the leader no memory. A span is shipped as soon as it is written: the disks of the
leader and its followers sync at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from txmq.errors import InvalidParameter, ReplicaTimeout, ReplicaUnavailable
from txmq.limits import UNSYNCED_BYTES_MAX
from txmq.protocol import command as commands
from txmq.protocol.bodies import DataVersion
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import RESPONSE, Command, FrameReader
from txmq.protocol.copies import NO_SPAN, CopiedTables, FollowAnswer, FollowLog, NoteCopied
from txmq.protocol.span import HEAD_BYTES, ends_in, read_head
from txmq.remoting.connection import Connection
from txmq.runtime.clock import Clock
from txmq_broker.core.in_sync import CopyVerdict, InSyncSet
from txmq_broker.services.flusher import Tickets
from txmq_broker.store.message_store import MessageStore, Span

__all__ = ["LogShipper"]

PATIENCE_S: Final = 5.0
"""How long an answer waits for a follower; RocketMQ's ``syncFlushTimeout``."""

_TICK_S: Final = 0.25
_HOLD_S: Final = 1.0
"""How long a request of a follower stays open; its answer has the committed offsets."""

_SHIPPED_AT_ONCE: Final = 1024 * 1024
_SENDS: Final = frozenset((
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
))  # fmt: skip
_REFUSALS: Final = {
    CopyVerdict.MISSING: ReplicaUnavailable.code,
    CopyVerdict.LATE: ReplicaTimeout.code,
}


@dataclass(slots=True)
class FollowerLink:
    """A connected follower."""

    connection: Connection
    open: tuple[Command, FollowLog, float] | None = None
    """Its open request, and when it came."""
    versions: tuple[DataVersion, DataVersion] | None = None
    """The versions of the topics and groups that it has."""
    offsets_at: float = field(default=float("-inf"))
    """When it got the offsets."""


class HeldSpan(NamedTuple):
    """A span that is durable here and not yet at every in-sync follower."""

    span: Span
    tickets: Tickets
    since: float


class LogShipper:
    """The followers of one broker.

    Args:
        store: The log.
        clock: For the patience.
        versions: Returns the versions of the topics and groups.
        tables: Returns the tables beside the log.
        release: Makes a span visible and sends its answers.
        holds_answers: Whether answers wait for followers.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        versions: Callable[[], tuple[DataVersion, DataVersion]],
        tables: Callable[[], CopiedTables],
        release: Callable[[Span, Tickets], None],
        *,
        holds_answers: bool,
    ) -> None:
        self.holds_answers = holds_answers
        self._store = store
        self._clock = clock
        self._versions = versions
        self._tables = tables
        self._release = release
        self._links: dict[str, FollowerLink] = {}
        self._set = InSyncSet(PATIENCE_S)
        self._held: deque[HeldSpan] = deque()
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None

    def figures(self) -> dict[str, int]:
        """The followers, and how far they are behind."""
        copied = [self._set.copied_to().get(member, 0) for member in self._links]
        end = self._store.log.end
        return {
            "followers": len(self._links),
            "followers_in_sync": len(self._set.members),
            "bytes_not_copied": max((end - position for position in copied), default=0),
        }

    # Requests of followers

    def follow(self, connection: Connection, request: Command) -> bytes | None:
        """See :class:`~txmq.protocol.copies.FollowLog`."""
        wanted = request.read(FollowLog)
        link = self._links.get(wanted.member)
        if link is None or link.connection is not connection or not wanted.waits:
            if link is not None:
                self._lose(wanted.member)
            link = self._links[wanted.member] = FollowerLink(connection)
        is_shared = self._is_shared(wanted)
        self._watch()
        if not (wanted.waits and is_shared) or wanted.position < self._store.log.end:
            return self._answer(request, wanted, link, is_shared=is_shared)
        link.open = request, wanted, self._clock.monotonic()
        return None

    def note_copied(self, connection: Connection, request: Command) -> None:
        """See :class:`~txmq.protocol.copies.NoteCopied`.

        Raises:
            InvalidParameter: The follower has more than this log, or does not follow.
        """
        copied = request.read(NoteCopied)
        link = self._links.get(copied.member)
        if link is None or link.connection is not connection:
            raise InvalidParameter(f"{copied.member} does not follow over this connection")
        if copied.position > self._store.log.end:
            raise InvalidParameter(
                f"{copied.member} has the log to {copied.position}, and it ends at "
                f"{self._store.log.end}"
            )
        self._set.note_copied(copied.member, copied.position, self._answered_to())
        self._release_held()

    def _answered_to(self) -> int:
        # Without held answers, what is visible was answered.
        return max(self._answered, self._store.checkpoints.published)

    def _is_shared(self, wanted: FollowLog) -> bool:
        segments = self._store.log.segments
        if wanted.last_start == NO_SPAN:
            return wanted.position == segments.start
        if not segments.start <= wanted.last_start < wanted.position <= segments.end:
            return False
        data = segments.read(wanted.last_start, HEAD_BYTES)
        head = read_head(data, 0, wanted.last_start)
        known = (wanted.position, wanted.last_epoch, wanted.last_checksum)
        return head is not None and (head.position + head.size, head.epoch, head.checksum) == known

    # Answers to followers

    def written(self) -> None:
        """Ship what was written to the followers that wait for it."""
        for link in self._links.values():
            self._answer_open(link)

    def _answer_open(self, link: FollowerLink) -> None:
        if link.open is not None:
            request, wanted, _ = link.open
            link.open = None
            link.connection.send(self._answer(request, wanted, link, is_shared=True))

    def _answer(
        self, request: Command, wanted: FollowLog, link: FollowerLink, *, is_shared: bool
    ) -> bytes:
        segments = self._store.log.segments
        has_spans = is_shared and wanted.waits
        # A log without a record has no file yet.
        file_start = segments.extent_at(wanted.position).start if segments.starts else 0
        spans = self._spans(wanted.position) if has_spans else b""
        is_end = not wanted.waits or wanted.position + len(spans) == segments.end
        tables = self._news(link, is_end=is_end)
        header = FollowAnswer(
            log=f"{segments.log_id:016x}",
            epoch=self._store.log.epoch,
            start=segments.start,
            end=segments.end,
            is_shared=is_shared,
            file_start=file_start,
            tables_bytes=len(tables),
        )
        return commands.answer(request, header=header, body=tables + spans)

    def _spans(self, position: int) -> bytes:
        segments = self._store.log.segments
        if position == segments.end:
            return b""
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

    def _news(self, link: FollowerLink, *, is_end: bool) -> bytes:
        """The tables that the follower needs before the spans of the same answer, as JSON."""
        now = self._clock.monotonic()
        versions = self._versions()
        is_changed = versions != link.versions
        has_offsets = is_end and (is_changed or now - link.offsets_at >= _HOLD_S)
        if not has_offsets and not is_changed:
            return b""
        link.versions = versions
        tables = self._tables()
        if has_offsets:
            link.offsets_at = now
            return tables.write()
        return CopiedTables(tables.topics, tables.groups).write()

    # Held answers

    @property
    def held(self) -> Tickets | None:
        """The answers of the newest span that is held, or ``None`` if none is."""
        return self._held[-1].tickets if self._held else None

    def hold(self, span: Span, tickets: Tickets) -> None:
        """Send a durable span's answers once every in-sync follower has it."""
        self._held.append(HeldSpan(span, tickets, self._clock.monotonic()))
        self._release_held()
        if self._held:
            self._watch()

    def _release_held(self) -> None:
        now = self._clock.monotonic()
        while self._held:
            span, tickets, since = self._held[0]
            is_too_much = self._held[-1].span.end - span.end > UNSYNCED_BYTES_MAX
            verdict = self._set.judge(span.end, PATIENCE_S if is_too_much else now - since)
            if verdict is CopyVerdict.WAIT:
                return
            self._held.popleft()
            self._answered = span.end
            if verdict is not CopyVerdict.COPIED:
                _change_codes(tickets, _REFUSALS[verdict])
            self._release(span, tickets)

    def _lose(self, member: str) -> None:
        self._links.pop(member, None)
        self._set.leave(member)
        self._release_held()

    # Time

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        for member, link in list(self._links.items()):
            if not link.connection.is_open:
                self._lose(member)
            elif link.open is not None and now - link.open[2] >= _HOLD_S:
                self._answer_open(link)
        self._release_held()
        if self._links or self._held:
            self._watch()

    def close(self) -> None:
        """Stop looking at the time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _change_codes(tickets: Tickets, code: int) -> None:
    """Have the answers to sends say that the leader alone has the message."""
    for requests, answers in tickets.values():
        for number, request in enumerate(requests):
            if request.code in _SENDS:
                answers[number] = _with_code(answers[number], code, request.kind)


def _with_code(answer: bytes, code: int, kind: int) -> bytes:
    (frame,) = FrameReader().feed(answer)
    found = commands.decode_whole(frame)
    fields = found.field_map()
    return commands.encode(
        code, found.opaque, fields, body=found.body, flag=RESPONSE, remark=found.remark, kind=kind
    )
