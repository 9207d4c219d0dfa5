import pytest

from tests.unit.core.core_log import NOW_MS, Log, topic
from txmq_broker.core.statistics import DAY_S, HOUR_S, Meter, MidnightTotals, Rate, Statistics


def counted(steps, *, until, each=10.0):
    """A meter that is sampled every ``each`` seconds and counts ``steps`` before every sample."""
    meter = Meter()
    now = 0.0
    while now <= until:
        meter.total += steps(now)
        meter.sample(now)
        now += each
    return meter


def test_a_rate_is_the_count_divided_by_the_seconds():
    assert Rate(50, 10.0).per_second == 5.0
    assert Rate(50, 0.0).per_second == 0.0


@pytest.mark.parametrize("window", [10.0, 60.0, 600.0, HOUR_S, DAY_S])
def test_an_even_flow_has_the_same_rate_in_every_window(window):
    meter = counted(lambda _: 100, until=2 * DAY_S, each=50.0)

    assert meter.rate(window, 2 * DAY_S).per_second == pytest.approx(2.0)


@pytest.mark.parametrize(("window", "total"), [(10.0, 20), (60.0, 70), (600.0, 610)])
def test_a_sum_reaches_back_to_the_last_sample_before_its_window(window, total):
    meter = counted(lambda _: 10, until=1000.0)

    found = meter.rate(window, 1005.0)
    assert (found.sum, found.seconds) == (total - 10, window + 5.0)


def test_counts_before_the_first_sample_are_not_lost():
    meter = Meter()
    meter.total = 30
    assert meter.rate(60.0, 5.0) == Rate(30, 60.0)
    meter.sample(5.0)

    assert meter.rate(60.0, 5.0) == Rate(30, 10.0)


def test_the_sums_of_an_idle_counter_drop_to_zero_window_by_window():
    meter = counted(lambda now: 10 if now < 100 else 0, until=1000.0)

    assert meter.rate(60.0, 1000.0).sum == 0
    assert meter.rate(600.0, 650.0) == Rate(40, 600.0)
    assert meter.rate(HOUR_S, 1000.0).sum == 100


def test_a_counter_active_after_a_long_rest_shows_its_current_rate():
    meter = counted(lambda now: 10 if now in (0.0, 1000.0) else 0, until=1000.0)

    found = meter.rate(10.0, 1005.0)
    assert found.sum == 10
    assert found.seconds == 15.0


def test_an_idle_counter_stores_no_more_samples():
    meter = counted(lambda now: 1 if now == 0 else 0, until=10_000.0)

    assert len(meter._minutes._samples) == 2


def test_rates_are_printed_in_three_windows():
    meter = counted(lambda _: 10, until=1000.0)

    assert meter.rates_text(1000.0) == "1.0000 1.0000 1.0000"


def test_samples_too_close_together_are_not_kept():
    meter = counted(lambda _: 10, until=100.0, each=1.0)

    assert len(meter._minutes._samples) < 15
    assert meter.rate(60.0, 100.0).per_second == pytest.approx(10.0)


def test_morning_totals_move_on_with_the_calendar():
    mornings = MidnightTotals()
    for day, total in [(1, 0), (1, 50), (2, 60), (2, 80), (3, 100)]:
        mornings.note(day, total)

    assert (mornings.yesterday, mornings.today) == (60, 100)


def test_a_counter_is_found_only_after_it_was_created():
    statistics = Statistics()
    assert statistics.find("A", "k") is None
    meter = statistics.meter("A", "k")

    assert statistics.meter("A", "k") is meter
    assert statistics.find("A", "k") is meter


def test_all_counters_are_sampled_together():
    statistics = Statistics()
    statistics.meter("BROKER_PUT_NUMS", "").total = 5
    statistics.sample(0.0, day=1)
    statistics.meter("BROKER_PUT_NUMS", "").total = 7
    statistics.meter("BROKER_GET_NUMS", "").total = 3
    statistics.sample(10.0, day=2)

    assert statistics.put_midnights.today == 7
    assert statistics.get_midnights.today == 3
    assert statistics.meter("BROKER_PUT_NUMS", "").rate(10.0, 10.0).sum == 2


def test_broker_totals_keep_the_counts_of_deleted_topics():
    topics = Log().topics()
    statistics = Statistics()
    for name, count in (("T", 3), ("U", 4)):
        made = topics.put(topic(name), NOW_MS)
        made.put_count, made.put_bytes = count, 10 * count

    statistics.count_puts(topics)
    topics.remove("T", NOW_MS)
    statistics.forget_topic("T")
    statistics.count_puts(topics)

    assert statistics.find("TOPIC_PUT_NUMS", "T") is None
    assert statistics.meter("TOPIC_PUT_SIZE", "U").total == 40
    assert statistics.meter("BROKER_PUT_NUMS", "").total == 7
    assert statistics.meter("BROKER_PUT_SIZE", "").total == 70


def test_a_topic_without_messages_has_no_counter():
    topics = Log().topics()
    statistics = Statistics()
    statistics.count_puts(topics)

    assert statistics.find("TOPIC_PUT_NUMS", "TBW102") is None


@pytest.mark.parametrize(
    ("forget", "gone"),
    [
        (lambda statistics: statistics.forget_topic("U"), "U@T"),
        (lambda statistics: statistics.forget_group("T"), "U@T"),
        (lambda statistics: statistics.forget_topic("T"), "T T@g"),
        (lambda statistics: statistics.forget_group("g"), "T@g"),
    ],
)
def test_forgetting_a_topic_or_group_removes_only_its_own_counters(forget, gone):
    statistics = Statistics()
    for key in ("T@g", "U@T", "T"):
        statistics.meter("N", key)
    forget(statistics)

    left = {key for key in ("T@g", "U@T", "T") if statistics.find("N", key)}
    assert left == {"T@g", "U@T", "T"} - set(gone.split())
