"""Handlers whose messages are published with their work: :meth:`txmq.Outbox.publishes`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, overload

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
        publisher = _Publisher(
            outbox,
            lane,
            function,
            getattr(function, "__qualname__", repr(function)),
            0 if object_parameter(signature) is None else 1,
        )
        wrap = publisher.awaited if is_async(function) else publisher.plain
        call = functools.wraps(function)(wrap())
        # Frameworks send what a function is said to return.
        vars(call)["__signature__"] = signature.replace(return_annotation=signature.empty)
        call.__annotations__ = {
            part: hint for part, hint in call.__annotations__.items() if part != "return"
        }
        return call

    return decorate


class _Publisher(NamedTuple):
    """A function, and the outbox that takes the messages it returns."""

    outbox: Outbox
    lane: Lane
    function: Callable[..., Any]
    name: str
    place: int
    """The place of its session among its arguments."""

    def plain(self) -> Callable[..., Any]:
        """The wrapper of a plain function."""

        def call(*args: Any, **kwargs: Any) -> Any:
            session = self._session_in(args)
            made = self.function(*args, **kwargs)
            if _publishes_nothing(made):
                return made
            added = self._add(session, made, args, kwargs)
            if inspect.iscoroutine(added):
                added.close()
                raise UsageError(f"{self.name} is not async, and needs a session that blocks")
            return None

        return call

    def awaited(self) -> Callable[..., Any]:
        """The wrapper of an ``async`` function."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            session = self._session_in(args)
            made = await self.function(*args, **kwargs)
            if _publishes_nothing(made):
                return made
            added = self._add(session, made, args, kwargs)
            if not inspect.isawaitable(added):
                raise UsageError(f"{self.name} is async, and needs a session for asyncio")
            await added
            return None

        return call

    def _session_in(self, args: Sequence[Any]) -> Any:
        if len(args) <= self.place:
            raise UsageError(f"pass the session of {self.name} by its position")
        return args[self.place]

    def _add(self, session: Any, made: Made, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        messages = [made] if isinstance(made, Message) else made
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise UsageError(
                f"{self.name} returned {made!r}: return a Message to publish, several, or nothing"
            )
        lane, of_call = self.lane, args[self.place + 1 :]
        chosen = lane(*of_call, **kwargs) if callable(lane) else lane
        return self.outbox.add_many(session, messages, chosen)


def _publishes_nothing(made: object) -> bool:
    """Whether there is no message, or the work is to be done again later."""
    return made is None or made is Later or isinstance(made, Later)
