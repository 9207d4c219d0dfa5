"""Bodies that are values: a handler that declares the type receives an equal one."""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypedDict

import attrs
import msgspec
import pydantic
import pytest

from txmq.client.body import encode_body
from txmq.client.consume.handler_arguments import arguments_of
from txmq.errors import LocalProtocolError


class Struct(msgspec.Struct):
    id: str
    cents: list[int]


@dataclass(slots=True, kw_only=True)
class Data:
    id: str
    cents: list[int]


@attrs.define
class Attrs:
    id: str
    cents: list[int]


class Model(pydantic.BaseModel):
    id: str = pydantic.Field(alias="order")
    cents: list[int]


class Typed(TypedDict):
    id: str
    cents: list[int]


@pydantic.dataclasses.dataclass
class ModelData:
    id: str
    cents: list[int]


MODEL = Model(order="o-1", cents=[1, 2])
VALUES = [
    *(kind(id="o-1", cents=[1, 2]) for kind in (Struct, Data, Attrs, Typed, ModelData)),
    MODEL,
]


@pytest.mark.parametrize(
    ("value", "kind"), [*((value, type(value)) for value in VALUES), ([MODEL], list[Model])]
)
def test_a_handler_receives_a_value_equal_to_the_one_sent(value, kind):
    def handler(order):
        """Never called."""

    handler.__annotations__["order"] = Typed if kind is dict else kind

    assert arguments_of(handler)(SimpleNamespace(body=encode_body(value))) == (value,)


def test_models_inside_other_values_are_encoded_and_bytes_stay_as_they_are():
    assert encode_body({"orders": [MODEL]}) == b'{"orders":[{"order":"o-1","cents":[1,2]}]}'
    assert encode_body(b"\x00raw") == b"\x00raw"


class Photo:
    """A value that JSON cannot carry."""


class Album(pydantic.BaseModel, arbitrary_types_allowed=True):
    secret: pydantic.SecretStr = pydantic.SecretStr("secret")
    cover: Photo


@attrs.define
class Page:
    number: int
    photo: Photo


Late = dataclasses.make_dataclass("Late", ["title", ("pages", list)])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Photo(), "Photo cannot be written as JSON (values of type Photo"),
        (Album(cover=Photo()), "Album cannot be written as JSON: $.cover is of type Photo"),
        (
            Late("a", [Page(1, None), Page(2, Photo())]),
            "Late cannot be written as JSON: $.pages[1].photo is of type Photo",
        ),
        (
            {"album": Album(cover=Photo())},
            "dict cannot be written as JSON: $.album.cover is of type Photo",
        ),
        (Struct("o-1", {1j: 2}), "Struct cannot be written as JSON: $.cents is of type dict"),
    ],
)
def test_a_value_that_json_cannot_carry_is_named_by_its_field(value, said):
    with pytest.raises(LocalProtocolError) as refused:
        encode_body(value)

    assert str(refused.value).startswith(said)
    assert "secret" not in str(refused.value)


def test_a_value_that_contains_itself_is_refused():
    value = {}
    value["again"] = value

    with pytest.raises(LocalProtocolError, match="dict cannot be written as JSON"):
        encode_body(value)
