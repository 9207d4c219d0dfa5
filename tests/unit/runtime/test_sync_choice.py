"""The choice between syncs by the kernel and syncs by a thread."""

import itertools

import pytest

from txmq.runtime.sync_choice import SyncChoice

FAST_S, SLOW_S, STALL_S = 0.0002, 0.00025, 0.004


class SyncTimes:
    """Syncs one after another, each as long as its way takes."""

    def __init__(self):
        self.now = 0.0
        self.choice = SyncChoice(lambda: self.now)
        self.by_thread = 0

    def sync(self, kernel_s, thread_s):
        uses_thread = self.choice.begin()
        self.now += thread_s if uses_thread else kernel_s
        self.choice.end()
        self.by_thread += uses_thread

    def sync_many(self, count, kernel, thread):
        """Run syncs whose durations repeat; return the part that the thread ran."""
        before = self.by_thread
        for kernel_s, thread_s in itertools.islice(
            zip(itertools.cycle(kernel), itertools.cycle(thread), strict=False), count
        ):
            self.sync(kernel_s, thread_s)
        return (self.by_thread - before) / count


STALLING = [FAST_S] * 7 + [STALL_S]
"""The kernel's worker waits for a busy core now and then."""


def test_syncs_move_to_the_thread_only_while_kernel_syncs_stall():
    syncs = SyncTimes()
    assert syncs.sync_many(5000, [FAST_S], [SLOW_S]) == 0
    assert syncs.sync_many(10_000, STALLING, [SLOW_S]) > 0.9
    assert syncs.sync_many(2000, [FAST_S], [SLOW_S]) < 1
    assert syncs.sync_many(5000, [FAST_S], [SLOW_S]) == 0


@pytest.mark.parametrize(
    ("kernel", "thread"),
    [
        pytest.param([STALL_S], [STALL_S], id="a disk that is slow for all"),
        pytest.param(STALLING, STALLING, id="a disk that stalls for all"),
        pytest.param(STALLING, [STALL_S], id="a thread that is slower"),
    ],
)
def test_the_kernel_keeps_syncing_unless_it_stalls_and_the_thread_does_not(kernel, thread):
    assert SyncTimes().sync_many(40_000, kernel, thread) < 0.1


def test_the_thread_takes_over_soon_after_all_kernel_syncs_become_slow():
    syncs = SyncTimes()
    syncs.sync_many(1000, [FAST_S], [SLOW_S])
    assert syncs.sync_many(1000, [STALL_S], [SLOW_S]) > 0.8


def test_the_thread_is_tried_if_all_kernel_syncs_were_always_slow():
    assert SyncTimes().sync_many(100_000, [STALL_S], [SLOW_S]) > 0.5


def test_a_trial_of_the_stalling_way_ends_after_its_first_stalls():
    syncs = SyncTimes()
    syncs.sync_many(1000, STALLING, [SLOW_S])
    before = syncs.now
    syncs.sync_many(20_000, STALLING, [SLOW_S])
    assert syncs.now - before < 1.05 * 20_000 * SLOW_S


def test_the_way_of_syncing_does_not_change_while_a_sync_runs():
    syncs = SyncTimes()
    syncs.choice.begin()
    assert syncs.sync_many(1000, STALLING, [FAST_S]) == 0
    syncs.choice.end()
    assert syncs.sync_many(1000, STALLING, [FAST_S]) > 0.5
