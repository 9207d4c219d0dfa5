"""A message made for a decorated function: from its arguments, or from what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import msgspec

from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Message

__all__ = ["Keys", "MadeFrom", "Properties", "Shape", "Text"]

Text: TypeAlias = str | Callable[..., str]
Keys: TypeAlias = str | Iterable[str] | Callable[..., object]
Properties: TypeAlias = Mapping[str, str] | Callable[..., Mapping[str, str]]
MadeFrom: TypeAlias = Literal["arguments", "result"]

_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_PLAIN: Final = (str, int, float, type(None))
_ONE: Final = (
    "a transaction has one message; others belong into an outbox, a table that the local "
    "transaction writes"
)
"""What else is said to whoever tries to send several."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a message is made of: parts that are the same for all, or made by a function from the
    arguments of the decorated one, or from its result.

    Raises:
        UsageError: A part cannot be made so.
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
    made_from: MadeFrom = "arguments"

    def __post_init__(self) -> None:
        """See what can be seen before the first call."""
        if self.made_from not in ("arguments", "result"):
            raise UsageError(
                f"a message is made from 'arguments' or from the 'result', not {self.made_from!r}"
            )
        if not isinstance(self.topic, str) and not callable(self.topic):
            raise UsageError(f"{self.topic!r} is no topic: {_ONE}")
        if self.is_late:
            for part in ("topic", "tags", "keys", "body", "properties"):
                self._see_that_it_takes_a_result(part, getattr(self, part))

    @cached_property
    def is_simple(self) -> bool:
        """Whether each argument is one value, which may be given by its position."""
        return all(each.kind in _BY_POSITION for each in self.signature.parameters.values())

    @property
    def is_late(self) -> bool:
        """Whether there is no message before the function has returned."""
        return self.made_from == "result"

    def bound(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        """The arguments of one call.

        Raises:
            TypeError: The function does not take these.
        """
        return self.signature.bind(*args, **kwargs)

    def message(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Message:
        """The message of one call, by its arguments.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: No message can be made of them.
            Exception: Whatever the functions raise that make its parts.
        """
        if self.is_simple and not kwargs and len(args) == len(self.signature.parameters):
            # As nearly all calls are; binding costs more than all the rest.
            named = dict(zip(self.signature.parameters, args, strict=True))
            return self._made(args[0] if len(args) == 1 else named, args, kwargs)
        given = self.bound(args, kwargs)
        given.apply_defaults()
        values = given.arguments
        whole = next(iter(values.values())) if len(values) == 1 else values
        return self._made(whole, given.args, given.kwargs)

    def message_of(self, result: object) -> Message:
        """The message of one call, by its result.

        Raises:
            LocalProtocolError: No message can be made of it.
            Exception: Whatever the functions raise that make its parts.
        """
        if result is None and self.body is None:
            raise LocalProtocolError(
                f"{self.name} returned nothing that its message could be made from; return it, or "
                "give `body=`, a function that makes it"
            )
        return self._made(result, (result,), {})

    def _made(
        self, whole: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Message:
        def part(of: Any) -> Any:
            return of(*args, **kwargs) if callable(of) else of

        body = whole if self.body is None else part(self.body)
        return Message(
            topic=self._text("topic", part(self.topic)),
            tags=self._text("tags", part(self.tags) or ""),
            keys=_keys(part(self.keys)),
            body=self._written(body),
            properties=dict(part(self.properties)),
        )

    def _see_that_it_takes_a_result(self, part: str, of: object) -> None:
        if not callable(of):
            return
        try:
            inspect.signature(of).bind(object())
        except TypeError as problem:
            raise UsageError(
                f"the {part} of {self.name}'s message is made from the result alone, and this "
                f"takes something else: {problem}"
            ) from problem
        except ValueError:
            return  # Some that are built in do not tell.

    def _written(self, body: object) -> bytes:
        if isinstance(body, bytes):
            return body
        if _holds_messages(body):
            raise LocalProtocolError(
                f"the message of {self.name} would hold a Message: give its parts, as `topic=` and "
                f"`body=`. And {_ONE}"
            )
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as problem:
            raise LocalProtocolError(
                f"the message of {self.name} cannot be written as JSON; give it "
                f"`body=`, a function that makes it from the {self.made_from} ({problem})"
            ) from problem

    def _text(self, part: str, value: object) -> str:
        if not isinstance(value, str):
            raise LocalProtocolError(f"the {part} of {self.name}'s message is no text: {value!r}")
        return value


def _holds_messages(body: object) -> bool:
    if isinstance(body, _PLAIN):
        return False  # As most are; it is dear to see that something is no Mapping.
    if isinstance(body, Mapping):
        return any(_holds_messages(each) for each in body.values())
    if isinstance(body, list | tuple | set | frozenset):
        return any(isinstance(each, Message) for each in body)
    return isinstance(body, Message)


def _keys(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (str(value),)
    return tuple(str(each) for each in value)
