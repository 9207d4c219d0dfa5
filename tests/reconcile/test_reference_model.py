"""Days of random histories have the results of a short model in plain Python."""

from collections import defaultdict
from datetime import date, timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reconcile.days import RULES
from tests.reconcile.frames import GROUPS, TOLERANCE, collected, ledgers_of, left_by, reconcile
from tests.reconcile.histories import OFFSETS, History
from tests.reconcile.reference import Rule, Told, classes

FIRST = date(2026, 11, 19)
SECOND = FIRST + timedelta(days=1)
RULE = Rule(RULES.day.grace_ms, GROUPS, TOLERANCE)
FAR = 4_102_444_800_000
TRANSFERS = 1_500
FIELDS = (
    "class",
    "debits",
    "debited",
    "returns",
    "returned",
    "credits",
    "credited",
    "messages",
    "ordered",
    "amount",
)


def told_by(history):
    by_message = defaultdict(list)
    for failure in history.failures:
        by_message[failure.id].append(failure)
    return Told(history.entries, history.messages, by_message, OFFSETS)


def extract(history, window):
    """What an extract of the day holds."""
    start, end = window

    def is_inside(ms):
        return ms is not None and start <= ms < end

    entries = [entry for entry in history.entries if is_inside(entry.recorded_ms)]
    messages = [m for m in history.messages if is_inside(m.stored_ms) or is_inside(m.decided_ms)]
    return ledgers_of(entries, messages, history.failures, OFFSETS)


def rows_of(outcome):
    """The class and sums by key; of matched transfers, the class alone."""
    matches = collected(outcome.tables["matches"])
    found = {row.key: (row["class"],) for row in matches}
    assert len(found) == len(matches)
    for row in collected(outcome.tables["items"]):
        assert row.key not in found
        found[row.key] = tuple(row[name] for name in FIELDS)
    return found


def see(history, found, expected):
    """Compare, and report the smallest differences."""
    rows = defaultdict(list)
    for row in (*history.entries, *history.messages, *history.failures):
        rows[row.key].append(row)
    wrong = [key for key in rows if not agrees(found.get(key), expected.get(key))]
    if wrong:
        smallest = sorted(wrong, key=lambda item: len(rows[item]))[:3]
        told = "\n".join(
            "\n".join([*map(str, rows[key]), f"found    {found.get(key)}"])
            + f"\nexpected {expected.get(key) and tuple(expected[key])}"
            for key in smallest
        )
        pytest.fail(f"{len(wrong)} differ; the smallest are\n{told}")
    assert found.keys() == expected.keys()


def agrees(found, expected):
    """Whether both are missing, or equal in everything that was found."""
    if found is None or expected is None:
        return found is expected
    return found == tuple(expected)[: len(found)]


KNOWN = (
    400,  # A key that was agreed on the first day begins again on the second.
    251,  # The same, and the first of its messages was a dead letter.
    687,  # A message of an earlier day is decided after the later one.
    1,
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_days_of_known_seeds_match_the_reference():
    see_two_days(KNOWN)


@pytest.mark.soak
@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_two_days_of_any_seed_match_the_reference(seed):
    see_two_days([seed])


class Histories:
    """The histories of some seeds combined, each with its own keys."""

    def __init__(self, seeds, windows):
        self.entries, self.messages, self.failures = [], [], []
        for seed in seeds:
            history = History(seed, windows, RULES.day.grace_ms, TRANSFERS)
            for name, rows in vars(self).items():
                rows += [row._replace(key=f"{row.key}-{seed}") for row in getattr(history, name)]


def see_two_days(seeds):
    windows = [RULES.day.window(day) for day in (FIRST, SECOND)]
    history = Histories(seeds, windows)
    told = told_by(history)

    (_, end), later = windows
    extracts = [extract(history, window) for window in windows]
    one = reconcile(extracts[0], {}, RULES, FIRST, end)
    expected = reference(told, windows[0], frozenset())
    see(history, rows_of(one), expected)

    known = {key for key, unit in expected.items() if not is_agreed(unit)}
    unseen = {key for key, unit in expected.items() if unit.class_ == "prior-period"}
    both = extracts[1] | left_by(one, extracts[0])
    two = reconcile(both, {}, RULES, SECOND, later.end_ms)
    expected = reference(told, later, known, unseen)
    see(history, rows_of(two), expected)
    agreed = {key for key in known if key in expected and is_agreed(expected[key])}
    assert {row.key for row in collected(two.tables["closed"])} == agreed


def reference(told, window, known, unseen=frozenset()):
    """The units that the window touches or that were open before, as known when it ended."""
    first = RULES.day.window(FIRST).start_ms
    start, end = window

    def is_heard(message, since):
        decided = FAR if message.decided_ms is None else message.decided_ms
        return since <= message.stored_ms < end or since <= decided < end

    entries = [e for e in told.entries if start <= e.recorded_ms < end and e.role != "clearing"]
    ordered = {m.key for m in told.messages if is_heard(m, start)}
    touched = {e.key for e in entries} | ordered | known
    # The day alone judges transfers that begin on it, and those that were only rolled back; all
    # others may have begun before.
    moved_before = {
        e.key for e in told.entries if first <= e.recorded_ms < start and e.role != "clearing"
    }
    begun = {e.key for e in entries if e.kind == "debit"} & ordered - known - moved_before
    heard = [m for m in told.messages if is_heard(m, start)]
    moved = {m.key for m in heard if as_known(m, end) != "rolled_back"} | {e.key for e in entries}
    begun |= ordered - moved - known

    def since(key):
        return start if key in begun else first

    inside = told._replace(
        entries=[e for e in told.entries if since(e.key) <= e.recorded_ms < end],
        messages=[m for m in told.messages if is_heard(m, since(m.key))],
    )
    found = classes(inside, RULE, start, end, FAR, known, unseen)
    return {key: unit for key, unit in found.items() if key in touched}


def as_known(message, end):
    is_decided = message.decided_ms is None or message.decided_ms < end
    return message.state if is_decided else "prepared"


def is_agreed(unit):
    return unit.class_ in ("matched", "returned", "rolled-back")
