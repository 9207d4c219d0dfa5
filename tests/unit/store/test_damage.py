"""Damage is logged once per position, however often somebody reads there."""

from txmq.errors import CorruptRecord, InternalError
from txmq_broker.store.message_store import MetDamage


def test_damage_is_logged_once_per_position_and_reported_at_every_read(caplog):
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


def test_an_error_other_than_damage_is_not_counted():
    met = MetDamage()
    met.note_error(InternalError("no such queue"))

    assert met.reads == 0
