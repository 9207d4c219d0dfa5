"""Strategies for the protocol's values, and for bytes damaged on the way."""

import types
from typing import Annotated, Union, get_args, get_origin

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from txmq.protocol import bodies, headers
from txmq.protocol.record import Record

PER_SHAPE = settings(max_examples=max(8, settings().max_examples // 5))
"""For tests that run once for every shape there is."""

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NONEMPTY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
PLAIN = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"),
    min_size=1,
    max_size=20,
)
BYTES = st.binary(max_size=60)


def every(base):
    """The subclasses of a class in its own module."""
    found = [base] + [leaf for shape in base.__subclasses__() for leaf in every(shape)]
    return [shape for shape in found if shape.__module__ == base.__module__]


HEADER_SHAPES = sorted(
    (header for header in every(headers.Header) if header is not headers.Header),
    key=lambda each: each.__name__,
)
BODY_SHAPES = sorted(
    (body for body in every(bodies.Body) if body is not bodies.Body),
    key=lambda each: each.__name__,
)


def value_of(kind, text=TEXT):
    """Any value of a field type of headers and bodies."""
    origin = get_origin(kind)
    if origin is Annotated:
        bound = next(argument for argument in get_args(kind) if isinstance(argument, msgspec.Meta))
        return st.integers(bound.ge, bound.le)
    if origin in (Union, types.UnionType):
        return st.one_of([value_of(argument, text) for argument in get_args(kind)])
    if origin is list:
        return st.lists(value_of(get_args(kind)[0], text), max_size=3)
    if origin is tuple:
        return st.tuples(*(value_of(part, text) for part in get_args(kind)))
    if origin is dict:
        name, value = get_args(kind)
        return st.dictionaries(value_of(name, text), value_of(value, text), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct(kind, text)
    simple = {
        str: text,
        bytes: BYTES,
        int: INT64,
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
        msgspec.UnsetType: st.just(msgspec.UNSET),
    }
    return simple[kind]


def struct(shape, text=TEXT):
    """Any value of one header or body."""
    fields = {field.name: value_of(field.type, text) for field in msgspec.structs.fields(shape)}
    return st.builds(shape, **fields)


ANY_HEADER = st.sampled_from(HEADER_SHAPES).flatmap(struct)
ANY_BODY = st.sampled_from(BODY_SHAPES).flatmap(struct)
FIELD_MAPS = st.dictionaries(NONEMPTY, TEXT, max_size=5)

HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


@st.composite
def records(draw):
    born, store = draw(HOSTS), draw(HOSTS)
    bits = (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0)
    return Record(
        queue_id=draw(COUNT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        position=draw(INT64),
        sys_flag=draw(st.integers(0, 2**31 - 1)) & ~0x30 | bits,
        born_ms=draw(INT64),
        born_host=born,
        stored_ms=draw(INT64),
        store_host=store,
        attempts=draw(INT32),
        prepared_position=draw(INT64),
        body=draw(BYTES),
        topic=draw(st.text("abc_%-", max_size=127)),
        properties=draw(TEXT),
    )


BATCH_ITEMS = st.tuples(INT32, BYTES, TEXT)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38), 10**38)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)

# Bytes that mean something somewhere: signs, ends, separators, lengths, broken UTF-8.
_TELLING = st.sampled_from(
    [b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]
    + [b"\x80\x00\x00\x00", b"\x00\x00\x00\x00", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b":"]
    + [b",", b"\\ud800", b"\\u", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"null", b"1e999", b"-"]
    + [b"9" * 50, b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"{" * 2000, b"NaN", b"true", b" "]
)


@st.composite
def broken(draw, intact):
    """Bytes of a valid thing after accidents: changed, cut, doubled, moved, or none at all."""
    data = draw(intact)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        patch = draw(st.one_of(_TELLING, st.binary(max_size=4), st.just(data[start:end] * 2)))
        how = draw(st.sampled_from(["replace", "insert", "overwrite", "cut"]))
        if how == "replace":
            data = data[:start] + patch + data[end:]
        elif how == "insert":
            data = data[:start] + patch + data[start:]
        elif how == "overwrite":
            data = data[:start] + patch + data[start + len(patch) :]
        else:
            data = data[:start]
    return data
