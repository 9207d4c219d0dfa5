"""Encodes values as message bodies: the JSON that handlers with a declared type read.

msgspec encodes structs, dataclasses, attrs classes and builtin types; pydantic encodes its models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from txmq.errors import LocalProtocolError

__all__ = ["encode_body"]

_FAILURES: Final = (TypeError, ValueError, OverflowError, RecursionError)


def _is_model(value: object) -> bool:
    # An application with pydantic models has imported pydantic.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _foreign(value: Any) -> msgspec.Raw:
    """Encode a pydantic model, which msgspec does not support."""
    if not _is_model(value):
        raise TypeError(f"values of type {type(value).__name__} cannot be written as JSON")
    # By alias, because reading expects aliases too.
    return msgspec.Raw(value.model_dump_json(by_alias=True).encode())


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_foreign)


def encode_body(value: object) -> bytes:
    """A value as a message body: bytes stay as they are, everything else becomes JSON.

    A handler that declares the type receives an equal value: a msgspec struct, a dataclass, a
    ``TypedDict``, an attrs class, a pydantic model, a builtin type, and lists and dictionaries of
    them.

    Raises:
        LocalProtocolError: It cannot be written as JSON; the text names the field.
    """
    if isinstance(value, bytes):
        return value
    try:
        return _ENCODER.encode(value)
    except _FAILURES as error:
        place, culprit = _culprit(value)
        where = "" if culprit is value else f": {place} is of type {type(culprit).__name__}"
        raise LocalProtocolError(
            f"{type(value).__name__} cannot be written as JSON{where} ({error})"
        ) from error


def _culprit(value: object) -> tuple[str, object]:
    """The innermost part that cannot be encoded, and its place."""
    place, seen = "$", {id(value)}
    while True:
        wrong = (
            (place + name, part)
            for name, part in _parts(value)
            if id(part) not in seen and not _can_encode(part)
        )
        found = next(wrong, None)
        if found is None:
            return place, value
        place, value = found
        seen.add(id(value))  # A value may contain itself.


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """The named parts of a value; for a model, only those that pydantic cannot encode."""
    kind = type(value)
    if isinstance(value, Mapping):
        yield from ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif _is_model(value):
        for name in kind.model_fields:
            try:
                value.model_dump_json(include={name})
            except _FAILURES:
                yield f".{name}", getattr(value, name)
    else:
        attributes = [one.name for one in getattr(kind, "__attrs_attrs__", ())]
        fields = getattr(kind, "__dataclass_fields__", attributes)
        for name in getattr(kind, "__struct_fields__", fields):
            yield f".{name}", getattr(value, name, None)


def _can_encode(value: object) -> bool:
    try:
        _ENCODER.encode(value)
    except _FAILURES:
        return False
    return True
