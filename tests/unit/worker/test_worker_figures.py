"""The figures of handlers, their sum over processes, and their text for Prometheus."""

import msgspec

from txmq.message import DEAD_LETTER, Later
from txmq.testing.deliveries import received
from txmq.worker.figures import HandlerFigures, ProcessReport, WorkerFigures
from txmq.worker.pages import WorkerState, exposition


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


def report(*verdicts, seconds=0.02):
    clock = Clock()
    figures = HandlerFigures(clock)
    for verdict, has_failed in verdicts:
        after = figures.before("g", [received("T", b""), received("T", b"")])
        clock.now += seconds
        after(verdict, has_failed)
    return figures


def encoded(figures, **more):
    return msgspec.json.encode(ProcessReport(figures.series, figures.schedules, **more))


def test_each_message_is_counted_once_by_its_outcome():
    figures = report(
        (None, False),
        (Later(first=1), False),
        (Later(reason="raised"), True),
        (Later(DEAD_LETTER, first=1), True),
    )
    (series,) = figures.series

    assert (series.handled, series.retried, series.dead) == (2 + 1 + 0 + 1, 1 + 2, 1)
    assert series.failed == 2 + 1
    assert series.in_hand == 0
    assert sum(series.calls) == 4
    assert series.calls[3] == 4
    assert round(series.seconds, 6) == 0.08


def test_counts_of_ended_processes_are_kept_and_their_held_messages_dropped():
    figures = WorkerFigures()
    gone = report((None, False))
    gone.before("g", [received("T", b"")])
    gone.sent("nightly", has_failed=False)
    figures.keep(encoded(gone, held={"g": 9}, lag={"g": 3}))
    figures.keep(b"")
    total = figures.total(
        [encoded(report((None, False)), held={"g": 1}), encoded(report(), held={"g": 2})]
    )

    (series,) = total.series
    assert (series.handled, series.in_hand, sum(series.calls)) == (4, 0, 2)
    assert total.held == {"g": 3}
    assert total.lag == {}
    assert total.schedules["nightly"].sent == 1


def test_group_and_topic_names_cannot_forge_a_metric():
    figures = HandlerFigures(Clock())
    figures.of('g"} 1\nforged 1', "T\\")
    text = exposition(ProcessReport(figures.series), WorkerState(2, 1, 0))

    assert "\nforged" not in text
    assert "txmq_worker_processes_ready 1.0\n" in text
    assert r'handled_total{group="g\"} 1\nforged 1",topic="T\\"} 0.0' in text
