"""The kinds of runs there are: how a seed of each draws what it is about, and how it is run."""

from __future__ import annotations

from tests.simulation.client_mix import ClientMix
from tests.simulation.client_runs import run_client_seed
from tests.simulation.copy_mix import CopyMix
from tests.simulation.copy_runs import run_copy_seed
from tests.simulation.delivery_mix import DeliveryMix
from tests.simulation.delivery_runs import run_delivery_seed
from tests.simulation.mix import Mix
from tests.simulation.runs import MIXES, Run, run_seed

__all__ = ["mix_of", "run_kind"]

CLIENTS, DELIVERIES, COPIES = "clients", "deliveries", "copies"


def mix_of(kind: str, seed: int) -> Mix:
    """What a seed of one kind is about."""
    if kind == CLIENTS:
        return ClientMix.with_clients(seed)
    if kind == DELIVERIES:
        return DeliveryMix.with_deliveries(seed)
    if kind == COPIES:
        return CopyMix.with_copies(seed)
    return MIXES[kind](seed)


def run_kind(kind: str, seed: int, *, keep_trace: bool = False) -> Run:
    """Run a seed of one kind.

    Raises:
        AssertionError: A promise was broken, or the run failed as a simulation.
    """
    if kind == CLIENTS:
        return run_client_seed(seed, keep_trace=keep_trace)
    if kind == DELIVERIES:
        return run_delivery_seed(seed, keep_trace=keep_trace)
    if kind == COPIES:
        return run_copy_seed(seed, keep_trace=keep_trace)
    return run_seed(seed, MIXES[kind](seed), keep_trace=keep_trace)
