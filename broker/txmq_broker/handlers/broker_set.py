"""7708 of txmq: an operator hands over to another member, removes one, or lets one back in."""

from __future__ import annotations

from txmq.errors import (
    BrokerRefused,
    IllegalOperation,
    InternalError,
    InvalidParameter,
    TransportError,
)
from txmq.protocol.codes import RequestCode
from txmq.protocol.command import Command, answer
from txmq.protocol.copies import SetChange, SetChanged
from txmq.remoting.connection import Connection
from txmq.remoting.dispatch import Handler
from txmq.runtime.coordinator import SetAct
from txmq.runtime.tasks import Tasks
from txmq_broker.handlers.copies import CopyHandlers
from txmq_broker.parts import Parts
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.replication.set_acts import HAND_OVER, REMOVE, KnownSet, StepDown, changed_by

__all__ = ["BrokerSetHandlers"]


class BrokerSetHandlers:
    """Serves operators of a broker set; a leader that is unfit hands over by itself."""

    def __init__(
        self, parts: Parts, leadership: HeldLeadership | None, copies: CopyHandlers
    ) -> None:
        self._clock = parts.clock
        self._min_in_sync = parts.settings.replication.min_in_sync
        self._leadership = leadership
        self._copies = copies
        self._tasks = Tasks()
        self._step_down: StepDown | None = None
        if leadership is not None:
            self._step_down = StepDown(leadership, parts.clock, copies.shipper.successors)

    def note_unfit(self, cause: str, reason: str) -> None:
        """Note why this broker should not lead its set; an empty reason clears the cause."""
        if self._step_down is not None:
            self._step_down.note(cause, reason)

    async def stop(self) -> None:
        """Stop the running changes."""
        await self._tasks.stop()
        if self._step_down is not None:
            await self._step_down.stop()

    def table(self) -> dict[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.CHANGE_SET: self.change}

    def change(self, connection: Connection, request: Command) -> None:
        """7708: change the set; answered when the store of the set has recorded it."""
        wanted = request.read(SetChange)
        leadership = self._leadership
        if leadership is None:
            raise IllegalOperation(
                "this broker has no coordinator; its set is changed by the settings of its members"
            )
        if not wanted.reason.strip():
            raise InvalidParameter("a change of the set needs a reason")
        member = self._known(leadership).member_for(
            wanted.act, wanted.member, allow_refused_sends=wanted.allow_refused_sends
        )
        act = SetAct(
            wanted.act, member, wanted.operator, wanted.reason.strip(), self._clock.wall_ms()
        )
        self._tasks.start(self._carry_out(leadership, act, connection, request), "change the set")

    def _known(self, leadership: HeldLeadership) -> KnownSet:
        followers = self._copies.shipper.followers(leadership.members)
        return KnownSet(
            leadership.member,
            frozenset(entry.member for entry in followers),
            frozenset(entry.member for entry in followers if entry.is_in_sync and entry.address),
            leadership.removed,
            self._min_in_sync,
        )

    async def _carry_out(
        self, leadership: HeldLeadership, act: SetAct, connection: Connection, request: Command
    ) -> None:
        try:
            await leadership.carry_out(act, lambda seen: changed_by(act, seen))
        except (BrokerRefused, TransportError) as error:
            code = error.code if isinstance(error, BrokerRefused) else InternalError.code
            found = answer(request, code, remark=f"{act.act} was not recorded: {error}")
        else:
            found = answer(request, header=SetChanged(act.member, leadership.epoch))
            if act.act == REMOVE:
                self._copies.shipper.leave_removed()
            elif act.act == HAND_OVER:
                leadership.hand_over(act)
        if not request.is_oneway:
            connection.send(found)
