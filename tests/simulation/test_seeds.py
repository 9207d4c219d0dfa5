"""Whole clusters in trouble: each seed is another, runs twice, and must keep every promise.

The seeds are always the same, so that a build says the same twice; ``TXMQ_SOAK`` runs thousands,
half of them fresh. ``TXMQ_SEEDS`` says how many there are, ``TXMQ_SEED`` runs a single one and
shows what happened in it.
"""

import os
import random
import subprocess

import pytest

from tests.simulation.mix import OTHER_FAULTS, POWER_FAULTS, Mix
from tests.simulation.runs import TAIL, run_seed
from tests.simulation.twin import CHECKOUT, Twin

ALONE = os.environ.get("TXMQ_SEED")
COUNT = int(os.environ.get("TXMQ_SEEDS") or (5000 if "TXMQ_SOAK" in os.environ else 200))
FIXED = range(COUNT // 2 if "TXMQ_SOAK" in os.environ else COUNT)
QUICK = 10
"""So many of the fixed seeds run with the fast tests, too."""


def seeds():
    chance = random.SystemRandom()
    fresh = [chance.randrange(1_000_000, 2**32) for _ in range(COUNT - len(FIXED))]
    for seed in (*FIXED, *fresh):
        yield pytest.param(seed, marks=() if seed < QUICK else pytest.mark.slow)


@pytest.fixture(scope="module")
def twin():
    with Twin() as running:
        yield running


def commit():
    asked = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(asked, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def repeat(seed):
    return f"commit {commit()}, TXMQ_SEED={seed} python -m pytest -s tests/simulation/test_seeds.py"


def difference(seed):
    first, second = (run_seed(seed, keep_trace=True).trace for _ in range(2))
    return first.difference(second) or "only in another process: something follows hashes"


def test_every_kind_of_fault_happens_to_some_of_the_fixed_seeds():
    drawn = {fault for seed in range(100) for fault in Mix.of(seed).faults}

    assert drawn == {*POWER_FAULTS, *OTHER_FAULTS}


@pytest.mark.parametrize("seed", [int(ALONE)] if ALONE else list(seeds()))
def test_every_promise_is_kept_and_the_seed_goes_one_way(seed, twin):
    twin.begin(seed)
    try:
        run = run_seed(seed, keep_trace=ALONE is not None)
    except Exception as problem:
        twin.digest()
        raise AssertionError(f"{repeat(seed)}\n{problem}") from problem

    if twin.digest() != run.trace.digest():
        raise AssertionError(f"{repeat(seed)}\ntwo runs went two ways: {difference(seed)}")
    if ALONE:
        print(f"\n{Mix.of(seed)}", run.outcome, *run.trace.events[-TAIL:], sep="\n")
