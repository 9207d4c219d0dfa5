from txmq_broker.core.statistics import BOUNDS_S, durations


def test_a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed():
    histogram = durations()

    histogram.note(0.0)
    histogram.note(BOUNDS_S[0])
    histogram.note(0.003, times=5)
    histogram.note(99.0, times=2)

    assert histogram.counts[0] == 2
    assert histogram.counts[BOUNDS_S.index(0.005)] == 5
    assert histogram.counts[-1] == 2
    assert sum(histogram.counts) == 9
    assert histogram.sum_s == BOUNDS_S[0] + 0.003 * 5 + 99.0 * 2
