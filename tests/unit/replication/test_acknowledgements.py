"""Answers that wait for followers, while the in-sync set changes."""

from types import SimpleNamespace

import pytest

from txmq_broker.config import ReplicationSettings
from txmq_broker.core.admission import COPIES, Admission
from txmq_broker.replication.acknowledgements import Acknowledgements

SPAN = SimpleNamespace(end=20)


class Leader:
    """The answers of a leader without a coordinator, and the spans that it has released."""

    def __init__(self, min_in_sync):
        settings = ReplicationSettings(mode="sync", min_in_sync=min_in_sync)
        log, checkpoints = SimpleNamespace(end=10), SimpleNamespace(published=10)
        self.admission = Admission()
        self.released = []
        self.answers = Acknowledgements(
            SimpleNamespace(log=log, checkpoints=checkpoints),
            SimpleNamespace(monotonic=lambda: 0.0),
            settings,
            self.admission,
            lambda span, tickets: self.released.append(span),
            None,
        )


@pytest.mark.parametrize("others", [(), ("m3",)], ids=["alone", "with one of two"])
def test_an_answer_waits_for_min_in_sync_copies_after_a_follower_left(others):
    leader = Leader(2 + len(others))
    for member in ("m2", *others):
        leader.answers.note_copied(member, 10)

    leader.answers.hold(SPAN, {})
    leader.answers.leave("m2")
    for member in others:
        leader.answers.note_copied(member, 20)

    assert leader.released == []
    assert COPIES in leader.admission.reasons
    leader.answers.note_copied("m2", 20)
    assert leader.released == [SPAN]
    assert COPIES not in leader.admission.reasons


def test_with_min_in_sync_1_held_answers_go_out_when_the_last_follower_leaves():
    leader = Leader(1)
    leader.answers.note_copied("m2", 10)

    leader.answers.hold(SPAN, {})
    assert leader.released == []
    leader.answers.leave("m2")

    assert leader.released == [SPAN]
