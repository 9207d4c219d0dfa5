"""An operator's acts on a broker set, why they are refused, and how a leader steps down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Final

from txmq.errors import BrokerRefused, IllegalOperation, InvalidParameter, TransportError
from txmq.runtime.clock import Clock
from txmq.runtime.coordinator import SetAct, View, short_name
from txmq_broker.replication.held_leadership import HeldLeadership

__all__ = [
    "HAND_OVER",
    "REJOIN",
    "REMOVE",
    "KnownSet",
    "StepDown",
    "changed_by",
    "find_member",
    "promotion_command",
    "removal_text",
]

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25

HAND_OVER: Final = "hand-over"
REMOVE: Final = "remove"
REJOIN: Final = "rejoin"


@dataclass(frozen=True, slots=True)
class KnownSet:
    """What a leader knows about its set."""

    leader: str
    members: frozenset[str]
    """All members, connected or not."""
    in_sync: frozenset[str]
    """The connected followers that are in sync."""
    removed: dict[str, SetAct]
    """The removals, by the name that a member has in its settings."""
    min_in_sync: int

    def member_for(self, act: str, name: str, *, allow_refused_sends: bool) -> str:
        """The member that an act refers to.

        Args:
            act: The act.
            name: The whole name of a member, or the name in its settings.
            allow_refused_sends: Whether a removal may leave too few copies in sync for sends.

        Returns:
            The whole name for a hand-over, and otherwise the name in the settings.

        Raises:
            InvalidParameter: The act or the member is unknown, or the name is ambiguous.
            IllegalOperation: The member cannot be the subject of the act.
        """
        removal = self.removed.get(short_name(name))
        if act == REJOIN:
            if removal is None:
                raise IllegalOperation(f"{name} was not removed; removed: {_list(self.removed)}")
            return removal.member
        if act not in (HAND_OVER, REMOVE):
            raise InvalidParameter(f"{act!r} is not an act on a set")
        if removal is not None:
            raise IllegalOperation(removal_text(name, removal))
        member = find_member(name, self.members | {self.leader}, self.in_sync)
        if act == HAND_OVER:
            self._check_hand_over(member)
            return member
        self._check_removal(member, allow_refused_sends=allow_refused_sends)
        return short_name(member)

    def _check_hand_over(self, member: str) -> None:
        if member == self.leader:
            raise IllegalOperation(f"{member} leads already")
        if member not in self.in_sync:
            raise IllegalOperation(
                f"{member} is not in sync, so it may lack acknowledged messages; followers in "
                f"sync: {_list(self.in_sync)}"
            )

    def _check_removal(self, member: str, *, allow_refused_sends: bool) -> None:
        if member == self.leader:
            raise IllegalOperation(
                f"{member} leads; have another member lead first: txmq cluster promote"
            )
        left = 1 + len(self.in_sync - {member})
        if member in self.in_sync and left < self.min_in_sync and not allow_refused_sends:
            raise IllegalOperation(
                f"without {member}, {left} of {self.min_in_sync} copies would be in sync, and "
                "sends would be refused; to remove it all the same, add --allow-refused-sends"
            )


def find_member(name: str, members: Iterable[str], in_sync: Iterable[str]) -> str:
    """The whole name of a member.

    Args:
        name: Its whole name, or the name in its settings.
        members: The members of the set.
        in_sync: The members that are in sync.

    Raises:
        InvalidParameter: The name is unknown, or it is ambiguous.
    """
    known = {*members, *in_sync}
    found = [member for member in known if name in (member, short_name(member))]
    # If two members have one name in their settings, one of them has lost its directory.
    found = [member for member in found if member in in_sync] or found
    if not found:
        near = get_close_matches(name, {*known, *map(short_name, known)}, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidParameter(f"{name!r} is not a member; members: {_list(known)}{hint}")
    if len(found) > 1:
        raise InvalidParameter(f"{name} is ambiguous; name one of {_list(found)}")
    return found[0]


def removal_text(member: str, removal: SetAct) -> str:
    """Says who removed a member, why, and how it can return."""
    return (
        f"{member} was removed from the set by {removal.operator}: {removal.reason}; to let it "
        f"follow again: txmq cluster rejoin {removal.member}"
    )


def promotion_command(member: str, broker: str, coordinator: str) -> str:
    """The command that lets a member lead with its log, even if messages are lost."""
    return (
        f"txmq cluster promote {member} --broker {broker} --coordinator {coordinator} "
        "--allow-data-loss --reason TEXT"
    )


def changed_by(act: SetAct, seen: View) -> View:
    """The state of a set after an act.

    Raises:
        IllegalOperation: The member to hand over to is no longer in sync.
    """
    if act.act == HAND_OVER:
        if act.member not in seen.in_sync:
            raise IllegalOperation(f"{act.member} is no longer in sync")
        return seen._replace(hand_over=act)
    others = tuple(one for one in seen.removed if one.member != act.member)
    if act.act == REJOIN:
        return seen._replace(removed=others)
    return seen._replace(
        in_sync=_without(seen.in_sync, act.member),
        members=_without(seen.members, act.member),
        removed=(*others, act),
    )


def _without(members: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(member for member in members if short_name(member) != name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


class StepDown:
    """Tries to hand over the leadership while there is a reason not to lead.

    Args:
        leadership: The leadership to hand over.
        clock: Gives the time for the record of the act.
        successors: Returns the followers that could lead now, the best one first.
    """

    def __init__(
        self, leadership: HeldLeadership, clock: Clock, successors: Callable[[], list[str]]
    ) -> None:
        self._leadership = leadership
        self._clock = clock
        self._successors = successors
        self._reasons: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, cause: str, reason: str) -> None:
        """Note why this broker should not lead; an empty reason removes the cause."""
        if not reason:
            self._reasons.pop(cause, None)
            return
        self._reasons[cause] = reason
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._hand_over(), name="step down")

    async def _hand_over(self) -> None:
        is_reported = False
        while self._reasons and not self._leadership.is_handing_over.is_set():
            reason = "; ".join(self._reasons.values())
            if successors := self._successors():
                act = SetAct(
                    HAND_OVER,
                    successors[0],
                    self._leadership.member,
                    reason,
                    self._clock.wall_ms(),
                )
                try:
                    await self._leadership.carry_out(act, partial(changed_by, act))
                except (BrokerRefused, TransportError) as error:
                    log.warning("handing over to %s failed: %s", act.member, error)
                else:
                    self._leadership.hand_over(act)
                    return
            elif not is_reported:
                is_reported = True
                log.error("this leader should hand over, and no follower could lead: %s", reason)
            await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
