"""Tells a soak run from a modest one.

``make test`` is modest: it has one case of every kind. ``make soak`` sets TXMQ_SOAK and adds the
tests and cases marked ``soak``, with higher counts; a number above 1 is the count itself.
"""

import os

import pytest

SOAK = int(os.environ.get("TXMQ_SOAK") or 0)
IS_SOAK = bool(SOAK)


def count(modest, full):
    """How often a test repeats something: a few times, in full, or as often as TXMQ_SOAK says."""
    return modest if not SOAK else full if SOAK == 1 else SOAK


def only_in_soak(*cases):
    """These parameters of a test run in a soak alone."""
    return [pytest.param(case, marks=pytest.mark.soak) for case in cases]


def first_of(cases, modest):
    """The first cases always run; the others run in a soak alone."""
    cases = list(cases)
    return [*cases[:modest], *only_in_soak(*cases[modest:])]


def some_of(cases, chosen):
    """The chosen cases always run; the others run in a soak alone."""
    return [case if case in chosen else only_in_soak(case)[0] for case in cases]
