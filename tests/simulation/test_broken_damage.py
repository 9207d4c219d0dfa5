"""The checkers find a set that does not withstand damage, each by what it lacks.

As in ``test_broken_copies.py`` each is made from the real one by taking a single thought away.
"""

import pytest

from tests.simulation import copy_stage
from tests.simulation.broken import names, run_all, see_it_found
from tests.simulation.checkers import (
    acknowledged,
    identical_logs,
    leader_bound,
    removals,
    whole_copies,
    writable,
)
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_runs import run_copy_seed
from tests.simulation.mix import kib
from txmq.testing.coordination import SimulatedCoordinator
from txmq_broker.handlers.copies import CopyHandlers
from txmq_broker.processes import member
from txmq_broker.processes.member import SetMember
from txmq_broker.replication.log_copy import LogCopy
from txmq_broker.replication.log_repair import LogRepair
from txmq_broker.replication.set_acts import StepDown
from txmq_broker.services.log_verifier import LogVerifier
from txmq_broker.store.start import Start

MIX = CopyMix(
    segment=kib(16),
    queues=1,
    producers=1,
    lanes=3,
    sends=400,
    think_s=0.3,
    body_max=200,
    batch_chance=0.0,
    oneway_chance=0.0,
    hold_s=0.3,
    chaos_s=20.0,
    pause_s=0.7,
    audit_chance=0.5,
    recovery_chance=0.0,
    sync_s=(0.0, 0.01),
    lag_max=1.0,
)
"""Much is sent all the time, and nothing but the damage goes wrong."""

AT_ONCE = MIX.but(faults=("all at once",), pause_s=0.4)
FULL_STOPS = MIX.but(faults=("writes fail", "no room"))
FLIPPED = MIX.but(faults=("bits flipped",))
REMOVAL = MIX.but(faults=("removal",))
LAST = MIX.but(faults=("last copy older",))


@pytest.fixture(autouse=True)
def _no_long_wait(monkeypatch):
    """What a broken set never repairs need not be waited for as long as elsewhere."""
    monkeypatch.setattr(copy_stage, "JOIN_S", 10.0)


def test_the_unbroken_set_withstands_each_kind_of_damage():
    kinds = ("lost tail", "older state", "bits flipped", "leaders together")
    for mix in (AT_ONCE, FULL_STOPS, REMOVAL, LAST, MIX.but(faults=kinds)):
        run_all(run_copy_seed, mix)


async def nothing_is_done(*_):
    pass


def closed_files_are_not_verified(patch):
    patch(LogVerifier, "_round", nothing_is_done)
    return FLIPPED


def damage_is_not_repaired(patch):
    patch(LogRepair, "_repair", nothing_is_done)
    return FLIPPED


def a_damaged_follower_counts_as_in_sync(patch):
    patch(LogRepair, "_repair", nothing_is_done)
    patch(LogCopy, "is_out", property(lambda self: bool(self.doubt)))
    return FLIPPED


def a_damaged_leader_goes_on(patch):
    patch(StepDown, "note", lambda self, cause, reason: None)
    return FLIPPED


def no_file_shows_that_the_log_was_cut(patch):
    """Neither the high-water mark nor what a start compares the log with."""
    doubt = SetMember._doubt

    async def blind(self, proof):
        return "" if proof.doubt else await doubt(self, proof)

    patch(SetMember, "_doubt", blind)
    patch(Start, "_missing", lambda self, evidence, end: None)
    return AT_ONCE


def the_store_is_not_asked_what_was_acknowledged(patch):
    async def nothing(self):
        return None

    patch(SimulatedCoordinator, "acknowledged", nothing)
    return AT_ONCE


def a_started_member_does_not_ask_the_others(patch):
    async def has_most(self, view, own):
        return True

    patch(SetMember, "_has_most", has_most)
    return AT_ONCE


def the_last_copy_leads_with_less(patch):
    async def doubt(self, proof):
        return ""

    patch(SetMember, "_doubt", doubt)
    return LAST


def a_store_that_was_down_is_asked_again_much_later(patch):
    patch(member, "_RETRY_S", 20.0)
    return MIX.but(faults=("leaders together",))


def a_leader_that_cannot_write_goes_on(patch):
    patch(StepDown, "note", lambda self, cause, reason: None)
    return MIX.but(faults=("writes fail",))


def a_leader_without_room_goes_on(patch):
    patch(StepDown, "note", lambda self, cause, reason: None)
    return MIX.but(faults=("no room",))


def a_removed_member_goes_on_following(patch):
    patch(CopyHandlers, "_refusal", lambda self, member: "")
    return REMOVAL


@pytest.mark.parametrize(
    ("breaks", "checkers"),
    [
        (closed_files_are_not_verified, (whole_copies, identical_logs)),
        (damage_is_not_repaired, (identical_logs,)),
        (a_damaged_follower_counts_as_in_sync, (whole_copies,)),
        (a_damaged_leader_goes_on, (whole_copies,)),
        (no_file_shows_that_the_log_was_cut, (acknowledged,)),
        (the_store_is_not_asked_what_was_acknowledged, (acknowledged,)),
        (a_started_member_does_not_ask_the_others, (acknowledged,)),
        (the_last_copy_leads_with_less, (acknowledged,)),
        (a_store_that_was_down_is_asked_again_much_later, (leader_bound,)),
        (a_leader_that_cannot_write_goes_on, (writable,)),
        (a_leader_without_room_goes_on, (writable,)),
        (a_removed_member_goes_on_following, (removals,)),
    ],
    ids=names,
)
def test_each_break_in_damage_handling_is_found(breaks, checkers, monkeypatch):
    mix = breaks(monkeypatch.setattr)

    see_it_found(run_copy_seed, mix, checkers)
