"""A member of a broker set: it leads, or it follows the leader.

A coordinator decides who leads. While another member leads, this one runs a
:class:`FollowerServer`, which copies the log into its directory and serves reads. When it leads, it
runs a :class:`Broker` on the same directory. It never runs both: the directory is closed in
between.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from txmq.errors import CorruptRecord, LogTooShort, TransportError, WriteFailed
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.coordinator import (
    Leader,
    Leadership,
    LogEnd,
    SetAct,
    SetCoordinator,
    Standing,
    View,
)
from txmq.runtime.disk import NO_ROOM, Disk, LocalDisk
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.runtime.network import Network, SystemNetwork
from txmq.runtime.tasks import until_first
from txmq_broker.access.account_copies import AccountsCopy
from txmq_broker.app import Broker
from txmq_broker.config import BrokerSettings
from txmq_broker.processes.follower_server import FollowerServer
from txmq_broker.replication.follower import Follower
from txmq_broker.replication.held_leadership import HeldLeadership
from txmq_broker.replication.set_acts import promotion_command, removal_text
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.log.damaged_parts import DamagedParts
from txmq_broker.store.log.identity import known_log
from txmq_broker.store.log.proof import NO_MARK, Proof, proof_of

__all__ = ["SetMember"]

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_CHOSEN_S: Final = 1.0
"""How long the others wait for a member that an operator chose or that has a longer log."""

_UNSEEN_EPOCHS: Final = 1_000
"""How many epochs a leader skips when the store has lost its data. Other members may have led in
epochs that this one has not seen, and if an epoch were used twice, their logs would pass for copies
of this one.
"""

_ASK_S: Final = 2.0
"""How long a newly started member waits for the other in-sync members to report their logs."""
_STAND_S: Final = 6
"""How long the other members see a candidate. It is longer than any of them waits, because the
candidate with the longest log must still be visible when one with a shorter log decides.
"""
_POLL_S: Final = 0.2
_MINOR: Final = {"", NO_MARK}
"""Doubts that any other doubt replaces: a lost mark alone is no sign of a loss."""
_UNFIT_S: Final = 1.0
_UNFIT_LEADS_S: Final = 10.0
"""How long a member with a full disk or a damaged log lets the others lead first. Then it leads
itself: it can delete old files, and serve what is intact.
"""

_PATH: Final = "member"
_TOKEN_BYTES: Final = 4
_PROBE: Final = "probe"
_PROBE_BYTES: Final = 64 * 1024
_DISK_ERRORS: Final = NO_ROOM | {errno.EIO, errno.EROFS}
"""Disk errors after which a member tries again: the disk may recover, or space may be freed."""


class SetMember:
    """One member of a broker set.

    Args:
        settings: The settings, with ``replication.member``.
        coordinator: The access to the store of the set.
        on_leading: Called when this member serves as the leader.

    Attributes:
        name: The name in the in-sync set. It includes a token of the directory, so a member that
            lost its directory counts as a new one without any acknowledged message.
        broker: The broker, while this member leads.
        follower: The follower, while another member leads.
        leaderships: The number of times that this member began to lead.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        coordinator: SetCoordinator,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        entropy: Entropy | None = None,
        on_leading: Callable[[Broker], None] | None = None,
    ) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._clock: Clock = clock or SystemClock()
        self._network: Network = network or SystemNetwork()
        self._disk: Disk = disk or LocalDisk(settings.data)
        self._entropy: Entropy = entropy or SystemEntropy()
        self._accounts = AccountsCopy(settings.acl, self._clock)
        self._on_leading = on_leading
        self._former = ""
        self._epoch = 0
        """The newest epoch that this member has seen, including before its last start."""
        self._stopping = asyncio.Event()
        self._failure = ""
        self._removal: SetAct | None = None
        self._is_new = True
        """True until it has led or followed since its start."""
        self._has_just_led = False
        """Whether it led last. The reason why it stopped leading may persist."""
        self._unfitness = ""
        self._leaderless_since = 0.0
        self.name = ""
        self.broker: Broker | None = None
        self.follower: Follower | None = None
        self.leaderships = 0

    def stop(self) -> None:
        """Make :meth:`run` stop following or leading, and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Follow and lead until stopped.

        Raises:
            StoreError: The directory is in use or damaged.
            OSError: The disk failed, or the address to listen at cannot be opened.
        """
        self.name = self._own_name()
        self._epoch = Keeper(self._disk).copy_state().epoch
        log.info("this member is %s", self.name)
        while not self._stopping.is_set():
            view = await self._ask(self._coordinator.view())
            if view is None:
                continue
            if view.leader is not None:
                self._leaderless_since = 0.0
            if self._is_forgotten(view):
                await self._ask(self._coordinator.changed(view))
            elif view.may_lead(self.name):
                await self._stand(view)
            elif view.leader is None or view.leader.member == self.name:
                self._report_removal(view)
                # A lease from before this member's restart must end first.
                await self._ask(self._coordinator.changed(view))
            else:
                await self._follow(view, view.leader)

    def _is_forgotten(self, view: View) -> bool:
        """True if the store has lost its data, and no operator has chosen this member to lead.

        After such a loss, any member could lead, in an epoch that was used before.
        """
        is_chosen = view.loss is not None and view.loss.member == self.name
        if view.epoch >= self._epoch or is_chosen:
            self._epoch = max(self._epoch, view.epoch)
            return False
        if view.loss is not None:
            return True  # Another member was chosen, and will lead soon.
        log.critical(
            "the store of the set has lost its data: its epoch is %d, and this member has seen "
            "epoch %d, so it neither leads nor follows; restore the store from a backup, or let "
            "this member lead with what it has: %s",
            view.epoch,
            self._epoch,
            self._promotion(),
        )
        return True

    def _own_name(self) -> str:
        token = _read(self._disk)
        if not token:
            token = self._entropy.token(_TOKEN_BYTES).hex()
            self._disk.replace(_PATH, f"{token}\n".encode())
        return f"{self._settings.replication.member}.{token}"

    async def _ask(self, question: Coroutine[Any, Any, View]) -> View | None:
        """The store's answer; ``None`` if it cannot be reached, or this member should stop."""
        found: View | None = None

        async def ask() -> None:
            nonlocal found
            found = await question

        try:
            await until_first(ask(), self._stopping.wait())
        except TransportError as error:
            self._report(error)
            await asyncio.sleep(_RETRY_S)
            return None
        self._failure = ""
        if found is not None and found.leader is not None:
            self._former = found.leader.member
        return found

    def _report_removal(self, view: View) -> None:
        act = view.removal_of(self.name)
        if act is not None and act != self._removal:
            log.warning("it does not lead: %s", removal_text(self.name, act))
        self._removal = act

    def _report(self, error: TransportError) -> None:
        if str(error) != self._failure:
            self._failure = str(error)
            log.warning("the store of the set cannot be reached, trying again: %s", error)

    # Standing for election

    async def _stand(self, view: View) -> None:
        """Lead, unless another member should."""
        is_chosen = view.loss is not None and view.loss.member == self.name
        try:
            proof = proof_of(self._disk)
            problem = "" if is_chosen else self._write_problem(view) or self._damage(view)
            doubt = "" if is_chosen or problem else await self._doubt(proof)
        except TransportError as error:
            self._report(error)
            await asyncio.sleep(_RETRY_S)
            return
        if problem:
            self._report_unfit(problem)
            await self._another_leads(view, _UNFIT_S)
            return
        led_last, self._has_just_led = self._has_just_led, False
        comes_later = view.gives_way(self.name) or (led_last and view.in_sync != (self.name,))
        if comes_later and await self._another_leads(view, _CHOSEN_S):
            return
        must_compare = (self._is_new and not is_chosen) or doubt
        own = Standing(proof.end, doubt, proof.had)
        if must_compare and not await self._has_most(view, own):
            return
        self._unfitness = ""
        await self._try_to_lead(view, proof.end)

    async def _doubt(self, proof: Proof) -> str:
        """Why this member may lack acknowledged messages; empty if it has everything.

        Raises:
            TransportError: The store does not answer.
        """
        doubt = Keeper(self._disk).copy_state().doubt
        if doubt in _MINOR:
            doubt = proof.doubt or doubt
        if doubt in _MINOR:
            acknowledged = await self._coordinator.acknowledged()
            if acknowledged is not None and proof.end < acknowledged:
                doubt = (
                    f"its log ends at position {proof.end.position} in epoch {proof.end.epoch}, "
                    f"and the set has acknowledged what is before {acknowledged.position} in epoch "
                    f"{acknowledged.epoch}"
                )
        if doubt:
            self._note_doubt(doubt)
        return doubt

    def _write_problem(self, view: View) -> str:
        """Why this member could not store messages; empty if it can.

        If no other member leads, a full disk is accepted: a leader that refuses sends is better
        than no leader.
        """
        try:
            self._disk.replace(_PROBE, bytes(_PROBE_BYTES))
            self._disk.remove(_PROBE)
        except OSError as error:
            with suppress(OSError):
                self._disk.remove(_PROBE)
            is_full = error.errno in NO_ROOM
            return "" if is_full and self._is_last(view) else f"it cannot write: {error}"
        return ""

    def _damage(self, view: View) -> str:
        """The known damage because of which another member should lead; empty if there is none.

        If no other member leads, this one does: the rest of its log is intact, and the others can
        repair their own damage from it.
        """
        damaged = DamagedParts()
        damaged.load(Keeper(self._disk).copy_state().damaged)
        return "" if not damaged or self._is_last(view) else str(damaged)

    def _is_last(self, view: View) -> bool:
        """Whether the other in-sync members had enough time to lead instead of this one."""
        now = self._clock.monotonic()
        self._leaderless_since = self._leaderless_since or now
        return view.in_sync == (self.name,) or now - self._leaderless_since >= _UNFIT_LEADS_S

    def _note_doubt(self, reason: str) -> None:
        """Record in the directory that it may lack something, until it has caught up."""
        keeper = Keeper(self._disk)
        state = keeper.copy_state()
        if state.doubt == reason or state.doubt not in _MINOR:
            return
        keeper.owner = f"{known_log(self._disk)[0] or 0:016x}"
        with suppress(OSError):
            keeper.save_copy_state(replace(state, doubt=reason))

    def _way_out(self, doubt: str) -> str:
        returns = ", or leads once all are back and none had more" if doubt == NO_MARK else ""
        return (
            f"it follows as soon as another member in sync leads{returns}; without one it can lead "
            f"with what it has: {self._promotion()}"
        )

    def _promotion(self) -> str:
        settings = self._settings
        return promotion_command(self.name, settings.name, settings.replication.coordinator)

    def _report_unfit(self, reason: str) -> None:
        if reason != self._unfitness:
            self._unfitness = reason
            log.critical("this member does not lead: %s", reason)

    async def _another_leads(self, view: View, within_s: float) -> bool:
        """Wait for a change of the set; return false if none comes in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._ask(self._coordinator.changed(view))
        except TimeoutError:
            return False
        return True

    async def _has_most(self, view: View, own: Standing) -> bool:
        """Compare logs with the other in-sync members; return true if this member may lead.

        A member that followed until now has everything. But the directory of a newly started member
        may have been restored to an earlier state, which only the others can reveal.
        """
        deadline = self._clock.monotonic() + _ASK_S
        try:
            await self._coordinator.stand(self.name, own, view.epoch, _STAND_S)
            while True:
                standing = await self._coordinator.standing(view.epoch)
                wanted = set(view.in_sync) - {self.name}
                others = [standing[name] for name in wanted if name in standing]
                are_all = len(others) == len(wanted)
                if are_all or self._clock.monotonic() >= deadline:
                    break
                if await self._another_leads(view, _POLL_S) or self._stopping.is_set():
                    return False
        except TransportError as error:
            self._report(error)
            await asyncio.sleep(_RETRY_S)
            return False
        if _may_lead(own, others, are_all=are_all):
            return True
        if own.doubt:
            self._report_unfit(f"{own.doubt}; {self._way_out(own.doubt)}")
        else:
            log.info("another member in sync has more of the log, and leads")
        await self._another_leads(view, _CHOSEN_S)
        return False

    # Following

    async def _follow(self, view: View, leader: Leader) -> None:
        """Follow a leader, and serve reads, until the set has another one."""

        async def find_leader() -> tuple[str, int]:
            return leader.address, view.epoch

        copies = replace(self._settings.replication, member=self.name)
        server = FollowerServer(
            replace(self._settings, replication=copies),
            find_leader,
            self._accounts,
            clock=self._clock,
            network=self._network,
            disk=self._disk,
            entropy=self._entropy,
            covered=self._coordinator.acknowledged,
        )
        self.follower = server.follower
        self._has_just_led = False
        log.info("following %s at %s in epoch %d", leader.member, leader.address, view.epoch)
        try:
            await until_first(server.run(), self._until_changed(view))
        except (OSError, WriteFailed) as error:
            if isinstance(error, OSError) and error.errno not in _DISK_ERRORS:
                raise
            log.error("this member cannot follow, trying again: %s", error)  # noqa: TRY400
            await self._another_leads(view, _UNFIT_S)
        finally:
            self._is_new &= not server.follower.has_caught_up
            self.follower = None
            is_out = self._removal is not None
            await server.close(leaves=is_out or self._stopping.is_set())

    async def _until_changed(self, followed: View) -> None:
        """Return when another member leads, this one may lead, or it was removed or readmitted.

        While no member can lead, consumers keep reading here.
        """
        view = followed
        while not self._stopping.is_set():
            found = await self._ask(self._coordinator.changed(view))
            view = found or view
            self._report_removal(view)
            if view.removal_of(self.name) != followed.removal_of(self.name):
                return
            is_led = view.leader not in {None, followed.leader} or view.epoch != followed.epoch
            if view.may_lead(self.name) or is_led:
                return

    # Leading

    async def _try_to_lead(self, view: View, end: LogEnd) -> None:
        copies = self._settings.replication
        address = copies.address or self._settings.advertise or self._settings.listen
        if view.epoch < self._epoch:  # The store has lost its data.
            view = view._replace(epoch=self._epoch + _UNSEEN_EPOCHS)
        try:
            leadership = await self._coordinator.lead(
                Leader(self.name, address), view, int(copies.lease), end
            )
        except TransportError as error:
            self._report(error)
            await asyncio.sleep(_RETRY_S)
            return
        if leadership is not None:
            await self._lead(leadership, view)

    async def _lead(self, leadership: Leadership, view: View) -> None:
        former = self._former if self._former != self.name else ""
        held = HeldLeadership(self._coordinator, leadership, view, former, self._clock)
        self._epoch = held.epoch
        log.info("leading in epoch %d", held.epoch)
        keeping = [
            asyncio.create_task(held.keep(), name="keep the lease"),
            asyncio.create_task(held.keep_acknowledged(), name="keep what is acknowledged"),
        ]
        broker = Broker(
            self._settings,
            clock=self._clock,
            network=self._network,
            disk=self._disk,
            entropy=self._entropy,
            accept_loss=None if view.loss is None else view.loss.reason,
            leadership=held,
        )
        try:
            await self._serve(broker, held)
            self._is_new = False
        except (CorruptRecord, LogTooShort) as error:
            if view.loss is not None or self.broker is not None:
                raise
            self._note_doubt(str(error))
        finally:
            self.broker = None
            self._has_just_led = True
            await held.resign()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _serve(self, broker: Broker, held: HeldLeadership) -> None:
        """Serve as the leader until the lease ends, this member stops, or another one is chosen."""

        async def start() -> None:
            await broker.__aenter__()
            self.broker = broker

        await until_first(start(), held.ended.wait(), self._stopping.wait())
        if self.broker is None:
            return
        self.leaderships += 1
        if self._on_leading is not None:
            self._on_leading(broker)
        chosen = held.is_handing_over.wait()
        await until_first(held.ended.wait(), broker.stopped.wait(), self._stopping.wait(), chosen)
        if held.ended.is_set():
            await broker.abandon()
        else:
            await broker.stop()
        if broker.failure is not None:
            raise broker.failure


def _may_lead(own: Standing, others: list[Standing], *, are_all: bool) -> bool:
    """Whether a member may lead, given the other in-sync members that stand for election.

    A longer log contains every shorter one. So a member that only lost its mark may lead in place
    of a member with a shorter log and no doubt, whose directory was restored to an earlier state.
    If all members are in doubt, all must be present, and none may have had more than this one has.
    """
    if own.doubt not in _MINOR:
        return False
    if any(other.end > own.end for other in others if other.doubt in _MINOR):
        return False
    if not own.doubt or any(not other.doubt for other in others):
        return True
    # A mark does not record its epoch, which may be newer than the epoch where the log ends now.
    return are_all and all(
        other.end <= own.end and max(other.had, other.end.position) <= own.end.position
        for other in others
    )


def _read(disk: Disk) -> str:
    try:
        file = disk.open(_PATH)
    except FileNotFoundError:
        return ""
    try:
        return file.read(0, file.size()).decode().strip()
    finally:
        file.close()
