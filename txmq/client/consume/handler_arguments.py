"""The arguments of a handler: the message, or its body as a value of the declared type.

The handler's annotations decide::

    async def bill(message: ReceivedMessage) -> None: ...   # the message
    async def bill(order: Order) -> None: ...               # the body, read as JSON
    async def bill(order: Order, message: ReceivedMessage) -> None: ...
    def store(body: bytes) -> None: ...                     # the body as it is

A body that does not fit the type never reaches the handler: the message becomes a dead letter.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from txmq.errors import PayloadInvalid, UsageError
from txmq.limits import PAYLOAD_REASON_CHARS_MAX
from txmq.message import ReceivedMessage

__all__ = ["HandlerArguments", "arguments_of", "signature_of"]

HandlerArguments: TypeAlias = Callable[[ReceivedMessage], tuple[object, ...]]
"""Makes the arguments of one call. Raises :class:`txmq.errors.PayloadInvalid`."""

BodyReader: TypeAlias = Callable[[bytes], object]

_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_EMPTY: Final = inspect.Parameter.empty

_VALUE: Final = re.compile(r"^(Invalid (?:enum )?value) .*?(?=$| - at `)", re.DOTALL)
"""Matches msgspec errors that quote a value; our reasons never quote one, because it may be
secret."""
_PLACE: Final = re.compile(r" - at `([^`]*)`$")

_QUOTING: Final = ("value_error", "assertion_error", "union_tag_invalid")
"""Pydantic errors whose text may quote the value or come from the application."""
_ERRORS_SHOWN: Final = 3

_ACCEPTED: Final = (
    "a handler accepts a ReceivedMessage; bytes or str; or a body in JSON as a msgspec.Struct, a "
    "dataclass, a TypedDict, an attrs class, a pydantic model, or a builtin type"
)


def arguments_of(handler: Callable[..., object]) -> HandlerArguments | None:
    """Makes a handler's arguments; ``None`` if the handler takes only the message.

    Raises:
        UsageError: The handler cannot be called with the message, its body, or both, or an
            annotation is not supported.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    try:
        signature = signature_of(handler)
    except ValueError:
        return None  # Some built-in functions have no signature.
    found = [one for one in signature.parameters.values() if one.kind in _POSITIONAL]
    required = [one for one in found if one.default is _EMPTY] or found[:1]
    hints = _hints(name, handler, required)
    if len(required) < 2:
        _check_call(name, signature, 1)
        reader = _reader(name, hints[required[0].name]) if required else None
        return None if reader is None else partial(_body_alone, reader)
    _check_call(name, signature, 2)
    return _both(name, [hints[one.name] for one in required])


def signature_of(handler: Callable[..., object]) -> inspect.Signature:
    """The signature of a handler; annotations that cannot be evaluated are strings.

    Raises:
        ValueError: It has none, like some built-in functions.
    """
    try:
        return inspect.signature(handler)
    except NameError:
        # From 3.14 on, annotations are evaluated when they are read.
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            return inspect.signature(handler, annotation_format=Format.STRING)
        raise


def _check_call(name: str, signature: inspect.Signature, count: int) -> None:
    try:
        signature.bind(*[object()] * count)
    except TypeError as error:
        raise UsageError(
            f"{name} is called with the message, its body, or both, and nothing else: {error}"
        ) from error


def _both(name: str, hints: list[object]) -> HandlerArguments:
    """Makes the arguments of a handler that takes the body and the message, in either order."""
    readers = [_reader(name, hint) for hint in hints]
    is_message = [reader is None for reader in readers]
    if is_message == [False, True]:
        return partial(_body_first, cast("BodyReader", readers[0]))
    if is_message == [True, False]:
        return partial(_message_first, cast("BodyReader", readers[1]))
    raise UsageError(
        f"{name} has two parameters: annotate the one for the body with its type, and the other "
        "with ReceivedMessage"
    )


def _body_alone(reader: BodyReader, message: ReceivedMessage) -> tuple[object, ...]:
    return (reader(message.body),)


def _body_first(reader: BodyReader, message: ReceivedMessage) -> tuple[object, ...]:
    return reader(message.body), message


def _message_first(reader: BodyReader, message: ReceivedMessage) -> tuple[object, ...]:
    return message, reader(message.body)


# Annotations


def _hints(
    name: str, handler: Callable[..., object], parameters: list[inspect.Parameter]
) -> Mapping[str, object]:
    """The annotations of some parameters; strings are evaluated."""
    found: dict[str, object] = {one.name: _text_of(one.annotation) for one in parameters}
    texts = {key: text for key, text in found.items() if isinstance(text, str)}
    if not texts:
        return found

    def carrier() -> None:
        """Carry the annotations to typing's function."""

    scope = _globals_of(handler)
    for key, text in texts.items():
        carrier.__annotations__ = {key: text}
        try:
            found[key] = get_type_hints(carrier, scope, include_extras=True)[key]
        except Exception as error:
            if text.rpartition(".")[2] in {"ReceivedMessage", "Message"}:
                found[key] = ReceivedMessage  # Imported for type checkers only.
                continue
            raise UsageError(
                f"the annotation {text!r} of {name} cannot be evaluated: {error}; define the type "
                "in the module, above the handler, and do not import it under TYPE_CHECKING alone"
            ) from error
    return found


def _text_of(annotation: object) -> object:
    """The text of a forward reference, which an inner decorator may have left; anything else
    unchanged.
    """
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def _globals_of(handler: Callable[..., object]) -> dict[str, Any]:
    function: Any = handler
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = getattr(function, "__func__", None) or type(function).__call__
    return getattr(inspect.unwrap(function), "__globals__", {})


def _takes_message(hint: Any) -> bool:
    if hint is _EMPTY or hint is Any or isinstance(hint, TypeVar):
        return True
    if isinstance(hint, type):
        # Not issubclass, which a TypedDict refuses.
        return getattr(hint, "_is_protocol", False) or hint in ReceivedMessage.__mro__
    is_choice = get_origin(hint) in {Union, UnionType, Annotated}
    return is_choice and any(map(_takes_message, get_args(hint)))


def _reader(name: str, hint: Any) -> BodyReader | None:
    """Reads a parameter's value from a body; ``None`` if the parameter is the message."""
    if _takes_message(hint):
        return None
    if hint is bytes:
        return bytes
    if hint is str:
        return _text
    kind = _name_of(hint)
    try:
        from msgspec.inspect import type_info

        is_foreign = _has_custom(type_info(hint), set())
        decoder = msgspec.json.Decoder(hint)
    except Exception as error:
        raise UsageError(f"{name} declares {kind}, which cannot be read: {error}") from error
    if not is_foreign:
        return partial(_json, decoder, kind)
    # An application with pydantic models has imported pydantic.
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        raise UsageError(f"{name} declares {kind}; {_ACCEPTED}")
    try:
        adapter = pydantic.TypeAdapter(hint)
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise UsageError(f"{name} declares {kind}; {_ACCEPTED}") from error
    return partial(_model, adapter, kind, pydantic.ValidationError)


def _has_custom(info: object, seen: set[int]) -> bool:
    """Whether msgspec needs help with a part of a type."""
    from msgspec.inspect import CustomType

    if isinstance(info, CustomType):
        return True
    if isinstance(info, tuple):
        return any(_has_custom(part, seen) for part in info)
    if not isinstance(info, msgspec.Struct) or id(info) in seen:
        return False
    seen.add(id(info))
    return any(_has_custom(getattr(info, field), seen) for field in info.__struct_fields__)


def _name_of(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


# Bodies


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not text in UTF-8: byte {error.start} is wrong") from None


def _json(decoder: msgspec.json.Decoder[Any], kind: str, body: bytes) -> object:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _misfit(kind, _reason(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = "it is not JSON" if not isinstance(error, msgspec.DecodeError) else str(error)
        raise _misfit(kind, reason) from None
    except RecursionError:
        raise _misfit(kind, "it is nested too deeply") from None


def _reason(error: msgspec.ValidationError) -> str:
    """Which field is wrong, and how, without its value."""
    text = str(error)
    place = _PLACE.search(text)
    if error.__cause__ is not None:
        text = f"a check of the type raised {type(error.__cause__).__name__}"
    else:
        text = _VALUE.sub(r"\1", text[: place.start()] if place else text).replace("`", "")
    return f"{text} at {place[1]}" if place else text


def _model(adapter: Any, kind: str, refusal: type[ValueError], body: bytes) -> object:
    try:
        return adapter.validate_json(body)
    except refusal as error:
        found: Any = error
        facts = found.errors(include_url=False, include_context=False, include_input=False)
        reasons = [_fact(fact) for fact in facts[:_ERRORS_SHOWN]]
        if len(facts) > _ERRORS_SHOWN:
            reasons.append(f"and {len(facts) - _ERRORS_SHOWN} more")
        raise _misfit(kind, "; ".join(reasons)) from None


def _fact(fact: Mapping[str, Any]) -> str:
    word = str(fact["type"])
    text = f"a check of the type raised {word}" if word in _QUOTING else str(fact["msg"])
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fact["loc"])
    return f"{text} at ${place}" if place else text


def _misfit(kind: str, reason: str) -> PayloadInvalid:
    return _invalid(f"the body does not fit {kind}: {reason}")


def _invalid(text: str) -> PayloadInvalid:
    if len(text) > PAYLOAD_REASON_CHARS_MAX:
        text = text[: PAYLOAD_REASON_CHARS_MAX - 1] + "…"
    return PayloadInvalid(text)
