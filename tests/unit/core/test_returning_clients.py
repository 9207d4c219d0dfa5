"""When a sync waits for clients that were just answered."""

import pytest

from txmq_broker.core.returning_clients import ReturningClients

SYNC_S = 0.001
TRIAL = 80
"""The syncs of one way, until it is judged."""
EIGHT = frozenset(range(8))


class Sequence:
    """Consecutive syncs, after which all answered clients return or none does."""

    def __init__(self):
        self.returning = ReturningClients()
        self.now = 0.0

    def sync(self, answered, arrived=frozenset(), lasts=SYNC_S):
        self.now += lasts
        return self.returning.expect(SYNC_S, answered, arrived, self.now)

    def all_return(self):
        assert not self.returning.goes_on(EIGHT, self.now)

    def try_both(self, plain, awaited):
        """Run plain syncs, and syncs that wait, that answer these numbers of clients."""
        for _ in range(TRIAL):
            assert not self.returning.is_awaiting
            self.sync(range(plain))
        for _ in range(TRIAL):
            self.all_return()
            self.sync(range(awaited))


@pytest.mark.parametrize(("awaited", "is_kept"), [(8, True), (4, False), (3, False)])
def test_waiting_is_kept_only_if_it_answers_more_clients(awaited, is_kept):
    syncs = Sequence()
    syncs.try_both(4, awaited)
    syncs.all_return()
    for _ in range(500):
        assert syncs.sync(EIGHT) is is_kept
        syncs.all_return()


def test_waiting_and_plain_syncs_are_compared_again_later():
    syncs = Sequence()
    syncs.try_both(4, 8)
    syncs.all_return()
    waits = []
    for _ in range(2400):
        waits.append(syncs.sync(range(4)))
        syncs.all_return()
    assert any(waits[: 1024 + 2 * TRIAL])
    assert not any(waits[1500:2400])


@pytest.mark.parametrize("stalls", [1, TRIAL])
def test_a_comparison_that_was_disturbed_changes_nothing(stalls):
    """Either one sync of a trial took very long, or all of a single trial did."""
    syncs = Sequence()
    syncs.try_both(4, 8)
    for _ in range(1024):
        syncs.all_return()
        syncs.sync(EIGHT)
    for _ in range(TRIAL):
        assert not syncs.returning.is_awaiting
        syncs.sync(range(4))
    for number in range(TRIAL):
        syncs.all_return()
        syncs.sync(EIGHT, lasts=SYNC_S * (1000 if number >= TRIAL - stalls else 1))
    waits = [True]
    for _ in range(1500):
        syncs.all_return()
        waits.append(syncs.sync(EIGHT if waits[-1] else range(4)))
    assert sum(waits) > 1500 - 2 * TRIAL


def waiting():
    syncs = Sequence()
    syncs.try_both(4, 8)
    return syncs


def test_one_client_alone_never_waits():
    syncs = waiting()
    syncs.all_return()
    assert not syncs.sync([3])
    assert not syncs.sync([3], [3])
    assert not syncs.sync([], [3])
    assert syncs.sync([3], [4])


def test_a_single_client_does_not_change_the_choice_made_for_several():
    syncs = waiting()
    for _ in range(5000):
        syncs.all_return()
        assert not syncs.sync([3])
    assert syncs.sync(EIGHT)


def test_a_comparison_interrupted_by_a_single_client_begins_again():
    syncs = Sequence()
    for _ in range(TRIAL // 2):
        syncs.sync(range(4))
    for _ in range(500):
        assert not syncs.sync([3])
    syncs.try_both(4, 8)
    syncs.all_return()
    assert syncs.sync(EIGHT)


def test_a_wait_ends_when_the_last_client_returns_or_after_a_timeout():
    syncs = waiting()
    assert syncs.returning.goes_on(EIGHT - {5}, syncs.now + SYNC_S / 2)
    assert not syncs.returning.goes_on({5}, syncs.now + SYNC_S / 2)
    assert syncs.sync(EIGHT)
    assert syncs.returning.goes_on(EIGHT - {5}, syncs.now + 1.4 * SYNC_S)
    assert not syncs.returning.goes_on(EIGHT - {5}, syncs.now + 1.6 * SYNC_S)
    assert not syncs.returning.is_awaiting


def test_a_wait_ends_even_if_the_clock_stands_still():
    syncs = waiting()
    turns = 0
    while syncs.returning.goes_on({1}, syncs.now):
        turns += 1
        assert turns < 1000
    assert turns > 10
