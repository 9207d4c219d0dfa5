import pytest

from txmq.client.routes import FAILED_S, FaultTable
from txmq.limits import FAULTS_MAX

NOW = 1_000.0


def noted(*entries, limit=FAULTS_MAX):
    table = FaultTable(limit)
    for broker, latency_s in entries:
        table.note(broker, latency_s, NOW)
    return table


def test_a_broker_nothing_is_known_of_is_available():
    assert FaultTable().is_available("a", NOW)


@pytest.mark.parametrize(
    ("latency_s", "pause_s"),
    [
        (0.0, 0),
        (0.049, 0),
        (0.05, 0),
        (0.1, 0),
        (0.549, 0),
        (0.55, 30),
        (0.999, 30),
        (1.0, 60),
        (1.999, 60),
        (2.0, 120),
        (3.0, 180),
        (14.999, 180),
        (15.0, 600),
        (100.0, 600),
    ],
)
def test_the_later_the_answer_the_longer_the_pause(latency_s, pause_s):
    table = noted(("a", latency_s))

    assert table.is_available("a", NOW + pause_s)
    assert pause_s == 0 or not table.is_available("a", NOW + pause_s - 0.001)


def test_a_failure_counts_as_half_a_minute_however_soon_it_came():
    table = FaultTable()

    table.note("a", 0.001, NOW, failed=True)

    assert FAILED_S == 30.0
    assert not table.is_available("a", NOW + 599.9)
    assert table.is_available("a", NOW + 600)


def test_the_last_answer_is_what_counts():
    table = noted(("a", 20.0), ("a", 0.01))

    assert table.is_available("a", NOW)
    assert len(table) == 1


def test_a_broker_that_is_removed_is_available():
    table = noted(("a", 20.0))

    table.remove("a")
    table.remove("never noted")

    assert table.is_available("a", NOW)


def test_of_no_brokers_none_is_least_bad():
    assert FaultTable().least_bad(NOW) is None


def test_a_single_broker_is_the_least_bad():
    table = noted(("a", 20.0))

    assert [table.least_bad(NOW) for _ in range(3)] == ["a"] * 3


def test_the_better_half_is_picked_in_turn():
    table = noted(("a", 9.0), ("b", 4.0), ("c", 5.0), ("d", 20.0), ("e", 7.0))

    assert [table.least_bad(NOW) for _ in range(4)] == ["b", "c", "b", "c"]


def test_an_available_broker_is_better_than_a_faster_one():
    table = noted(("slow", 1.5), ("fast", 0.6))
    table.note("fast", 0.6, NOW + 55)

    assert table.least_bad(NOW + 59) == "fast"
    assert table.least_bad(NOW + 60) == "slow"


def test_of_brokers_that_took_as_long_the_one_that_is_back_sooner_is_better():
    table = FaultTable()
    table.note("later", 1.0, NOW + 1)
    table.note("sooner", 1.0, NOW)

    assert table.least_bad(NOW + 2) == "sooner"


def test_no_more_than_so_many_are_remembered_and_the_worst_are_kept():
    table = noted(("a", 20.0), ("b", 0.01), ("c", 2.0), ("d", 3.0), limit=2)

    assert len(table) == 2
    assert [table.is_available(each, NOW) for each in "abcd"] == [False, True, True, False]
