"""Makes the message of a decorated function from its arguments, or from its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from txmq.client.body import encode_body
from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Message
from txmq.runtime.signatures import signature_of

__all__ = ["Keys", "MadeFrom", "MessageTemplate", "Properties", "Text"]

Text: TypeAlias = str | Callable[..., str]
Keys: TypeAlias = str | Iterable[str] | Callable[..., object]
Properties: TypeAlias = Mapping[str, str] | Callable[..., Mapping[str, str]]
MadeFrom: TypeAlias = Literal["arguments", "result"]

_BY_POSITION: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_PLAIN: Final = (str, int, float, type(None))
"""Checked first, because the test for a Mapping is expensive."""
_ONE: Final = (
    "a transaction has one message; send others through an outbox, a table that the local "
    "transaction writes"
)
"""The advice for calls that would send several messages."""


@dataclass(frozen=True, kw_only=True)
class MessageTemplate:
    """How to make a decorated function's message. Each part is a constant, or a function of the
    arguments or of the result.

    Raises:
        UsageError: A part has the wrong type, or takes other arguments.
    """

    name: str
    """The decorated function's name, for errors."""
    signature: inspect.Signature
    """The parameters that a caller passes, without ``self`` and the session."""
    topic: Text
    tags: Text
    keys: Keys
    body: Callable[..., object] | None
    properties: Properties
    made_from: MadeFrom = "arguments"
    owner: inspect.Parameter | None = None
    """A method's ``self`` parameter."""

    def __post_init__(self) -> None:
        """Reject unusable parts before the first call."""
        if self.made_from not in ("arguments", "result"):
            raise UsageError(
                f"a message is made from 'arguments' or from the 'result', not {self.made_from!r}"
            )
        if not isinstance(self.topic, str) and not callable(self.topic):
            raise UsageError(f"{self.topic!r} is not a topic: {_ONE}")
        if self.made_from == "result":
            for part in ("topic", "tags", "keys", "body", "properties"):
                self._check_takes_result(part, getattr(self, part))

    @property
    def shown(self) -> inspect.Signature:
        """The signature that frameworks see. It includes a method's ``self``, which Python removes
        when it binds the method.
        """
        if self.owner is None:
            return self.signature
        return self.signature.replace(parameters=[self.owner, *self.signature.parameters.values()])

    @cached_property
    def is_simple(self) -> bool:
        """Whether every argument can be passed by position."""
        parameters = self.signature.parameters.values()
        return all(parameter.kind in _BY_POSITION for parameter in parameters)

    def bound(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        """Bind the arguments of one call.

        Raises:
            TypeError: The function does not take these arguments.
        """
        return self.signature.bind(*args, **kwargs)

    def message(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Message:
        """Make the message of one call from its arguments.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: The arguments do not make a valid message.
            Exception: Any exception of the functions that make its parts.
        """
        if self.is_simple and not kwargs and len(args) == len(self.signature.parameters):
            # The usual call; binding costs more than the rest of this method.
            named = dict(zip(self.signature.parameters, args, strict=True))
            return self._made(args[0] if len(args) == 1 else named, args, kwargs)
        given = self.bound(args, kwargs)
        given.apply_defaults()
        values = given.arguments
        whole = next(iter(values.values())) if len(values) == 1 else values
        return self._made(whole, given.args, given.kwargs)

    def message_of(self, result: object) -> Message:
        """Make the message of one call from its result.

        Raises:
            LocalProtocolError: The result does not make a valid message.
            Exception: Any exception of the functions that make its parts.
        """
        if result is None and self.body is None:
            raise LocalProtocolError(
                f"{self.name} returned nothing to make its message from; return the content, or "
                "give `body=`, a function that makes it"
            )
        return self._made(result, (result,), {})

    def _made(
        self, whole: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Message:
        topic: Any = self.topic(*args, **kwargs) if callable(self.topic) else self.topic
        tags: Any = self.tags(*args, **kwargs) if callable(self.tags) else self.tags
        keys: Any = self.keys(*args, **kwargs) if callable(self.keys) else self.keys
        body = whole if self.body is None else self.body(*args, **kwargs)
        more = self.properties
        for name, part in (("topic", topic), ("tags", tags or "")):
            if not isinstance(part, str):
                raise LocalProtocolError(
                    f"the {name} of {self.name}'s message is not a string: {part!r}"
                )
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            keys = () if keys is None else (keys,)
        if not isinstance(body, _PLAIN) and _holds_messages(body):
            raise LocalProtocolError(
                f"the body of {self.name}'s message holds a Message: give its parts, as `topic=` "
                f"and `body=`. Note that {_ONE}"
            )
        try:
            encoded = encode_body(body)
        except LocalProtocolError as error:
            raise LocalProtocolError(
                f"the message of {self.name} has no body: {error}; give it `body=`, a function "
                f"that makes it from the {self.made_from}"
            ) from error
        return Message(
            topic=topic,
            tags=tags or "",
            keys=tuple(map(str, keys)),
            body=encoded,
            properties=dict(more(*args, **kwargs) if callable(more) else more),
        )

    def _check_takes_result(self, part: str, of: object) -> None:
        if not callable(of):
            return
        try:
            signature_of(of).bind(object())
        except TypeError as error:
            raise UsageError(
                f"the {part} of {self.name}'s message is made from the result alone, but this "
                f"function takes other arguments: {error}"
            ) from error
        except ValueError:
            return  # Some built-in functions have no signature.


def _holds_messages(body: object) -> bool:
    if type(body) is dict or isinstance(body, Mapping):
        for value in body.values():
            if not isinstance(value, _PLAIN) and _holds_messages(value):
                return True
        return False
    if isinstance(body, list | tuple | set | frozenset):
        return any(isinstance(item, Message) for item in body)
    return isinstance(body, Message)
