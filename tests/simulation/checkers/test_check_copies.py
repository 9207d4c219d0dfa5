"""The checkers of broker sets pass a set that keeps its promises and find broken ones."""

import pytest

from tests.simulation.checkers import (
    enough_copies,
    follower_reads,
    fresh_offsets,
    identical_logs,
    leader_bound,
    one_leader,
    removals,
    reused,
    whole_copies,
    writable,
)
from tests.simulation.copy_history import (
    AllBack,
    Bound,
    CopiesCounted,
    CopyRead,
    Damaged,
    Disturbed,
    FollowerRead,
    LeaderAnswered,
    Leading,
    MemberBack,
    MemberLost,
    Mended,
    OffsetShown,
    SetChanged,
    WritesFail,
)
from tests.simulation.history import (
    Acknowledged,
    Audited,
    Calm,
    Committed,
    Committing,
    Copy,
    Pulled,
    Sending,
)
from txmq.message import Queue

QUEUE = Queue("T", "broker-a", 0)
FIRST = SetChanged(0.0, "m1.aa", 1, ("m1.aa", "m2.bb"))
OVER = SetChanged(6.0, "", 1, ("m1.aa", "m2.bb"))
SECOND = SetChanged(6.5, "m2.bb", 2, ("m1.aa", "m2.bb"))


def lost(at, how="kill", *, has_heir=True):
    return MemberLost(at, "m1", how, True, has_heir)


# One leader


def test_a_leader_may_answer_requests_it_got_while_it_led():
    answers = [LeaderAnswered(1.0, "m1", 0.9), OVER, LeaderAnswered(6.2, "m1", 5.9)]

    assert one_leader.broken([FIRST, *answers, SECOND, LeaderAnswered(7.0, "m2", 6.1)]) == []


@pytest.mark.parametrize("member", ["m1", "m3"])
def test_an_answer_of_a_member_that_does_not_lead_is_found(member):
    late = LeaderAnswered(8.0, member, 7.0)

    (complaint,) = one_leader.broken([FIRST, OVER, SECOND, late])

    assert complaint.startswith(f"{member} answered at 8.000000 what it was asked at 7.000000")


def test_an_epoch_with_two_leaders_is_found():
    assert one_leader.broken([FIRST, OVER, SetChanged(6.5, "m2.bb", 1, ())]) == [
        "m2.bb leads again in epoch 1"
    ]


# Logs


def test_equal_logs_pass():
    files = {"0.log": (10, 1)}

    assert identical_logs.broken([CopyRead(1.0, "m1", files), CopyRead(1.0, "m2", files)]) == []


@pytest.mark.parametrize("other", [{"0.log": (10, 2)}, {"0.log": (10, 1), "9.log": (1, 1)}, {}])
def test_a_log_that_differs_is_found(other):
    reads = [CopyRead(1.0, "m1", {"0.log": (10, 1)}), CopyRead(1.0, "m2", other)]

    assert len(identical_logs.broken(reads)) == 1


def test_logs_that_were_not_compared_are_found():
    assert identical_logs.broken([]) == ["the logs were not compared"]


# Offsets of queues


def seen(at, mark):
    return Pulled(at, "g", QUEUE, 4, 5, (Copy(4, 100, "id", mark, "", 0, b""),))


def test_an_offset_that_keeps_its_message_passes():
    assert reused.broken([Acknowledged(1.0, "s", 0, QUEUE, 4, ("id",)), seen(2.0, "s#0.0")]) == []


def test_an_offset_with_another_message_is_found():
    assert reused.broken([seen(1.0, "s#0.0"), seen(2.0, "t#0.0"), seen(2.0, "t#0.0")]) == [
        "T/0@4 was s#0.0 and is t#0.0 at 2.000000"
    ]


# A leader soon


def test_a_new_leader_within_the_bound_passes():
    answered = LeaderAnswered(9.9, "m2", 9.8)

    assert leader_bound.broken([Bound(0.0, 5.0), lost(5.0), answered, Calm(99.0)]) == []


@pytest.mark.parametrize("event", [lost(5.0), AllBack(5.0), Calm(5.0)])
def test_a_set_without_a_leader_for_too_long_is_found(event):
    early = LeaderAnswered(5.1, "m1", 4.9)

    (complaint,) = leader_bound.broken([Bound(0.0, 5.0), event, early, Calm(10.1)])

    assert complaint.startswith("no leader within 5 s after ")


@pytest.mark.parametrize(
    "events",
    [[lost(5.0, has_heir=False)], [lost(5.0), Disturbed(6.0, "slow disk", begins=True)]],
)
def test_failover_may_take_longer_without_an_heir_or_on_a_slow_disk(events):
    assert leader_bound.broken([Bound(0.0, 5.0), *events, Calm(20.0)]) == []


def test_a_slow_hand_over_is_found():
    events = [Calm(1.0), lost(5.0, "hand-over"), Leading(6.1, "m2", 2)]

    assert leader_bound.broken(events) == ["m1 took 1.100 s to hand over"]


# Committed offsets


def committed(at, offset):
    return [Committing(at - 0.1, "g", QUEUE, offset), Committed(at, "g", QUEUE, offset)]


def shown(offset):
    return OffsetShown(7.0, "g", QUEUE, offset)


def test_offsets_committed_in_the_last_second_may_be_lost():
    events = [FIRST, *committed(1.0, 3), *committed(3.5, 9), lost(4.0), OVER, SECOND]

    assert fresh_offsets.broken([*events, shown(3)]) == []


def test_a_lost_offset_committed_longer_ago_is_found():
    events = [FIRST, *committed(1.0, 3), *committed(2.0, 9), lost(4.0), OVER, SECOND]

    (complaint,) = fresh_offsets.broken([*events, shown(3)])

    assert "9 was committed long before" in complaint


def test_offsets_may_be_older_if_a_slow_disk_delayed_their_copies():
    slow = [Disturbed(2.5, "slow disk", begins=True), Disturbed(2.6, "slow disk", begins=False)]
    events = [FIRST, *committed(2.0, 9), *slow, lost(4.0), OVER, SECOND]

    assert fresh_offsets.broken([*events, shown(3)]) == []


def test_a_later_slow_disk_does_not_excuse_a_lost_older_offset():
    slow = [Disturbed(3.5, "slow disk", begins=True), Disturbed(4.0, "slow disk", begins=False)]
    events = [FIRST, *committed(2.0, 9), *slow, lost(4.0), OVER, SECOND]

    assert len(fresh_offsets.broken([*events, shown(3)])) == 1


def test_a_paused_leader_does_not_excuse_lost_offsets():
    paused = [lost(2.5, "pause"), MemberBack(2.6, "m1")]
    events = [FIRST, *committed(2.0, 9), *paused, lost(4.0), OVER, SECOND]

    assert len(fresh_offsets.broken([*events, shown(3)])) == 1


# What followers show


def test_a_message_shown_by_a_follower_and_lost_later_is_found():
    copy = Copy(4, 100, "id", "mark", "", 0, b"")
    read = FollowerRead(1.0, "m2", QUEUE, (copy,))
    kept, lost = (Audited(2.0, "broker-a", 1.5, {QUEUE: found}) for found in ((copy,), ()))

    assert follower_reads.broken([read, kept]) == []
    (complaint,) = follower_reads.broken([read, kept, lost])

    assert complaint.startswith("m2 showed mark at ")


# Copies of what was answered


def counted(copies, *lacking, least=2):
    return CopiesCounted(2.0, "s", copies, least, lacking)


SENT = Sending(1.0, "producer", "s", 0, (b"body",))


def test_an_answer_with_its_copies_passes():
    assert enough_copies.broken([SENT, counted(2), counted(3)]) == []


def test_an_answer_with_too_few_copies_is_found():
    assert enough_copies.broken([lost(0.5, "wipe"), SENT, counted(1)]) == [
        "s was answered at 2.000000 with 1 copies, and 2 are needed"
    ]


def test_a_member_in_sync_without_a_copy_is_found():
    assert enough_copies.broken([SENT, counted(2, "m3")]) == [
        "s was answered at 2.000000, and m3 in sync had no copy"
    ]


@pytest.mark.parametrize("how", ["wipe", "lost tail", "older state"])
def test_a_disk_harmed_after_the_request_may_have_had_a_copy(how):
    assert enough_copies.broken([SENT, lost(1.5, how), counted(1, "m1")]) == []
    assert len(enough_copies.broken([SENT, lost(1.5, how), counted(1, "m3")])) == 1
    assert len(enough_copies.broken([lost(0.5, how), SENT, counted(1, "m1")])) == 2


# Damage


def test_a_damaged_copy_that_is_repaired_soon_or_out_of_sync_passes():
    damaged, late = Damaged(1.0, "m2"), Calm(99.0)
    alone = SetChanged(2.0, "m1.aa", 1, ("m1.aa",))

    assert whole_copies.broken([FIRST, damaged, Mended(1.5, "m2"), late]) == []
    assert whole_copies.broken([FIRST, damaged, alone, late]) == []


@pytest.mark.parametrize("member", ["m1", "m2"])
def test_a_damaged_copy_that_stays_in_sync_is_found(member):
    (complaint,) = whole_copies.broken([FIRST, Damaged(1.0, member), Calm(17.0)])

    assert complaint == f"{member} is in sync at 17.000000, and damaged since 1.000000"


def test_a_slow_disk_allows_damage_to_be_noticed_later():
    slow = Disturbed(2.0, "slow disk", begins=True)

    assert whole_copies.broken([FIRST, Damaged(1.0, "m2"), slow, Calm(19.0)]) == []


# A leader that can write nothing


def test_a_set_that_takes_sends_soon_after_its_leader_cannot_write_passes():
    sent = Sending(3.0, "pulse", "s", 0, (b"body",))
    acknowledged = Acknowledged(4.0, "s", 0, QUEUE, 4, ("id",))
    fails = WritesFail(2.0, "m1", has_heir=True)

    assert writable.broken([Bound(0.0, 5.0), fails, sent, acknowledged, lost(9.0)]) == []


def test_a_set_that_takes_no_sends_after_its_leader_cannot_write_is_found():
    sent = Sending(1.0, "pulse", "s", 0, (b"body",))
    acknowledged = Acknowledged(4.0, "s", 0, QUEUE, 4, ("id",))
    fails = WritesFail(2.0, "m1", has_heir=True)

    (complaint,) = writable.broken([Bound(0.0, 5.0), sent, fails, acknowledged, lost(9.0)])

    assert complaint.startswith("no send succeeds within 5 s after the writes of m1 ")


def test_without_an_heir_sends_may_be_refused_for_longer():
    fails = WritesFail(2.0, "m1", has_heir=False)

    assert writable.broken([Bound(0.0, 5.0), fails, lost(9.0)]) == []


# Removed members


def test_a_removed_member_that_is_in_sync_or_leads_is_found():
    removed = SetChanged(1.0, "m1.aa", 1, ("m1.aa",), ("m2",))
    back = SetChanged(3.0, "m1.aa", 1, ("m1.aa", "m2.bb"))
    counts = SetChanged(2.0, "m1.aa", 1, ("m1.aa", "m2.bb"), ("m2",))
    leads = SetChanged(2.0, "m2.bb", 2, ("m1.aa",), ("m2",))

    assert removals.broken([FIRST, removed, back]) == []
    assert removals.broken([counts]) == ["m2, which was removed, is in sync at 2.000000"]
    assert removals.broken([leads]) == ["m2, which was removed, leads at 2.000000"]


def test_an_epoch_reused_after_the_store_lost_its_data_is_found():
    emptied = SetChanged(3.0, "", 0, ())
    still = LeaderAnswered(3.1, "m1", 3.0)

    assert one_leader.broken([FIRST, emptied, still, SetChanged(6.5, "m2.bb", 2, ())]) == []
    assert one_leader.broken([FIRST, emptied, SetChanged(6.5, "m1.aa", 1, ())]) == [
        "m1.aa leads again in epoch 1"
    ]
