"""The history of a broker: rates, latencies and lag, in rings that do not grow."""

import pytest

from txmq.limits import HISTORY_SERIES_MAX
from txmq_broker.core import history
from txmq_broker.core.history import (
    COARSE_KEPT,
    FINE_KEPT,
    LAG_KEPT,
    BrokerHistory,
    BrokerTotals,
    LagHistory,
    RateHistory,
    quantile_ms,
)
from txmq_broker.core.statistics import BOUNDS_S, durations

BUCKETS = (0,) * (len(BOUNDS_S) + 1)


def totals(at_s, messages_in=0, messages_out=0, sends=BUCKETS, transactions=0):
    return BrokerTotals(at_s * 1000, messages_in, messages_out, sends, transactions, 0)


def test_rows_are_rates_since_the_last_row():
    figures = BrokerHistory()
    sends = durations()
    figures.note(totals(0, 100, 50))
    sends.note(0.0004, times=99)
    sends.note(0.3)
    figures.note(totals(10, 200, 60, tuple(sends.counts), transactions=7))

    ((at, row),) = zip(*figures.fine.after(0, 10)[:2], strict=True)
    assert (at, row[0], row[1], row[4]) == (10_000, 10.0, 1.0, 7)
    assert 0.25 < row[2] < 0.5
    assert 0.25 < row[3] <= 0.5, "99 of 100 were quick"
    figures.note(totals(20, 200, 60, tuple(sends.counts)))
    assert figures.fine.rows[-1][2:4] == (None, None), "nothing was sent"


def test_a_clock_that_is_set_back_makes_no_row():
    figures = BrokerHistory()
    figures.note(totals(100, 10))
    figures.note(totals(50, 20))
    assert not figures.fine.rows
    figures.note(totals(60, 30))
    assert figures.fine.rows[-1][0] == 1.0


def test_the_rings_keep_an_hour_and_a_day():
    figures = BrokerHistory()
    minutes = [figures.note(totals(10 * number, number)) for number in range(6 * COARSE_KEPT + 99)]
    assert sum(minutes) == COARSE_KEPT + 17
    assert (len(figures.fine.rows), len(figures.coarse.rows)) == (FINE_KEPT, COARSE_KEPT)
    assert figures.ring(10) is figures.fine
    assert figures.ring(60) is figures.coarse


def test_rows_come_in_pages():
    figures = BrokerHistory()
    for number in range(11):
        figures.note(totals(10 * number, number))
    times, _, has_more = figures.fine.after(0, 4)
    assert (times, has_more) == ([10_000, 20_000, 30_000, 40_000], True)
    times, _, has_more = figures.fine.after(times[-1] + 1, 99)
    assert (times[0], times[-1], has_more) == (50_000, 100_000, False)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, 0.05),
        ({3: 1, 4: 1}, 0.5, 1.0),
        ({len(BOUNDS_S): 1}, 0.5, 1000 * BOUNDS_S[-1]),
    ],
)
def test_quantiles_come_from_buckets(counts, share, expected):
    buckets = [counts.get(number, 0) for number in range(len(BOUNDS_S) + 1)]
    assert quantile_ms(buckets, share) == (None if expected is None else pytest.approx(expected))


def lag_rounds(groups):
    """The lag of some groups, each a list of what it had in each round; ``None`` for nothing."""
    lags = LagHistory()
    for number in range(max(map(len, groups.values()))):
        lags.begin(60_000 * number)
        for group, rounds in groups.items():
            if number < len(rounds) and rounds[number] is not None:
                lags.note(group, rounds[number])
        lags.end()
    return lags


def test_a_group_has_its_lag_in_all_and_by_queue():
    lags = lag_rounds({"g": [{"T:0": 1, "T:1": 2}, {"T:0": 0, "T:1": 5}]})
    columns, times, rows = lags.rows("g", 0, 10)
    assert columns == ["lag", "T:0", "T:1"]
    assert (times, rows) == ([0, 60_000], [(3, 1, 2), (5, 0, 5)])
    assert lags.rows("g", 1, 10)[1] == [60_000]
    assert lags.rows("other", 0, 10)[2] == [(None,), (None,)]


def test_many_queues_are_only_summed():
    many = {f"T:{number}": 1 for number in range(history.QUEUES_SHOWN + 1)}
    assert lag_rounds({"g": [many]}).rows("g", 0, 10)[0::2] == (["lag"], [(9,)])
    both = lag_rounds({"g": [{"T:0": 1, "T:1": 1}, many, many]})
    assert both.rows("g", 0, 10)[2] == [(2,), (9,), (9,)]


def test_only_three_hours_are_kept_and_a_late_group_begins_late():
    lags = lag_rounds(
        {"old": [{"T:0": 1}] * (LAG_KEPT + 5), "new": [None] * 5 + [{"T:0": 9}] * 999}
    )
    _, times, rows = lags.rows("old", 0, 999)
    assert len(times) == len(rows) == LAG_KEPT
    late = lag_rounds({"old": [{"T:0": 1}] * 3, "new": [None, {"T:0": 9}, {"T:0": 2**40}]})
    assert late.rows("new", 0, 9)[2] == [(None,), (9,), (2**32 - 2,)]


def test_a_deleted_group_is_forgotten():
    lags = lag_rounds({"kept": [{"T:0": 1}] * 3, "gone": [{"T:0": 5, "T:1": 1}]})
    assert lags.rows("gone", 0, 9)[0::2] == (["lag"], [(None,)] * 3)
    assert len(lags._groups) == 1
    assert len(lags._queues) == 0


def test_topics_have_rates_and_one_created_again_counts_from_nothing():
    rates = RateHistory()
    for number, total in enumerate([60, 180, 6]):
        rates.begin(60_000 * number)
        rates.note("T", total)
        rates.end()
    columns, _, rows = rates.rows("T", 0, 9)
    assert (columns, rows) == (["messages_in_per_second"], [(1.0,), (2.0,), (0.1,)])


def test_the_number_of_series_is_bounded(monkeypatch):
    assert HISTORY_SERIES_MAX == 10_000
    monkeypatch.setattr(history, "HISTORY_SERIES_MAX", 2)
    monkeypatch.setattr(history, "HISTORY_QUEUES_MAX", 3)
    rates = RateHistory()
    rates.begin(0)
    for name in "abc":
        rates.note(name, 60)
    rates.end()
    assert [rates.rows(name, 0, 1)[2] for name in "abc"] == [[(1.0,)], [(1.0,)], [(None,)]]
    lags = lag_rounds({name: [{"T:0": 1, "T:1": 1}] for name in "abc"})
    assert [lags.rows(name, 0, 1)[0] for name in "abc"] == [
        ["lag", "T:0", "T:1"],
        ["lag", "T:0"],
        ["lag"],
    ]
