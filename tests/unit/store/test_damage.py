"""Met damage is reported once per place, however often somebody reads there."""

from txmq.errors import CorruptRecord, InternalError
from txmq_broker.store.message_store import MetDamage


def test_each_place_gets_a_log_line_once_and_each_read_is_reported(caplog):
    met, places = MetDamage(), []
    met.found = places.append

    for position in (7, 7, 7, 9):
        met.note(CorruptRecord(position, "a message differs from what was stored"))

    assert met.reads == 4
    assert places == [7, 7, 7, 9]
    assert [line.split(":")[0] for line in caplog.messages] == [
        "the log is damaged at position 7",
        "the log is damaged at position 9",
    ]


def test_a_request_that_failed_for_another_reason_met_no_damage():
    met = MetDamage()
    met.note_error(InternalError("no such queue"))

    assert met.reads == 0
