import pytest

from txmq.client.routes import FAILED_S, FaultTable
from txmq.limits import FAULTS_MAX

NOW = 1_000.0


def noted(*entries, limit=FAULTS_MAX):
    table = FaultTable(limit)
    for broker, latency_s in entries:
        table.note(broker, latency_s, NOW)
    return table


def test_an_unknown_broker_is_available():
    assert FaultTable().is_available("a", NOW)


@pytest.mark.parametrize(
    ("latency_s", "pause_s"),
    [
        (0.0, 0), (0.049, 0), (0.05, 0), (0.1, 0), (0.549, 0), (0.55, 30), (0.999, 30), (1.0, 60),
        (1.999, 60), (2.0, 120), (3.0, 180), (14.999, 180), (15.0, 600), (100.0, 600),
    ],
)  # fmt: skip
def test_a_slower_answer_means_a_longer_pause(latency_s, pause_s):
    table = noted(("a", latency_s))

    assert table.is_available("a", NOW + pause_s)
    assert pause_s == 0 or not table.is_available("a", NOW + pause_s - 0.001)


def test_a_quick_failure_counts_as_an_answer_after_30_seconds():
    table = FaultTable()

    table.note("a", 0.001, NOW, failed=True)

    assert FAILED_S == 30.0
    assert not table.is_available("a", NOW + 599.9)
    assert table.is_available("a", NOW + 600)


def test_only_the_last_answer_counts():
    table = noted(("a", 20.0), ("a", 0.01))

    assert table.is_available("a", NOW)
    assert len(table) == 1


def test_a_removed_broker_is_available():
    table = noted(("a", 20.0))

    table.remove("a")
    table.remove("never noted")

    assert table.is_available("a", NOW)


def test_an_empty_table_has_no_least_bad_broker():
    assert FaultTable().least_bad(NOW) is None


def test_a_single_broker_is_the_least_bad():
    table = noted(("a", 20.0))

    assert [table.least_bad(NOW) for _ in range(3)] == ["a"] * 3


def test_least_bad_alternates_among_the_faster_half():
    table = noted(("a", 9.0), ("b", 4.0), ("c", 5.0), ("d", 20.0), ("e", 7.0))

    assert [table.least_bad(NOW) for _ in range(4)] == ["b", "c", "b", "c"]


def test_an_available_broker_is_better_than_a_faster_one():
    table = noted(("slow", 1.5), ("fast", 0.6))
    table.note("fast", 0.6, NOW + 55)

    assert table.least_bad(NOW + 59) == "fast"
    assert table.least_bad(NOW + 60) == "slow"


def test_of_equally_slow_brokers_the_one_available_sooner_is_better():
    table = FaultTable()
    table.note("later", 1.0, NOW + 1)
    table.note("sooner", 1.0, NOW)

    assert table.least_bad(NOW + 2) == "sooner"


def test_the_table_is_bounded_and_keeps_the_slowest_brokers():
    table = noted(("a", 20.0), ("b", 0.01), ("c", 2.0), ("d", 3.0), limit=2)

    assert len(table) == 2
    assert [table.is_available(broker, NOW) for broker in "abcd"] == [False, True, True, False]
