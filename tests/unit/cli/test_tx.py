"""The changes of open transactions between two looks."""

from dataclasses import replace

from txmq.cli.tx import changes_between
from txmq.client.values import OpenTransaction
from txmq.message import Queue

ONE = OpenTransaction(
    id="A1", state="prepared", group="icbc", queue=Queue("Transfers", "broker-a", 0),
    half_offset=7, offset_id="", keys=(), stored_ms=0, checks=0, origin="", is_being_decided=False,
)  # fmt: skip
PARKED = replace(ONE, state="parked")
PLACE = ("broker-a", 7)


def test_the_first_look_has_no_changes():
    assert changes_between(None, {PLACE: ONE}) == []


def test_a_transaction_is_opened_parked_checked_again_and_closed():
    looks = [{}, {PLACE: ONE}, {PLACE: PARKED}, {PLACE: ONE}, {}]
    changes = [changes_between(*pair) for pair in zip(looks, looks[1:], strict=False)]

    assert changes == [
        [("opened", ONE)],
        [("parked", PARKED)],
        [("checked again", ONE)],
        [("closed", ONE)],
    ]


def test_the_same_id_at_another_broker_is_another_transaction():
    other = replace(ONE, queue=Queue("Transfers", "broker-b", 0))

    assert changes_between({PLACE: ONE}, {PLACE: ONE, ("broker-b", 7): other}) == [
        ("opened", other)
    ]
