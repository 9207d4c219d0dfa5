"""Whole clients in trouble: members of groups and senders, on machines that fail, at brokers that
do.

As in ``test_seeds.py`` each seed is another and must keep every promise.
``TXMQ_CLIENT_SEEDS`` says how many there are, ``TXMQ_CLIENT_SEED`` runs a single one and shows what
happened in it.
"""

import os

import pytest

from tests.simulation.client_mix import CLIENT_FAULTS, ClientMix
from tests.simulation.seeds import IS_SOAK, Seeds
from tests.simulation.twin import Twin

COUNT = int(os.environ.get("TXMQ_CLIENT_SEEDS") or (500 if IS_SOAK else 16))
QUICK = 8
SEEDS = Seeds("clients", "test_client_seeds.py", "TXMQ_CLIENT_SEED", COUNT, QUICK)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def test_the_fixed_seeds_cover_every_kind_of_trouble():
    mixes = [ClientMix.with_clients(seed) for seed in range(16)]
    groups = [group for mix in mixes for group in mix.consuming]

    assert {fault for mix in mixes for fault in mix.faults} == {*CLIENT_FAULTS}
    assert {mix.is_bereft for mix in mixes} == {True, False}
    for dial in ("is_orderly", "stay_s", "fail_chance", "stop_s"):
        assert {bool(getattr(dials, dial)) for dials in groups} == {True, False}


@pytest.mark.parametrize("seed", SEEDS.params())
def test_every_promise_of_the_client_is_kept_under_faults(seed, twin):
    SEEDS.judge(seed, twin)


def test_the_quick_seeds_cover_every_kind_of_ending():
    seen = SEEDS.endings()

    assert all(seen.values()), seen
