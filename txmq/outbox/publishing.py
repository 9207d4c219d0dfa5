"""Handlers whose messages are published with their work: :meth:`txmq.Outbox.publishes`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from txmq.errors import UsageError
from txmq.message import Later, Message
from txmq.runtime.signatures import is_async, object_parameter, signature_of

if TYPE_CHECKING:
    from txmq.outbox.table import Outbox

__all__ = ["Lane", "PublishingDecorator", "publishing"]

P = ParamSpec("P")
Made: TypeAlias = Message | Sequence[Message] | Later | type[Later] | None
"""What a decorated function may return."""
M = TypeVar("M", bound=Made)
Lane: TypeAlias = str | Callable[..., str | None] | None


class PublishingDecorator(Protocol):
    """Decorates functions that begin with a session, and methods with one after ``self``."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, M]], /
    ) -> Callable[P, Coroutine[Any, Any, Later | None]]: ...
    @overload
    def __call__(self, function: Callable[P, M], /) -> Callable[P, Later | None]: ...


def publishing(outbox: Outbox, lane: Lane) -> PublishingDecorator:
    """The decorator of :meth:`txmq.Outbox.publishes`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = signature_of(function)
        place = 0 if object_parameter(signature) is None else 1
        name = getattr(function, "__qualname__", repr(function))

        def add(made: Made, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            messages = [made] if isinstance(made, Message) else made
            if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
                raise UsageError(
                    f"{name} returned {made!r}: return a Message to publish, several, or nothing"
                )
            of_call = args[place + 1 :]
            chosen = lane(*of_call, **kwargs) if callable(lane) else lane
            return outbox.add_many(args[place], messages, chosen)

        if is_async(function):

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                made = await function(*args, **kwargs)
                if _is_nothing(made):
                    return made
                await add(made, args, kwargs)
                return None

        else:

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                made = function(*args, **kwargs)
                if _is_nothing(made):
                    return made
                add(made, args, kwargs)
                return None

        # Frameworks send what a function is said to return.
        vars(call)["__signature__"] = signature.replace(return_annotation=signature.empty)
        call.__annotations__ = {
            part: hint for part, hint in call.__annotations__.items() if part != "return"
        }
        return call

    return decorate


def _is_nothing(made: object) -> bool:
    """Whether there is nothing to publish: no message, or the work is to be done again later."""
    return made is None or made is Later or isinstance(made, Later)
