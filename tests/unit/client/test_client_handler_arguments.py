"""The arguments of handlers of every kind, and the reasons for bodies that do not fit."""

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, TypedDict

import msgspec
import pydantic
import pytest

from tests.running import in_loop, run_by
from txmq.client.consume.handler import BoundHandler
from txmq.client.consume.handler_arguments import arguments_of
from txmq.errors import PayloadInvalid, UsageError
from txmq.limits import PAYLOAD_REASON_CHARS_MAX
from txmq.message import DEAD_LETTER, Message, ReceivedMessage
from txmq.runtime.tasks import Threads
from txmq.testing.deliveries import received

SECRET = "4111-1111"


class Color(Enum):
    RED = "red"


class Item(msgspec.Struct):
    count: int
    color: Color = Color.RED
    size: Literal["s", "m"] = "s"
    inner: "Item | None" = None

    def __post_init__(self):
        if self.count == 13:
            raise ValueError(SECRET)


@dataclass
class Plain:
    count: int


class Typed(TypedDict):
    count: int


class Model(pydantic.BaseModel):
    count: int
    names: dict[str, int] = {}

    @pydantic.field_validator("count")
    @classmethod
    def see(cls, value):
        if value == 13:
            raise ValueError(SECRET)
        return value


class HasId(Protocol):
    id: str


class Foreign:
    pass


def given(annotation, body):
    def handler(value): ...

    handler.__annotations__ = {"value": annotation}
    arguments = arguments_of(handler)
    message = received("T", body)
    return (message,) if arguments is None else arguments(message)


@pytest.mark.parametrize(
    "hint",
    [ReceivedMessage, Message, Any, object, HasId, "ReceivedMessage", "elsewhere.ReceivedMessage"],
)
def test_a_handler_annotated_for_a_message_gets_the_message(hint):
    """Also by a name that is imported for type checkers only."""
    assert given(hint, b"{}") == (received("T", b"{}"),)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Item, Item(3)), ("Item", Item(3)), (Plain, Plain(3)), (Typed, {"count": 3}),
        (Model, Model(count=3)), (dict[str, int], {"count": 3}), (Item | None, Item(3)),
        (bytes, b'{"count": 3}'), (str, '{"count": 3}'),
    ],
)  # fmt: skip
def test_a_body_becomes_the_declared_value(hint, value):
    assert given(hint, b'{"count": 3}') == (value,)


def test_lists_of_models_are_read_too():
    assert given(list[Model], b'[{"count": 3}]') == ([Model(count=3)],)


@pytest.mark.parametrize(
    ("hint", "body", "reason"),
    [
        (Item, f'{{"count": "{SECRET}"}}', "does not fit Item: Expected int, got str at $.count"),
        (Item, '{"count": 1, "inner": {}}', "Object missing required field count at $.inner"),
        (Item, f'{{"count": 1, "color": "{SECRET}"}}', "Item: Invalid enum value at $.color"),
        (Item, f'{{"count": 1, "size": "{SECRET}"}}', "Item: Invalid enum value at $.size"),
        (Item, '{"count": 13}', "Item: a check of the type raised ValueError"),
        (Item, "", "does not fit Item: Input data was truncated"),
        (Plain, "[1]", "does not fit Plain: Expected object, got array"),
        (Item, '{"count": 1, "inner": ' * 50_000, "it is nested too deeply"),
        (Model, '{"count": 13}', "Model: a check of the type raised value_error at $.count"),
        (Model, f'{{"count": "{SECRET}"}}', "Model: Input should be a valid integer"),
        (Model, "{", "does not fit Model: Invalid JSON: EOF"),
        (dict[str, int], f'{{"{SECRET}": "x"}}', "Expected int, got str at $[...]"),
        (str, b"ab\xff", "the body is not text in UTF-8: byte 2 is wrong"),
        (Model, f'{{"count": 1, "names": {{"{"k" * 9_000}": "x"}}}}', "at $.names.kkkk"),
    ],
)
def test_the_reason_for_a_wrong_body_names_the_field_and_quotes_no_value(hint, body, reason):
    with pytest.raises(PayloadInvalid) as refused:
        given(hint, body if isinstance(body, bytes) else body.encode())

    text = str(refused.value)
    assert reason in text
    assert SECRET not in text
    assert len(text) <= PAYLOAD_REASON_CHARS_MAX
    assert refused.value.__cause__ is None


def both(item: Item, message: ReceivedMessage):
    return item, message


def reversed_both(message: ReceivedMessage, item: Item):
    return item, message


def unannotated_second(item: Item, message):
    return item, message


@pytest.mark.parametrize("handler", [both, reversed_both, unannotated_second])
def test_a_handler_with_two_parameters_gets_the_body_and_the_message(handler):
    message = received("T", b'{"count": 3}')

    assert handler(*arguments_of(handler)(message)) == (Item(3), message)


def test_a_bound_method_with_a_default_parameter_can_be_a_handler():
    class Service:
        def handle(self, item: Item, retries: int = 3):
            return item, retries

    service = Service()
    assert service.handle(*arguments_of(service.handle)(received("T", b'{"count": 1}'))) == (
        Item(1),
        3,
    )


def foreign(item: Foreign): ...
def unknown(item: "Nowhere"): ...  # noqa: F821
def two_items(one: Item, other: Item): ...
def two_messages(one, other): ...
def three(item: Item, message: ReceivedMessage, session): ...
def keyword(item: Item, *, session): ...


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (foreign, "foreign declares Foreign; a handler accepts a ReceivedMessage; bytes or str"),
        (unknown, "the annotation 'Nowhere' of unknown cannot be evaluated"),
        (two_items, "two_items has two parameters: annotate the one for the body"),
        (two_messages, "two_messages has two parameters"),
        (three, "three is called with the message, its body, or both, and nothing else"),
        (keyword, "keyword is called with the message, its body, or both, and nothing else"),
    ],
)
def test_a_handler_with_unusable_parameters_is_refused_when_declared(handler, reason):
    with pytest.raises(UsageError, match=reason):
        BoundHandler(handler, takes_batch=False)


@pytest.mark.parametrize("is_async", [False, True])
@run_by(in_loop)
async def test_a_body_of_the_wrong_type_is_dead_lettered_without_calling_the_handler(is_async):
    called, observed = [], []

    async def later(item: Item):
        called.append(item)

    def plain(item: Item):
        called.append(item)

    def observe(messages):
        return lambda verdict, has_failed: observed.append((verdict and verdict.level, has_failed))

    handler = BoundHandler(later if is_async else plain, takes_batch=False)
    with contextlib.closing(Threads("test", 1)) as threads:
        handler.open(threads, observe=observe)
        await handler.judge([received("T", b'{"count": 2}')])
        verdict = await handler.judge([received("T", b"{}")])

    assert verdict.level == DEAD_LETTER
    assert verdict.reason == "the body does not fit Item: Object missing required field count"
    assert called == [Item(2)]
    assert observed == [(None, False), (DEAD_LETTER, True)]
