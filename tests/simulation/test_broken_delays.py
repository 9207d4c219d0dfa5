"""Brokers broken on purpose are found by delayed messages and crashes.

Every one of these brokers is made from the real one by taking a single thought away.
"""

from types import SimpleNamespace

import pytest

from tests.simulation.test_simulated_crash_points import lives_and_dies
from txmq.testing import Loss
from txmq_broker.core.schedule import Schedule
from txmq_broker.services.flusher import Flusher
from txmq_broker.store.delay_store import DelayStore
from txmq_broker.store.due_messages import NOWHERE


def what_left_is_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        for line in self._lines.values():
            line.saved, line.first = NOWHERE, 0
        recovered(self)

    patch(DelayStore, "recovered", forgetful)


def copies_are_not_looked_at(patch):
    patch(DelayStore, "found", lambda self, record: self.line(128))


def who_waits_is_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        for line in self._lines.values():
            line.first = line.queue.max_offset
        recovered(self)

    patch(DelayStore, "recovered", forgetful)


def recalls_are_forgotten_at_a_restart(patch):
    recovered = DelayStore.recovered

    def forgetful(self):
        recovered(self)
        self._gone.clear()

    patch(DelayStore, "recovered", forgetful)


def an_answer_does_not_wait_for_the_disk(patch):
    def answer(self, connection, requests, answers):
        connection.send(*answers)

    patch(Flusher, "answer", answer)


def a_copy_is_written_twice(patch):
    send = Schedule.send

    def twice(self, due, stored_ms):
        delays = self._delays
        self._delays = SimpleNamespace(read=delays.read, leave=lambda due: None)
        send(self, due, stored_ms)
        self._delays = delays
        return send(self, due, stored_ms)

    patch(Schedule, "send", twice)


BROKEN = [
    (what_left_is_forgotten_at_a_restart, "deliver: after answer a held pull"),
    (copies_are_not_looked_at, "deliver: after answer a held pull"),
    (who_waits_is_forgotten_at_a_restart, "wait: after answer"),
    (recalls_are_forgotten_at_a_restart, "recall: after answer"),
    (an_answer_does_not_wait_for_the_disk, "wait: before write the span"),
    (an_answer_does_not_wait_for_the_disk, "recall: before write the span"),
    (a_copy_is_written_twice, "deliver: after answer a held pull"),
]


def run_all(label):
    for times in (1, 2, 3, 4):
        lives_and_dies(label, times, Loss.EVERYTHING, times)


@pytest.mark.parametrize("label", sorted({label for _, label in BROKEN}))
def test_the_unbroken_broker_passes(label):
    run_all(label)


@pytest.mark.parametrize(
    ("breaks", "label"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_break_in_the_broker_is_found(breaks, label, monkeypatch):
    breaks(monkeypatch.setattr)

    with pytest.raises(AssertionError, match="Later|a recall was forgotten"):
        run_all(label)
