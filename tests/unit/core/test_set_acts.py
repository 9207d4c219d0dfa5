"""Which member an operator means, and which acts on a set are refused."""

import pytest

from txmq.errors import IllegalOperation, InvalidParameter
from txmq.runtime.coordinator import SetAct, View
from txmq_broker.replication.set_acts import HAND_OVER, REJOIN, REMOVE, KnownSet, changed_by

M1, M2, M3 = "m1.00000001", "m2.00000002", "m3.00000003"
M3_WIPED = "m3.0000000a"
GONE = SetAct(REMOVE, "m4", "Li Na", "its disk is slow", 5)


def known(in_sync=(M2, M3), members=(M1, M2, M3), min_in_sync=1):
    return KnownSet(M1, frozenset(members), frozenset(in_sync), {"m4": GONE}, min_in_sync)


def member_for(act, name, found=None, *, allow_refused_sends=False):
    return (found or known()).member_for(act, name, allow_refused_sends=allow_refused_sends)


@pytest.mark.parametrize("name", ["m3", M3])
def test_a_member_can_be_given_by_its_short_or_its_full_name(name):
    assert member_for(HAND_OVER, name) == M3
    assert member_for(REMOVE, name) == "m3"


def test_an_ambiguous_name_means_the_directory_in_sync():
    members = (M1, M2, M3, M3_WIPED)
    assert member_for(HAND_OVER, "m3", known(members=members)) == M3
    with pytest.raises(InvalidParameter, match=f"m3 is ambiguous; name one of {M3}, {M3_WIPED}"):
        member_for(HAND_OVER, "m3", known((M2,), members))


REFUSED = {
    (HAND_OVER, "m33"): f"'m33' is not a member; members: {M1}, {M2}, {M3}; did you mean m3\\?",
    (HAND_OVER, "other"): f"'other' is not a member; members: {M1}, {M2}, {M3}$",
    (HAND_OVER, "m1"): f"{M1} leads already",
    (
        HAND_OVER,
        "m4",
    ): "m4 was removed from the set by Li Na: its disk is slow; to let it follow again",
    (REMOVE, "m1"): f"{M1} leads; have another member lead first",
    (REMOVE, "m4"): "m4 was removed from the set by Li Na",
    (REJOIN, "m3"): "m3 was not removed; removed: m4",
    ("burn", "m3"): "'burn' is not an act on a set",
}


@pytest.mark.parametrize(("act", "name"), REFUSED)
def test_each_refused_act_states_its_reason(act, name):
    with pytest.raises((IllegalOperation, InvalidParameter), match=REFUSED[act, name]):
        member_for(act, name)


def test_a_member_that_is_not_in_sync_cannot_lead():
    with pytest.raises(IllegalOperation, match=f"{M3} is not in sync.*in sync: {M2}$"):
        member_for(HAND_OVER, "m3", known((M2,)))


def test_a_removal_that_leaves_too_few_copies_needs_consent():
    strict = known((M2,), min_in_sync=2)
    assert member_for(REMOVE, "m3", strict) == "m3"
    with pytest.raises(IllegalOperation, match="1 of 2 copies would be in sync"):
        member_for(REMOVE, "m2", strict)
    assert member_for(REMOVE, "m2", strict, allow_refused_sends=True) == "m2"


def test_each_act_changes_the_state():
    seen = View(None, 3, (M1, M2, M3), 9, members=(M1, M2, M3), removed=(GONE,))
    removal = SetAct(REMOVE, "m3", "Li Na", "r", 6)
    after = changed_by(removal, seen)
    assert (after.in_sync, after.members, after.removed) == ((M1, M2), (M1, M2), (GONE, removal))
    rejoined = changed_by(removal._replace(act=REJOIN), after)
    assert (rejoined.in_sync, rejoined.removed) == ((M1, M2), (GONE,))
    chosen = SetAct(HAND_OVER, M2, "Li Na", "r", 6)
    assert changed_by(chosen, seen).hand_over == chosen
    with pytest.raises(IllegalOperation, match="is no longer in sync"):
        changed_by(chosen, seen._replace(in_sync=(M1, M3)))
