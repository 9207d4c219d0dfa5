"""The checkers of broker sets find a replication that is broken on purpose, each by what it breaks.

Every one of these is made from the real one by taking a single thought away.
"""

import asyncio
from functools import partial

import pytest

from tests.simulation.broken import names, run_all, see_it_found
from tests.simulation.checkers import (
    acknowledged,
    enough_copies,
    follower_reads,
    fresh_offsets,
    identical_logs,
    kept,
    leader_bound,
    linearizable,
    liveness,
    one_leader,
    reused,
)
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_runs import COPY_CHECKERS, run_copy_seed
from tests.simulation.mix import TransactionMix, kib
from txmq.protocol.bodies import TopicConfigs
from txmq.protocol.codes import RequestCode, SysFlag
from txmq.protocol.copies import CopiedTables, NoteCopied
from txmq.protocol.record import Record
from txmq.protocol.span import Decision
from txmq.runtime.coordinator import View
from txmq.testing import Conditions
from txmq.testing.coordination import SimulatedCoordination
from txmq_broker.processes.member import SetMember
from txmq_broker.replication import follower
from txmq_broker.replication.acknowledgements import Acknowledgements, InSyncSet
from txmq_broker.replication.follower import Follower
from txmq_broker.replication.held_leadership import HeldLeadership, LeaderGate
from txmq_broker.replication.leader_tables import LeaderTables
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.replication.log_shipper import LogShipper
from txmq_broker.services.flusher import Flusher
from txmq_broker.services.keeper import Keeper
from txmq_broker.store.start import RecordRestorer

MIX = CopyMix(
    segment=kib(64),
    queues=1,
    producers=1,
    lanes=3,
    sends=100,
    think_s=0.05,
    body_max=100,
    batch_chance=0.0,
    oneway_chance=0.0,
    hold_s=0.3,
    chaos_s=20.0,
    pause_s=0.7,
    audit_chance=0.5,
    recovery_chance=0.0,
    sync_s=(0.0, 0.2),
    lag_max=1.0,
    faults=("kill ahead",),
)
"""Much is sent all the time, copies are late, and leaders die."""

TRANSACTIONS = MIX.but(
    transactions=TransactionMix(timeout_s=0.5, interval_s=0.5, lanes=3, think_s=0.1, beat_s=0.3)
)


BESIDE = MIX.but(faults=("pause", "pause ahead", "store apart", "members apart"))
"""Old leaders go on beside new ones."""

ALONE = MIX.but(members=1, faults=("power cut",), pause_s=4.0, chaos_s=12.0)
"""A leader comes back itself, with what its disk has."""


def test_the_unbroken_replication_passes():
    for mix in (MIX, MIX.but(reads=True), TRANSACTIONS, BESIDE, ALONE):
        run_all(run_copy_seed, mix)


def test_without_lease_checks_the_epoch_still_protects_acknowledged_messages(monkeypatch):
    """As with a much too slow monotonic clock: readers may see an old state, and no more."""
    the_lease_is_not_looked_at(monkeypatch.setattr)
    needs_leases = (one_leader, leader_bound, fresh_offsets, linearizable)
    checkers = [checker for checker in COPY_CHECKERS if checker not in needs_leases]

    run_all(partial(run_copy_seed, checkers=checkers), BESIDE)


def a_send_is_answered_before_the_followers_have_it(patch):
    patch(InSyncSet, "has_copied", lambda self, end, least=0: True)


def the_lease_is_not_looked_at(patch):
    patch(HeldLeadership, "is_certain", lambda self: not self.ended.is_set())
    return MIX.but(faults=("pause",))


def a_member_leads_that_is_not_in_sync(patch):
    patch(View, "may_lead", lambda self, member: self.leader is None)


def the_set_shrinks_before_the_store_says_so(patch):
    record = HeldLeadership.record

    async def hasty(self, members):
        if members < self.in_sync:
            self.in_sync = members
            return members
        return await record(self, members)

    patch(HeldLeadership, "record", hasty)


def no_member_proves_its_log(patch):
    """With proofs, the faults below would only leave the set without a leader."""

    async def doubt(self, proof):
        return ""

    async def has_most(self, view, own):
        return True

    patch(SetMember, "_doubt", doubt)
    patch(SetMember, "_has_most", has_most)
    patch(follower, "refuse_to_lose", lambda *_: None)


def a_follower_joins_with_less_than_was_answered(patch):
    no_member_proves_its_log(patch)
    note = InSyncSet.note_copied

    def note_copied(self, member, position, answered):
        note(self, member, position, 0)

    patch(InSyncSet, "note_copied", note_copied)
    slow = Conditions(latency_s=0.02)
    return MIX.but(members=2, segment=kib(2), faults=("kill at a join",), conditions=slow)


def nothing_is_cut_back(patch):
    async def cut_back(self, *_):
        pass

    patch(Follower, "_cut_back", cut_back)


def a_wiped_member_is_taken_for_the_old_one(patch):
    no_member_proves_its_log(patch)

    def own_name(self):
        self._disk.replace("member", b"same")
        return f"{self._settings.replication.member}.same"

    patch(SetMember, "_own_name", own_name)
    return MIX.but(faults=("wipe",))


def readers_see_what_the_copies_lack(patch):
    hold, release = Acknowledgements.hold, Flusher.release

    def hold_shown(self, span, tickets):
        release(self._release.__self__, span, {})
        hold(self, span, tickets)

    def send(self, span, tickets):
        for connection, (_, answers) in tickets.items():
            connection.send(*answers)

    patch(Acknowledgements, "hold", hold_shown)
    patch(Flusher, "release", send)


def a_new_leader_shows_what_its_copies_lack(patch):
    async def until_start_copied(self):
        pass

    patch(Acknowledgements, "until_start_copied", until_start_copied)
    return MIX.but(faults=("kill twice",))


def a_follower_that_is_gone_stays_in_the_set(patch):
    patch(InSyncSet, "leave", lambda self, member: None)
    patch(InSyncSet, "drop_behind", lambda self, position: [])
    return MIX.but(faults=("wipe",))


def a_new_leader_waits_for_the_one_that_is_gone(patch):
    tick = Acknowledgements.tick

    def patient(self, connected):
        tick(self, {*connected, *self._set.present})

    patch(Acknowledgements, "tick", patient)
    patch(InSyncSet, "drop_behind", lambda self, position: [])
    init = HeldLeadership.__init__
    patch(HeldLeadership, "__init__", lambda self, *args: init(self, *args[:3], "", args[4]))
    return MIX.but(faults=("wipe",))


def offsets_are_not_copied(patch):
    tables = LeaderTables.saved

    def without(self):
        found = tables(self)
        return CopiedTables(found.topics, found.groups, None, found.floors)

    patch(LeaderTables, "saved", without)
    patch(LeaderTables, "saved_parts", lambda self: iter([without(self).write()]))
    return MIX.but(faults=("kill",))


def offsets_are_never_saved(patch):
    patch(Keeper, "save_offsets", lambda self, offsets: None)

    async def write_offsets(self, offsets):
        pass

    patch(Keeper, "write_offsets", write_offsets)
    return ALONE


def a_follower_forgets_decisions(patch):
    restore = RecordRestorer.restore

    def forgetful(self, record, position, data):
        if not isinstance(record, Decision):
            restore(self, record, position, data)

    patch(RecordRestorer, "restore", forgetful)
    return TRANSACTIONS


def a_follower_shows_all_that_it_has(patch):
    patch(LogCopy, "indexable", property(lambda self: self.unindexed))
    patch(LogCopy, "is_readable", property(lambda self: self.is_open))
    return MIX.but(reads=True)


def a_follower_forgets_half_messages(patch):
    restore = RecordRestorer.restore

    def forgetful(self, record, position, data):
        is_half = isinstance(record, Record) and record.sys_flag & SysFlag.PREPARED
        if not is_half and not isinstance(record, Decision):
            restore(self, record, position, data)

    patch(RecordRestorer, "restore", forgetful)
    return TRANSACTIONS


def a_decision_is_answered_before_the_followers_have_it(patch):
    hold = Acknowledgements.hold

    def hold_the_rest(self, span, tickets):
        for connection, (requests, answers) in tickets.items():
            for number in reversed(range(len(requests))):
                if requests[number].code == RequestCode.END_TRANSACTION:
                    connection.send(answers.pop(number))
                    del requests[number]
        hold(self, span, tickets)

    patch(Acknowledgements, "hold", hold_the_rest)
    return TRANSACTIONS.but(members=2)


def too_few_copies_are_enough(patch):
    has_copied = InSyncSet.has_copied
    patch(InSyncSet, "has_copied", lambda self, end, least=0: has_copied(self, end))
    return MIX.but(min_in_sync=2, members=2, faults=("kill ahead", "members apart"))


def a_follower_confirms_before_its_disk_has_it(patch):
    async def sync_copies(self, connection):
        while True:
            await self._copied.wait()
            self._copied.clear()
            connection.oneway(RequestCode.NOTE_COPIED, NoteCopied(self._member, self._copy.end))
            await self._copy.sync()

    patch(Follower, "_sync_copies", sync_copies)


def a_leader_answers_before_its_disk_has_it(patch):
    init = Flusher.__init__

    def hasty(self, *args):
        init(self, *args)
        self._is_sync = False

    patch(Flusher, "__init__", hasty)


def histories_are_compared_by_position(patch):
    def is_shared(self, wanted):
        segments = self._store.log.segments
        return segments.start <= wanted.position <= segments.end

    patch(LogShipper, "_is_shared", is_shared)


def a_follower_stays_with_the_leader_of_an_old_epoch(patch):
    async def never(self, view):
        await self._stopping.wait()

    patch(SetMember, "_until_changed", never)
    return MIX.but(faults=("pause",))


def a_leader_renews_its_lease_alone(patch):
    def is_certain(self):
        held = self._leadership
        if not self.ended.is_set():
            certain_until = self._clock.monotonic() + held.lease_s
            self._leadership = held._replace(certain_until=certain_until)
        return not self.ended.is_set()

    patch(HeldLeadership, "is_certain", is_certain)
    return MIX.but(faults=("store apart",))


def a_store_without_its_data_is_believed(patch):
    def is_forgotten(self, view):
        self._epoch = view.epoch
        return False

    patch(SetMember, "_is_forgotten", is_forgotten)
    return MIX.but(faults=("store emptied",))


def topics_are_not_copied(patch):
    tables = LeaderTables.saved

    def without(self):
        found = tables(self)
        return CopiedTables(TopicConfigs({}), found.groups, found.offsets, found.floors)

    patch(LeaderTables, "saved", without)
    patch(LeaderTables, "saved_parts", lambda self: iter([without(self).write()]))
    return MIX.but(faults=("kill",))


def a_deposed_leader_shows_what_it_knew_of_transactions(patch):
    """The answer leaves seconds late; until then everything else is refused."""
    lets_in, keep = LeaderGate.lets_in, HeldLeadership.keep

    def is_certain(self):
        return self._clock.monotonic() < self._leadership.certain_until and not self.ended.is_set()

    async def keep_longer(self):
        await keep(self)
        await asyncio.sleep(4.0)
        self.end("its lease is over")

    def lets_in_who_only_looks(self, code):
        is_look = code == RequestCode.SHOW_TRANSACTION_HISTORY and self.is_open
        return is_look or lets_in(self, code)

    patch(HeldLeadership, "is_certain", is_certain)
    patch(HeldLeadership, "keep", keep_longer)
    patch(LeaderGate, "lets_in", lets_in_who_only_looks)
    return TRANSACTIONS.but(faults=("store apart",), chaos_s=40.0, pause_s=0.2)


def a_deposed_leader_says_where_its_queues_ended(patch):
    lets_in = LeaderGate.lets_in

    def lets_in_who_only_looks(self, code):
        return code == RequestCode.GET_MAX_OFFSET or lets_in(self, code)

    patch(LeaderGate, "lets_in", lets_in_who_only_looks)
    return MIX.but(faults=("pause",))


def the_epoch_is_not_looked_at_either(patch):
    """With :func:`the_lease_is_not_looked_at`: an old leader changes the set of a newer epoch."""
    the_lease_is_not_looked_at(patch)
    no_member_proves_its_log(patch)

    async def change(self, change, act=None):
        seen = await self._coordinator.view()
        wanted = change(seen)
        if await self._coordinator.change(self._leadership, seen, wanted, act) is None:
            return False
        self.in_sync = frozenset(wanted.in_sync) - {self.member}
        return True

    def change_of_any_epoch(self, lease, seen, wanted, act, acknowledged):
        now = self.view()
        if now.leader is None or now.version != seen.version:
            return None
        self._change(now._replace(in_sync=wanted.in_sync, version=now.version + 1))
        return self._view

    patch(HeldLeadership, "_change", change)
    patch(SimulatedCoordination, "change", change_of_any_epoch)
    # It shows only if an old leader changes the set of a newer leader, which is rare.
    return BESIDE.but(chaos_s=60.0, sends=300, faults=("pause ahead", "store apart"))


@pytest.mark.parametrize(
    ("breaks", "checkers"),
    [
        (a_send_is_answered_before_the_followers_have_it, (acknowledged,)),
        (the_lease_is_not_looked_at, (one_leader,)),
        (a_member_leads_that_is_not_in_sync, (acknowledged,)),
        (the_set_shrinks_before_the_store_says_so, (acknowledged,)),
        (a_follower_joins_with_less_than_was_answered, (acknowledged,)),
        (nothing_is_cut_back, (identical_logs,)),
        (a_wiped_member_is_taken_for_the_old_one, (acknowledged,)),
        (readers_see_what_the_copies_lack, (reused,)),
        (a_new_leader_shows_what_its_copies_lack, (reused,)),
        (a_follower_that_is_gone_stays_in_the_set, (liveness,)),
        (a_new_leader_waits_for_the_one_that_is_gone, (leader_bound,)),
        (offsets_are_not_copied, (fresh_offsets,)),
        (offsets_are_never_saved, (fresh_offsets,)),
        (a_follower_forgets_decisions, (kept,)),
        (a_follower_shows_all_that_it_has, (follower_reads,)),
        (a_follower_forgets_half_messages, (kept,)),
        (a_decision_is_answered_before_the_followers_have_it, (kept,)),
        (too_few_copies_are_enough, (enough_copies,)),
        (a_follower_confirms_before_its_disk_has_it, (enough_copies,)),
        (a_leader_answers_before_its_disk_has_it, (enough_copies,)),
        (histories_are_compared_by_position, (identical_logs,)),
        (the_epoch_is_not_looked_at_either, (acknowledged,)),
        (a_follower_stays_with_the_leader_of_an_old_epoch, (leader_bound,)),
        (a_leader_renews_its_lease_alone, (one_leader,)),
        (a_store_without_its_data_is_believed, (one_leader,)),
        (topics_are_not_copied, (acknowledged,)),
        (a_deposed_leader_shows_what_it_knew_of_transactions, (linearizable,)),
        (a_deposed_leader_says_where_its_queues_ended, (linearizable,)),
    ],
    ids=names,
)
def test_each_break_in_the_replication_is_found(breaks, checkers, monkeypatch):
    mix = breaks(monkeypatch.setattr) or MIX

    see_it_found(run_copy_seed, mix, checkers)
