"""7705 to 7707 of txmq: followers copy the log, and operators see how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Final

from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.copies import CopiedTables, CopiesView
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq_broker.parts import Parts
from txmq_broker.services.copied_answers import CopiedAnswers
from txmq_broker.services.held_leadership import HeldLeadership
from txmq_broker.services.log_shipper import LogShipper

__all__ = ["CopyHandlers"]

_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
"""The requests that change topics and groups."""


class CopyHandlers:
    """Serves followers."""

    def __init__(self, parts: Parts, leadership: HeldLeadership | None) -> None:
        self._parts = parts
        self._leadership = leadership
        self._flusher = parts.flusher
        self._is_shipping = False
        self._answers = CopiedAnswers(
            parts.store,
            parts.clock,
            parts.settings.replication,
            parts.admission,
            parts.flusher.release,
            leadership,
        )
        self._shipper = LogShipper(
            parts.store,
            parts.clock,
            lambda: (parts.topics.version, parts.groups.version),
            self._tables,
            self._answers,
        )
        self.opened = self._answers.opened
        self.settled = self._answers.settled
        self.close = self._shipper.close
        if self._answers.holds_answers:
            self._ship()
            self._shipper.watch()

    def figures(self) -> dict[str, int]:
        """What the followers have, and whether this broker leads for certain."""
        figures = {"epoch": self._parts.store.log.epoch, "is_leader": 1}
        if self._leadership is not None:
            figures["seconds_since_lease_renewal"] = int(self._leadership.seconds_since_renewal)
        return figures | self._shipper.figures() | self._answers.figures()

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.FOLLOW_LOG: self.follow,
            RequestCode.NOTE_COPIED: self.note_copied,
            RequestCode.SHOW_COPIES: self.show,
        }

    def follow(self, connection: Connection, request: Command) -> bytes | None:
        """7705: spans of the log for a follower; the request stays open until there are some."""
        if not self._is_shipping:
            # Without followers a turn costs nothing more.
            self._ship()
        return self._shipper.follow(connection, request)

    def note_copied(self, connection: Connection, request: Command) -> None:
        """7706: a follower has the log durably up to a position; one-way."""
        self._shipper.note_copied(connection, request)

    def confirmed(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers of a broker, those that change topics and groups with later answers.

        The answers wait until every follower in the set has the changed tables.
        """
        return {**table, **{code: self._after_copies(table[code]) for code in _CHANGES}}

    def _after_copies(self, handler: Handler) -> Handler:
        @wraps(handler)
        def serve(connection: Connection, request: Command) -> bytes | None:
            answer = handler(connection, request)
            if answer is None or request.is_oneway or not self._answers.awaited:
                return answer
            self._shipper.hold_change(connection, answer)
            return None

        return serve

    def show(self, connection: Connection, request: Command) -> bytes:
        """7707: this leader and its followers, and how far each of them is."""
        del connection
        return answer(request, body=self.view().write())

    def view(self) -> CopiesView:
        """This leader and its followers, and how far each of them is."""
        copies, log = self._parts.settings.replication, self._parts.store.log
        return CopiesView(
            copies.member if self._leadership is None else self._leadership.member,
            log.epoch,
            "sync" if copies.is_sync else "async",
            copies.min_in_sync,
            log.end,
            self._shipper.followers(),
        )

    def _ship(self) -> None:
        self._is_shipping = True
        held = self._answers if self._answers.holds_answers else None
        self._flusher.ship_with(self._shipper.written, held)

    def _tables(self) -> CopiedTables:
        parts = self._parts
        return CopiedTables(
            parts.topics.saved(), parts.groups.saved(), parts.offsets.saved(), parts.floors()
        )
