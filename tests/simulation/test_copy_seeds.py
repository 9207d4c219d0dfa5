"""Broker sets in trouble: members are lost one at a time, and beside that life is hard.

As in ``test_seeds.py`` each seed is another and must keep every promise.
``TXMQ_COPY_SEEDS`` says how many there are, ``TXMQ_COPY_SEED`` runs a single one and shows what
happened in it.
"""

import os

import pytest

from tests.simulation.copy_mix import COPY_DAMAGES, COPY_HARDSHIPS, COPY_LOSSES, CopyMix
from tests.simulation.seeds import IS_SOAK, Seeds
from tests.simulation.twin import Twin

COUNT = int(os.environ.get("TXMQ_COPY_SEEDS") or (500 if IS_SOAK else 40))
QUICK = 8
SEEDS = Seeds("copies", "test_copy_seeds.py", "TXMQ_COPY_SEED", COUNT, QUICK, twins=QUICK)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def test_the_fixed_seeds_cover_every_kind_of_trouble():
    mixes = [CopyMix.with_copies(seed) for seed in range(40)]

    kinds = {*COPY_LOSSES, *COPY_DAMAGES, *COPY_HARDSHIPS}
    assert {fault for mix in mixes for fault in mix.faults} == kinds
    assert {mix.mode for mix in mixes} == {"", "sync", "async"}
    assert {mix.min_in_sync for mix in mixes} == {1, 2}
    assert {mix.transactions is None for mix in mixes} == {True, False}


@pytest.mark.parametrize("seed", SEEDS.params())
def test_every_promise_of_a_broker_set_is_kept_under_faults(seed, twin):
    SEEDS.judge(seed, twin)


def test_the_quick_seeds_cover_every_kind_of_ending():
    seen = SEEDS.endings()

    assert all(seen.values()), seen
