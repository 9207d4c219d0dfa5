"""Whole clusters in trouble that are told of transactions, by producers that are in trouble, too.

As in ``test_seeds.py`` each seed is another and must keep every promise.
``TXMQ_TRANSACTION_SEEDS`` says how many there are, ``TXMQ_TRANSACTION_SEED`` runs a single one and
shows what happened in it.
"""

import os

import pytest

from tests.simulation.mix import MOODS, OTHER_FAULTS, POWER_FAULTS, Mix
from tests.simulation.seeds import IS_SOAK, Seeds
from tests.simulation.twin import Twin

COUNT = int(os.environ.get("TXMQ_TRANSACTION_SEEDS") or (500 if IS_SOAK else 16))
QUICK = 8
ALONE = "TXMQ_TRANSACTION_SEED"
SEEDS = Seeds("transactions", "test_transaction_seeds.py", ALONE, COUNT, QUICK)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def test_the_fixed_seeds_cover_every_kind_of_trouble():
    mixes = [Mix.with_transactions(seed) for seed in range(24)]
    dials = [mix.transactions for mix in mixes]

    assert {fault for mix in mixes for fault in mix.faults} == {*POWER_FAULTS, *OTHER_FAULTS}
    assert {mood for dial in dials if dial.mood_chance for mood in dial.moods} == {*MOODS}
    for chance in ("die_chance", "doze_chance", "lie_chance", "operator_s", "repeats"):
        assert {bool(getattr(dial, chance)) for dial in dials} == {True, False}


@pytest.mark.parametrize("seed", SEEDS.params())
def test_every_promise_about_transactions_is_kept_under_faults(seed, twin):
    SEEDS.judge(seed, twin)


def test_the_quick_seeds_cover_every_kind_of_ending():
    seen = SEEDS.endings()

    assert all(seen.values()), seen
