"""Tells a soak run from a modest one.

``make test`` is modest: it has one case of every kind. ``make soak`` sets TXMQ_SOAK and adds the
tests and cases marked ``soak``, with higher counts; a number above 1 is the count itself.
"""

import os
import re
from collections import Counter, defaultdict

import pytest

SOAK = int(os.environ.get("TXMQ_SOAK") or 0)
IS_SOAK = bool(SOAK)
_KIND = re.compile("(sqlite|postgres|psycopg|alchemy|sessions|mysql)(-[a-z-]+)?")
_MATRIX = ("tests/integration/", "tests/unit/transaction/")
_FAMILIES = {"sqlite": "file", "mysql": "mysql"}
_SERVED = "served"
_SHARE = 4
"""Of so many tests of a file that also run on SQLite, one runs on a server as well."""


def count(modest, full):
    """How often a test repeats something: a few times, in full, or as often as TXMQ_SOAK says."""
    return modest if not SOAK else full if SOAK == 1 else SOAK


def only_in_soak(*cases):
    """These parameters of a test run in a soak alone."""
    return [
        # A named tuple is one value.
        pytest.param(*(case if type(case) is tuple else [case]), marks=pytest.mark.soak)
        for case in cases
    ]


def some_of(cases, chosen):
    """The chosen cases always run; the others run in a soak alone."""
    return [case if case in chosen else only_in_soak(case)[0] for case in cases]


def left_to_the_soak(items):
    """The tests that a modest run leaves out: those marked, and most kinds of databases.

    A test of databases that is run for many kinds of drivers and sessions runs for one on SQLite,
    and every fourth of a file runs for one on a server as well; the next test of the file takes
    the next kind of each, so that every kind has its turn. A test that SQLite cannot have runs for
    one kind. All other parameters are kept.
    """
    others = _other_kinds(items)
    return [item for item in items if item in others or item.get_closest_marker("soak")]


def _other_kinds(items):
    tests = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.nodeid.startswith(_MATRIX) and (kind := _kind_of(item)):
            family, rest = kind
            tests[item.path, item.originalname, rest][family].append(item)
    turns, left = Counter(), set()
    for (path, *_), families in tests.items():
        for family, kinds in families.items():
            turn = turns[path, family]
            turns[path, family] += 1
            if family == _SERVED and len(families) > 1:
                turn, rest = divmod(turn, _SHARE)
                if rest:
                    left.update(kinds)
                    continue
            kept = kinds[turn % len(kinds)]
            left.update(item for item in kinds if item is not kept)
    return left


def _kind_of(item):
    """The family of its kind of database, and what else it is called with; None without a kind."""
    family, rest = None, []
    for name, value in getattr(item, "callspec", _Plain).params.items():
        parts = value if isinstance(value, tuple) else (value,)
        kinds = [part for part in parts if isinstance(part, str) and _KIND.fullmatch(part)]
        if kinds and family is None:
            family = _FAMILIES.get(_KIND.fullmatch(kinds[0])[1], _SERVED)
            value = [part for part in parts if part != kinds[0]]
        rest.append((name, repr(value)))
    return None if family is None else (family, tuple(rest))


class _Plain:
    """A test without parameters."""

    params = {}
