"""The small tables: offsets, locks and admission."""

import pytest

from txmq.errors import ServiceUnavailable
from txmq.protocol.bodies import ConsumerOffsets, MessageQueue
from txmq_broker.core.admission import Admission
from txmq_broker.core.locks import EXPIRY_S, Locks
from txmq_broker.core.offsets import Offsets

Q0, Q1, Q2 = (MessageQueue("b", number, "T") for number in range(3))


# Offsets

ALL = ("T", "%RETRY%g")


@pytest.fixture
def offsets():
    made = Offsets()
    made.put("g", "T", 0, 5)
    made.put("g", "T", 1, 6)
    made.put("g", "%RETRY%g", 0, 1)
    made.put("h", "T", 0, 2)
    return made


def test_the_last_committed_offset_counts_even_if_it_went_back(offsets):
    offsets.put("g", "T", 0, 3)
    offsets.queues("g", "T")[0] = 99  # Only a copy changes.

    assert offsets.get("g", "T", 0) == 3


def test_an_offset_that_was_never_committed_is_none(offsets):
    assert offsets.get("g", "T", 9) is None
    assert offsets.get("g", "U", 0) is None
    assert offsets.get("x", "T", 0) is None


def test_offsets_are_found_by_group_and_by_topic(offsets):
    assert offsets.topics() == ["T", "%RETRY%g"]
    assert offsets.topics_of("g") == ["T", "%RETRY%g"]
    assert offsets.groups_of("T") == ["g", "h"]
    assert offsets.queues("g", "T") == {0: 5, 1: 6}
    assert offsets.queues("x", "T") == {}
    assert dict(offsets.all_of("g")) == {"T": {0: 5, 1: 6}, "%RETRY%g": {0: 1}}


def test_offsets_are_saved_in_the_format_of_rocketmq(offsets):
    saved = offsets.saved()

    assert saved.offset_table["T@g"] == {0: 5, 1: 6}
    again = Offsets()
    again.load(ConsumerOffsets.read(saved.write()))
    assert again.saved() == saved
    assert not again.unsaved


@pytest.mark.parametrize(
    ("forget", "name", "left"),
    [
        (Offsets.forget_group, "g", {("h", "T"): {0: 2}}),
        (Offsets.forget_topic, "T", {("g", "%RETRY%g"): {0: 1}}),
    ],
    ids=["group", "topic"],
)
def test_forgetting_a_group_or_a_topic_removes_all_its_offsets(offsets, forget, name, left):
    offsets.unsaved = False
    forget(offsets, "x")
    assert not offsets.unsaved
    forget(offsets, name)

    assert offsets.unsaved
    kept = {(group, topic): offsets.queues(group, topic) for group in "gh" for topic in ALL}
    assert {place: queues for place, queues in kept.items() if queues} == left
    assert {group for group in "gh" if offsets.topics_of(group)} == {group for group, _ in left}


# Locks


@pytest.fixture
def locks():
    made = Locks()
    assert made.lock("g", "a", [Q0, Q1], 0.0) == [Q0, Q1]
    return made


def test_a_queue_is_locked_by_one_client_at_a_time(locks):
    assert locks.lock("g", "b", [Q0, Q2], 1.0) == [Q2]
    assert locks.lock("g", "a", [Q0, Q2], 1.0) == [Q0]


def test_groups_do_not_lock_each_other_out(locks):
    assert locks.lock("h", "b", [Q0], 1.0) == [Q0]


def test_a_lock_that_is_not_renewed_can_be_taken_after_a_minute(locks):
    assert locks.lock("g", "b", [Q0], EXPIRY_S) == []
    assert locks.lock("g", "b", [Q0], EXPIRY_S + 0.1) == [Q0]


def test_a_renewed_lock_does_not_expire(locks):
    locks.lock("g", "a", [Q0], 40.0)

    assert locks.lock("g", "b", [Q0, Q1], EXPIRY_S + 1) == [Q1]


def test_only_the_holder_of_a_lock_can_release_it(locks):
    locks.unlock("g", "b", [Q0])
    assert locks.lock("g", "b", [Q0], 1.0) == []
    locks.unlock("g", "a", [Q0, Q2])
    assert locks.lock("g", "b", [Q0, Q1], 1.0) == [Q0]


def test_unlocking_a_queue_that_is_not_locked_is_harmless(locks):
    locks.unlock("x", "a", [Q0])
    locks.unlock("g", "a", [Q0, Q1])
    locks.unlock("g", "a", [Q0, Q1])

    assert locks.lock("g", "b", [Q0, Q1], 1.0) == [Q0, Q1]


def test_unregistering_releases_all_locks_of_the_client_in_that_group(locks):
    locks.lock("g", "b", [Q2], 1.0)
    locks.lock("h", "a", [Q0], 1.0)
    locks.release("g", "a")
    locks.release("x", "a")

    assert locks.lock("g", "c", [Q0, Q1, Q2], 2.0) == [Q0, Q1]
    assert locks.lock("h", "c", [Q0], 2.0) == []


def test_locks_that_are_not_renewed_are_removed(locks):
    locks.lock("g", "b", [Q2], 30.0)
    locks.lock("h", "a", [Q0], 0.0)
    locks.expire(EXPIRY_S + 1)

    assert locks._locks == {"g": {Q2: ("b", 30.0)}}


# Admission


def test_sends_are_accepted_while_there_is_no_cause_to_refuse():
    assert not Admission().reasons


def test_causes_of_refusal_are_listed_until_they_are_cleared():
    admission = Admission()
    assert admission.set_cause("disk", "the disk is full")
    assert not admission.set_cause("disk", "the disk is fuller")
    assert admission.set_cause("stopping", "the broker stops")

    assert list(admission.reasons.values()) == ["the disk is fuller", "the broker stops"]
    assert admission.clear_cause("disk")
    assert not admission.clear_cause("disk")
    assert list(admission.reasons.values()) == ["the broker stops"]
    assert admission.clear_cause("stopping")
    assert not admission.reasons


def test_the_number_of_skipped_ranges_is_limited_and_repeats_do_not_count(monkeypatch):
    monkeypatch.setattr("txmq_broker.core.offsets.SKIPS_MAX", 2)
    offsets = Offsets()
    offsets.skip_damaged("g", "T", 0, 5, 5)
    offsets.skip_damaged("g", "T", 1, 8, 9)

    with pytest.raises(ServiceUnavailable, match="2 ranges of skipped messages"):
        offsets.skip_damaged("h", "T", 0, 5, 5)
    offsets.skip_damaged("g", "T", 1, 8, 9)
    assert offsets.skips("g", "T", 1, 9)
    assert not offsets.skips("h", "T", 0, 5)
