"""Makes the messages of a decorated function from its arguments, or from its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypedDict

from txmq.client.body import encode_body
from txmq.errors import LocalProtocolError, UsageError
from txmq.message import Message
from txmq.runtime.signatures import signature_of
from txmq.settings.units import DurationLike
from txmq.transaction.state import check_count

__all__ = [
    "FunctionMessages",
    "Keys",
    "MessageParts",
    "MessageTemplate",
    "Properties",
    "Text",
    "chosen",
]

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


@dataclass(frozen=True, kw_only=True)
class MessageTemplate:
    """How to make one message of a decorated function. Each part is a constant, or a function of
    the arguments or of the result.

    Raises:
        UsageError: A part has the wrong type, or takes other arguments.
    """

    topic: Text
    tags: Text = ""
    keys: Keys = ()
    """Its key, or several."""
    body: Callable[..., object] | None = None
    """Makes the body: bytes, or a value that JSON can carry. Without it, the body is the argument,
    or all arguments by their names if there are several; or the result."""
    properties: Properties = field(default_factory=dict)
    delay_level: int | Callable[..., int] = 0
    """Deliver it after this level's delay, counted from the commit; needs a txmq broker."""
    deliver_at_ms: int | Callable[..., int | None] | None = None
    """Deliver it at this wall time, in milliseconds; needs a txmq broker."""
    deliver_after: DurationLike | Callable[..., DurationLike | None] | None = None
    """Deliver it this long after the commit; needs a txmq broker."""
    made_from: MadeFrom = "arguments"
    """``"arguments"``, or ``"result"`` if the message needs values that only the database knows,
    such as generated keys."""

    def __post_init__(self) -> None:
        """Reject unusable parts before the first call."""
        if self.made_from not in ("arguments", "result"):
            raise UsageError(
                f"a message is made from 'arguments' or from the 'result', not {self.made_from!r}"
            )
        if not isinstance(self.topic, str) and not callable(self.topic):
            raise UsageError(
                f"{self.topic!r} is not a topic: give several messages as MessageTemplate(...) each"
            )
        if self.made_from == "result":
            for part in fields(self):
                self._check_takes_result(part.name, getattr(self, part.name))

    def _check_takes_result(self, part: str, of: object) -> None:
        if not callable(of):
            return
        try:
            signature_of(of).bind(object())
        except TypeError as error:
            raise UsageError(
                f"the {part} of the message is made from the result alone, but this function takes "
                f"other arguments: {error}"
            ) from error
        except ValueError:
            return  # Some built-in functions have no signature.

    def message(
        self, name: str, whole: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Message:
        """Make a message.

        Args:
            name: The decorated function, for errors.
            whole: What the body is made of if no function makes it.
            args: What the functions receive that make its parts.
            kwargs: As ``args``.

        Raises:
            LocalProtocolError: It would be no valid message.
            Exception: Any exception of the functions that make its parts.
        """

        def made(part: Any) -> Any:
            return part(*args, **kwargs) if callable(part) else part

        topic, tags, keys = made(self.topic), made(self.tags), made(self.keys)
        body = whole if self.body is None else self.body(*args, **kwargs)
        for part, text in (("topic", topic), ("tags", tags or "")):
            if not isinstance(text, str):
                raise LocalProtocolError(
                    f"the {part} of {name}'s message is not a string: {text!r}"
                )
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            keys = () if keys is None else (keys,)
        if not isinstance(body, _PLAIN) and _holds_messages(body):
            raise LocalProtocolError(
                f"the body of {name}'s message holds a Message: give its parts, as `topic=` and "
                "`body=`; a function that makes whole messages adds them to its transaction"
            )
        try:
            encoded = encode_body(body)
        except LocalProtocolError as error:
            raise LocalProtocolError(
                f"the message of {name} has no body: {error}; give it `body=`, a function that "
                f"makes it from the {self.made_from}"
            ) from error
        return Message(
            topic=topic,
            tags=tags or "",
            keys=tuple(map(str, keys)),
            body=encoded,
            properties=dict(made(self.properties)),
            delay_level=made(self.delay_level),
            deliver_at_ms=made(self.deliver_at_ms),
            deliver_after=made(self.deliver_after),
        )


@dataclass(frozen=True, kw_only=True)
class FunctionMessages:
    """The messages of a decorated function."""

    name: str
    """The function's name, for errors."""
    signature: inspect.Signature
    """The parameters that a caller passes, without ``self`` and the session."""
    templates: Sequence[MessageTemplate]
    owner: inspect.Parameter | None = None
    """A method's ``self`` parameter."""

    @cached_property
    def from_arguments(self) -> Sequence[MessageTemplate]:
        """Those that are sent before the function runs."""
        return [template for template in self.templates if template.made_from == "arguments"]

    @cached_property
    def from_result(self) -> Sequence[MessageTemplate]:
        """Those that are sent after it has run."""
        return [template for template in self.templates if template.made_from == "result"]

    @property
    def first_topic(self) -> str:
        """The topic of the first message, if it is known in advance."""
        topic = self.templates[0].topic
        return topic if isinstance(topic, str) else ""

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

    def early(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Message]:
        """Make the messages of one call from its arguments.

        Raises:
            TypeError: The function does not take these arguments.
            LocalProtocolError: The arguments do not make a valid message.
            Exception: Any exception of the functions that make its parts.
        """
        if self.is_simple and not kwargs and len(args) == len(self.signature.parameters):
            # The usual call; binding costs more than the rest of this method.
            named: Mapping[str, object] = dict(zip(self.signature.parameters, args, strict=True))
            whole = args[0] if len(args) == 1 else named
        else:
            given = self.signature.bind(*args, **kwargs)
            given.apply_defaults()
            values = given.arguments
            whole = next(iter(values.values())) if len(values) == 1 else values
            args, kwargs = given.args, given.kwargs
        return [part.message(self.name, whole, args, kwargs) for part in self.from_arguments]

    def late(self, result: object) -> list[Message]:
        """Make the messages of one call from its result.

        Raises:
            LocalProtocolError: The result does not make a valid message.
            Exception: Any exception of the functions that make its parts.
        """
        for template in self.from_result:
            if result is None and template.body is None:
                raise LocalProtocolError(
                    f"{self.name} returned nothing to make its message from; return the content, "
                    "or give `body=`, a function that makes it"
                )
        return [part.message(self.name, result, (result,), {}) for part in self.from_result]


class MessageParts(TypedDict, total=False):
    """The arguments that describe a single message, as :class:`MessageTemplate` has them."""

    topic: Text
    tags: Text
    keys: Keys
    body: Callable[..., object] | None
    properties: Properties
    delay_level: int | Callable[..., int]
    deliver_at_ms: int | Callable[..., int | None] | None
    deliver_after: DurationLike | Callable[..., DurationLike | None] | None
    made_from: MadeFrom


def chosen(templates: Sequence[MessageTemplate], parts: MessageParts) -> Sequence[MessageTemplate]:
    """The templates of a decorator, or the one that its other arguments describe.

    Raises:
        UsageError: There are none, or both kinds, or one is no template.
        LimitExceeded: There are too many.
    """
    for template in templates:
        if not isinstance(template, MessageTemplate):
            raise UsageError(
                f"{template!r} is not a MessageTemplate; a single message needs topic=..."
            )
    if not templates:
        if "topic" not in parts:
            raise UsageError("a transaction needs a message: give its topic, or MessageTemplates")
        return [MessageTemplate(**parts)]
    if parts:
        raise UsageError("give the topic and the other parts in each MessageTemplate")
    check_count(len(templates))
    return templates


def _holds_messages(body: object) -> bool:
    if type(body) is dict or isinstance(body, Mapping):
        for value in body.values():
            if not isinstance(value, _PLAIN) and _holds_messages(value):
                return True
        return False
    if isinstance(body, list | tuple | set | frozenset):
        return any(isinstance(item, Message) for item in body)
    return isinstance(body, Message)
