"""Messages made from the arguments of decorated functions."""

import datetime as dt
import inspect
from dataclasses import dataclass
from decimal import Decimal

import pytest

from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Message
from txmq.transaction.message import FunctionMessages, MessageTemplate


@dataclass
class Order:
    """An order."""

    id: int
    price: Decimal
    due: dt.date = dt.date(2024, 2, 29)


ORDER = Order(7, Decimal("1.20"))


def messages_of(function, *parts):
    templates = [MessageTemplate(**{"topic": "T", **some}) for some in parts]
    return FunctionMessages(name="f", signature=inspect.signature(function), templates=templates)


def one(order):
    """A decorated function, without its session."""


def two(payer, amount=5, *rest, note=""):
    """The same with more parameters."""


def message(function, *args, **parts):
    (made,) = messages_of(function, parts).early(args, {})
    return made


def test_the_body_is_the_argument_or_all_of_them_by_name():
    assert message(one, ORDER).body == b'{"id":7,"price":"1.20","due":"2024-02-29"}'
    assert message(two, "A").body == b'{"payer":"A","amount":5,"rest":[],"note":""}'
    assert message(one, b"\x00raw").body == b"\x00raw"
    assert message(one, "text").body == b'"text"'


def test_each_part_can_be_made_from_the_arguments():
    made = message(
        one, ORDER,
        topic=lambda order: f"T{order.id}", tags=lambda order: "X",
        keys=lambda order: (order.id, "k"), body=lambda order: {"only": order.id},
        properties=lambda order: {"price": str(order.price)},
    )  # fmt: skip
    assert (made.topic, made.tags, made.keys) == ("T7", "X", ("7", "k"))
    assert (made.body, made.properties) == (b'{"only":7}', {"price": "1.20"})


@pytest.mark.parametrize(
    ("keys", "made"), [("a b", ("a b",)), (("a", "b"), ("a", "b")), (lambda _: 7, ("7",)),
                       (lambda _: None, ())],
)  # fmt: skip
def test_keys_can_be_one_several_or_none(keys, made):
    assert message(one, ORDER, keys=keys).keys == made


def test_a_body_topic_or_tag_that_cannot_be_written_is_refused_with_advice():
    with pytest.raises(
        LocalProtocolError, match=r"of f has no body: object cannot be .*; give it `body="
    ):
        message(one, object())
    with pytest.raises(LocalProtocolError, match="the topic of f's message is not a string: 7"):
        message(one, ORDER, topic=lambda order: order.id)
    with pytest.raises(LocalProtocolError, match="the tags of f's message is not a string: 7"):
        message(one, ORDER, tags=lambda order: order.id)


def late(function, result, **parts):
    (made,) = messages_of(function, {"made_from": "result", **parts}).late(result)
    return made


def test_a_message_can_be_made_from_a_result_alone():
    assert late(two, ORDER).body == b'{"id":7,"price":"1.20","due":"2024-02-29"}'
    assert late(two, [1, 2]).body == b"[1,2]"
    made = late(two, ORDER, topic=lambda made: f"T{made.id}", keys=lambda made: made.id,
                body=lambda made: b"raw", tags=str)  # fmt: skip
    assert (made.topic, made.keys, made.body) == ("T7", ("7",), b"raw")
    assert late(two, None, body=lambda made: {"made": made}).body == b'{"made":null}'
    with pytest.raises(LocalProtocolError, match="f returned nothing.*`body=`"):
        late(two, None)
    with pytest.raises(LocalProtocolError, match="that makes it from the result"):
        late(two, object())


@pytest.mark.parametrize("part", ["topic", "tags", "keys", "body", "properties"])
def test_a_part_that_needs_the_arguments_is_refused_for_a_result(part):
    with pytest.raises(UsageError, match=f"the {part} of the message is made from the result"):
        messages_of(two, {"made_from": "result", part: lambda payer, amount: payer})


def test_a_message_inside_a_message_body_is_refused():
    inner = Message(topic="T", body=b"")
    for body in (inner, [inner], (inner,), {"messages": [inner]}):
        with pytest.raises(LocalProtocolError, match="holds a Message.*adds them"):
            late(two, body)
        with pytest.raises(LocalProtocolError, match="holds a Message.*adds them"):
            message(one, body)


def test_wrong_arguments_are_refused_as_by_the_function_itself():
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        message(one)


def test_each_template_makes_a_message_from_the_arguments_or_from_the_result():
    several = messages_of(
        one, {"topic": "A"}, {"topic": "B", "made_from": "result"}, {"topic": lambda order: "C"}
    )
    assert [made.topic for made in several.early((ORDER,), {})] == ["A", "C"]
    (late_one,) = several.late({"id": 8})
    assert (late_one.topic, late_one.body) == ("B", b'{"id":8}')
