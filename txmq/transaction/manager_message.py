"""A message made from the arguments of a decorated function, before the function runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from txmq.errors import LocalProtocolError
from txmq.message import Message

__all__ = ["Keys", "Properties", "Shape", "Text"]

Text: TypeAlias = str | Callable[..., str]
Keys: TypeAlias = str | Iterable[str] | Callable[..., object]
Properties: TypeAlias = Mapping[str, str] | Callable[..., Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a message is made of: parts that are the same for all, or made by a function from the
    arguments of the decorated one.
    """

    name: str
    """The decorated function's, for errors."""
    signature: inspect.Signature
    """The arguments that it is called with: all but the session."""
    topic: Text
    tags: Text
    keys: Keys
    body: Callable[..., object] | None
    properties: Properties

    def message(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Message:
        """The message of one call.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: No message can be made of them.
            Exception: Whatever the functions raise that make its parts.
        """
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()

        def part(of: Any) -> Any:
            return of(*given.args, **given.kwargs) if callable(of) else of

        body = self._body(given) if self.body is None else part(self.body)
        return Message(
            topic=self._text("topic", part(self.topic)),
            tags=self._text("tags", part(self.tags) or ""),
            keys=_keys(part(self.keys)),
            body=self._written(body),
            properties=dict(part(self.properties)),
        )

    def _body(self, given: inspect.BoundArguments) -> object:
        values = given.arguments
        return next(iter(values.values())) if len(values) == 1 else values

    def _written(self, body: object) -> bytes:
        if isinstance(body, bytes):
            return body
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as problem:
            raise LocalProtocolError(
                f"the message of {self.name} cannot be written as JSON; give it "
                f"`body=`, a function that makes it from the arguments ({problem})"
            ) from problem

    def _text(self, part: str, value: object) -> str:
        if not isinstance(value, str):
            raise LocalProtocolError(f"the {part} of {self.name}'s message is no text: {value!r}")
        return value


def _keys(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (str(value),)
    return tuple(str(each) for each in value)
