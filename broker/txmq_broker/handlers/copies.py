"""7705 to 7707 and 7710 of txmq: followers copy the log, and operators see their progress."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Final

from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.copies import CopiesView, RemovedMember
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.coordinator import short_name
from txmq_broker.access.account_copies import AccountsSource
from txmq_broker.handlers.pull import ReplicaChoice
from txmq_broker.parts import Parts
from txmq_broker.replication.acknowledgements import Acknowledgements
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.replication.leader_tables import LeaderTables
from txmq_broker.replication.log_shipper import LogShipper
from txmq_broker.replication.set_acts import removal_text

__all__ = ["CopyHandlers"]

_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
"""The requests that change accounts, topics and groups."""


class CopyHandlers:
    """Serves followers.

    Attributes:
        answers: The in-sync set, and the answers that wait for it.
        shipper: The connected followers.
    """

    def __init__(
        self, parts: Parts, leadership: HeldLeadership | None, accounts: AccountsSource
    ) -> None:
        self._parts = parts
        self._leadership = leadership
        self._flusher = parts.flusher
        self._is_shipping = False
        self.answers = Acknowledgements(
            parts.store,
            parts.clock,
            parts.settings.replication,
            parts.admission,
            parts.flusher.release,
            leadership,
        )
        self.shipper = LogShipper(
            parts.store,
            parts.clock,
            LeaderTables(parts.topics, parts.groups, parts.offsets, parts.floors, accounts),
            self.answers,
            self._refusal,
            parts.verifier,
        )
        self.until_start_copied = self.answers.until_start_copied
        self.until_all_copied = self.answers.until_all_copied
        copies = parts.settings.replication
        self.choice: ReplicaChoice | None = None
        """Which replica consumers pull from next, if followers serve reads."""
        if copies.reads:
            self.choice = ReplicaChoice(parts.store, copies.far_behind_bytes, self.shipper.reader)
        self.close = self.shipper.close
        if self.answers.holds_answers:
            self._ship()
            self.shipper.watch()

    def figures(self) -> dict[str, int]:
        """The progress of the followers, and whether this broker certainly leads."""
        figures = {"epoch": self._parts.store.log.epoch, "is_leader": 1}
        if self._leadership is not None:
            figures["seconds_since_lease_renewal"] = int(self._leadership.seconds_since_renewal)
        return figures | self.shipper.figures() | self.answers.figures()

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.FOLLOW_LOG: self.follow,
            RequestCode.NOTE_COPIED: self.note_copied,
            RequestCode.SHOW_COPIES: self.show,
            RequestCode.FETCH_SPANS: self.fetch,
        }

    def follow(self, connection: Connection, request: Command) -> bytes | None:
        """7705: spans of the log for a follower; the request stays open until there are some."""
        if not self._is_shipping:
            # Shipping starts with the first follower; before, it would only cost time.
            self._ship()
        return self.shipper.follow(connection, request)

    def note_copied(self, connection: Connection, request: Command) -> None:
        """7706: a follower has the log durably up to a position; one-way."""
        self.shipper.note_copied(connection, request)

    def fetch(self, connection: Connection, request: Command) -> bytes:
        """7710: intact spans to replace those that are damaged at a follower."""
        return self.shipper.fetch(connection, request)

    def confirmed(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers of a broker, in which changes of copied tables are answered later.

        The answers wait until every follower in the in-sync set has the changed tables.
        """
        return {**table, **{code: self._after_copies(table[code]) for code in _CHANGES}}

    def _after_copies(self, handler: Handler) -> Handler:
        @wraps(handler)
        def serve(connection: Connection, request: Command) -> bytes | None:
            answer = handler(connection, request)
            if answer is None or request.is_oneway or not self.answers.awaited:
                return answer
            self.shipper.hold_change(connection, answer)
            return None

        return serve

    def show(self, _: Connection, request: Command) -> bytes:
        """7707: the progress of this leader and of each follower."""
        return answer(request, body=self.view().write())

    def view(self) -> CopiesView:
        """The progress of this leader and of each follower."""
        copies, log = self._parts.settings.replication, self._parts.store.log
        leadership = self._leadership
        member, known, removed = copies.member, set[str](), list[RemovedMember]()
        if leadership is not None:
            member, known = leadership.member, {*leadership.members} - {leadership.member}
            removed = [
                RemovedMember(act.member, act.operator, act.reason, act.at_ms)
                for act in leadership.removed.values()
            ]
        return CopiesView(
            member,
            log.epoch,
            "sync" if copies.is_sync else "async",
            copies.min_in_sync,
            log.end,
            self.shipper.followers(known),
            removed,
            len(self._parts.verifier.damaged),
            self._parts.verifier.last_round_ms,
        )

    def _refusal(self, member: str) -> str:
        removed = {} if self._leadership is None else self._leadership.removed
        act = removed.get(short_name(member))
        return "" if act is None else removal_text(member, act)

    def _ship(self) -> None:
        self._is_shipping = True
        held = self.answers if self.answers.holds_answers else None
        self._flusher.ship_with(self.shipper.written, held)
