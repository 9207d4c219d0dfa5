"""The changes of open transactions between two listings."""

from dataclasses import replace

from txmq.cli.tx import changes_between
from txmq.client.values import OpenTransaction
from txmq.message import Queue

ONE = OpenTransaction(
    id="A1", state="prepared", group="icbc", queue=Queue("Transfers", "broker-a", 0),
    half_offset=7, offset_id="", keys=(), stored_ms=0, checks=0, origin="", is_being_decided=False,
    xid="A1",
)  # fmt: skip
PARKED = replace(ONE, state="parked")
PLACE = ("broker-a", 7)


def test_the_first_listing_reports_no_changes():
    assert changes_between(None, {PLACE: ONE}) == []


def test_changes_show_opened_parked_checked_again_and_closed_transactions():
    looks = [{}, {PLACE: ONE}, {PLACE: PARKED}, {PLACE: ONE}, {}]
    changes = [changes_between(*pair) for pair in zip(looks, looks[1:], strict=False)]

    assert changes == [
        [("opened", ONE)],
        [("parked", PARKED)],
        [("checked again", ONE)],
        [("closed", ONE)],
    ]


def test_one_id_at_two_brokers_is_two_transactions():
    other = replace(ONE, queue=Queue("Transfers", "broker-b", 0))

    assert changes_between({PLACE: ONE}, {PLACE: ONE, ("broker-b", 7): other}) == [
        ("opened", other)
    ]
