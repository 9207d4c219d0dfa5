"""Messages that come later, come again, or die, while brokers and members are in trouble.

As in ``test_seeds.py`` each seed is another and must keep every promise.
``TXMQ_DELIVERY_SEEDS`` says how many there are, ``TXMQ_DELIVERY_SEED`` runs a single one and shows
what happened in it.
"""

import os

import pytest

from tests.simulation.delivery_mix import DELIVERY_FAULTS, PLANS, WISHES, DeliveryMix
from tests.simulation.seeds import IS_SOAK, Seeds
from tests.simulation.twin import Twin

COUNT = int(os.environ.get("TXMQ_DELIVERY_SEEDS") or (500 if IS_SOAK else 16))
QUICK = 8
SEEDS = Seeds("deliveries", "test_delivery_seeds.py", "TXMQ_DELIVERY_SEED", COUNT, QUICK)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def test_the_fixed_seeds_cover_every_kind_of_trouble():
    mixes = [DeliveryMix.with_deliveries(seed) for seed in range(24)]
    groups = [group for mix in mixes for group in mix.consuming]

    assert {fault for mix in mixes for fault in mix.faults} == {*DELIVERY_FAULTS}
    assert {plan for mix in mixes for plan in mix.plans} == {*PLANS}
    assert {wish for mix in mixes for wish in mix.wishes} == {*WISHES}
    assert {group.is_orderly for group in groups} == {True, False}
    assert {group.stay_s > 0 for group in groups} == {True, False}


@pytest.mark.parametrize("seed", SEEDS.params())
def test_every_promise_of_delivery_is_kept_under_faults(seed, twin):
    SEEDS.judge(seed, twin)


def test_the_quick_seeds_cover_every_kind_of_ending():
    seen = SEEDS.endings()

    assert all(seen.values()), seen
