"""Whole clusters in trouble: each seed is another and must keep every promise. The first ones, and
in a soak all, run twice and must go the same way.

The seeds are always the same, so that a build says the same twice; ``TXMQ_SOAK`` runs thousands,
half of them fresh. ``TXMQ_SEEDS`` says how many there are, ``TXMQ_SEED`` runs a single one and
shows what happened in it.
"""

import os

import pytest

from tests.simulation.mix import OTHER_FAULTS, POWER_FAULTS, Mix
from tests.simulation.seeds import IS_SOAK, Seeds
from tests.simulation.twin import Twin

COUNT = int(os.environ.get("TXMQ_SEEDS") or (5000 if IS_SOAK else 16))
SEEDS = Seeds("messages", "test_seeds.py", "TXMQ_SEED", COUNT, quick=10)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def test_the_fixed_seeds_cover_every_kind_of_fault():
    drawn = {fault for seed in range(24) for fault in Mix.of(seed).faults}

    assert drawn == {*POWER_FAULTS, *OTHER_FAULTS}


@pytest.mark.parametrize("seed", SEEDS.params())
def test_every_promise_is_kept_and_the_seed_is_repeatable(seed, twin):
    SEEDS.judge(seed, twin)
