"""Guards, and the decorator that puts one in front of a function: :func:`idempotent`.

For each key a guard returns an :class:`Attempt`, a context manager. Its verdict says whether to
call the function. If the function ran, the end of the attempt records the key; a guard in the same
database commits that record together with the function's own work.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from txmq.databases.failures import Failure, failure
from txmq.databases.guarded_transaction import DualContext
from txmq.errors import ConfigError, KeyConflict, KeyInProgress, LimitExceeded, UsageError
from txmq.limits import KEY_CHARS_MAX, STORED_RESULT_BYTES_MAX
from txmq.message import HANDLED_BODY, Later
from txmq.runtime.signatures import is_async, object_parameter, signature_of
from txmq.settings.units import DurationLike, seconds

__all__ = [
    "Attempt",
    "Guard",
    "KeyState",
    "PlainGuard",
    "SessionGuard",
    "Verdict",
    "check_text",
    "decode_result",
    "encode_result",
    "fingerprint",
    "idempotent",
    "judge",
    "redelivery_horizon",
]

K_contra = TypeVar("K_contra", contravariant=True)
K = TypeVar("K")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R")
Owner = TypeVar("Owner")
P = ParamSpec("P")

log = logging.getLogger(__name__)

_PAYLOADS: Final = (bytes, bytearray, memoryview, str)
_OPEN: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ATTEMPTS_MAX: Final = 3
"""How often a function is called before its error is raised, if the database aborts its transaction
because of a deadlock or a serialization failure. The message is then delivered again later.
"""

Payload: TypeAlias = bytes | bytearray | memoryview | str | None


class Attempt(DualContext["Attempt[S]"], Generic[S]):
    """``with`` or ``async with``: one attempt to do the work of a key.

    Do the work only if :attr:`verdict` is ``FIRST``, in :attr:`session` if the guard has one. The
    end of the block records the key as done; an exception from the block leaves the key free.
    """

    def __init__(self) -> None:
        self.found: KeyState = KeyState(Verdict.IN_PROGRESS)
        self.kept: str | None = None
        self.is_abandoned: bool = False

    @property
    def verdict(self) -> Verdict:
        """The guard's answer."""
        return self.found.verdict

    @property
    def result(self) -> Any:
        """The result stored with the key, or ``None``."""
        return decode_result(self.found.result)

    @property
    @abstractmethod
    def session(self) -> S:
        """The session for the work, if the verdict is ``FIRST``; ``None`` if the guard has none."""

    def keep(self, result: object) -> None:
        """Store a result with the key, which later attempts return; any JSON value.

        Raises:
            UsageError: JSON cannot represent it, or the verdict is not ``FIRST``.
            LimitExceeded: It is too large.
        """
        if self.verdict is not Verdict.FIRST:
            raise UsageError(f"this key is {self.verdict.value}: a result is kept only with FIRST")
        self.kept = encode_result(result)

    @abstractmethod
    async def begin(self) -> Self:
        """Claim the key if it is free.

        Raises:
            Exception: Any error of the guard's library; nothing was done.
        """

    @abstractmethod
    async def end(self, error: BaseException | None) -> None:
        """Record the key as done, or free it after an error.

        Raises:
            OutcomeUnknown: The work may be done or not; the next attempt will know.
            LeaseLost: The work is done, but another attempt may do it again.
            Exception: The work was not committed; nothing of it remains.
        """

    def is_undone_for_others(self, error: Exception) -> bool:
        """True if the database rolled the work back in favour of another transaction, because of a
        deadlock or a serialization failure. An immediate retry then makes sense.
        """
        return failure(error) is Failure.RETRY

    def abandon(self) -> None:
        """Leave the state that a killed process leaves; for tests, which then exit the block."""
        self.is_abandoned = True


class Guard(Protocol[K_contra, S]):
    """Knows which keys are done."""

    @property
    def is_blocking(self) -> bool:
        """True if its attempts use ``with``; otherwise they use ``async with``."""
        ...

    def attempt(self, key: K_contra, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """An attempt, to be entered once.

        Args:
            key: Identifies the work.
            scope: The namespace of the key: the same key in another scope is different work.
            payload: The data that came with the key: a different payload under the same key is a
                conflict. Without a payload nothing is compared.

        Raises:
            UsageError: The key is invalid.
        """
        ...


class SessionGuard(Guard[K_contra, S], Protocol[K_contra, S]):
    """A guard that gives the function a session for its work."""

    @property
    def has_session(self) -> Literal[True]:
        """Always true."""
        ...


class PlainGuard(Guard[K_contra, None], Protocol[K_contra]):
    """A guard outside the transaction of the work."""

    @property
    def has_session(self) -> Literal[False]:
        """Always false."""
        ...


@dataclass(frozen=True, slots=True)
class Guarded:
    """A function and its guard; the ``__idempotent__`` attribute of a decorated function."""

    function: Callable[..., Any]
    guard: Any
    key: Callable[..., Any]
    payload: Callable[..., Payload] | None
    scope: str
    keeps_result: bool
    is_method: bool
    """Whether the first argument of a call is a method's ``self``, which is not part of the work.
    """

    def under(self, guard: Any) -> Callable[..., Any]:
        """The same function under another guard."""
        return _decorate(replace(self, guard=guard))

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attempt[Any]:
        """An attempt at one call."""
        given = args[1:] if self.is_method else args
        key, payload = self.key(*given, **kwargs), self._payload(given, kwargs)
        attempt: Attempt[Any] = self.guard.attempt(key, scope=self.scope, payload=payload)
        return attempt

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
        if self.payload is not None:
            payload = self.payload(*args, **kwargs)
            if payload is None or isinstance(payload, _PAYLOADS):
                return payload
            kind = type(payload).__name__
            raise UsageError(f"payload= of {self.scope} must return bytes or text, not a {kind}")
        handled = HANDLED_BODY.get()
        if handled is not None and handled[0] is self:
            return handled[1]
        bodies = (getattr(one, "body", None) for one in args)
        return next((body for body in bodies if isinstance(body, _PAYLOADS)), None)

    def arguments(self, attempt: Attempt[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments of the function."""
        if not self.guard.has_session:
            return args
        if self.is_method:
            return (args[0], attempt.session, *args[1:])
        return (attempt.session, *args)

    def accept(self, attempt: Attempt[Any], result: Any) -> None:
        """Handle the function's result before the attempt ends."""
        if result is Later:
            result = Later()  # Consumers accept the class, too.
        if isinstance(result, Later):
            # The database undoes the whole batch, so it is delivered again from its first message.
            raise _Postponed(replace(result, first=0))
        if self.keeps_result:
            attempt.keep(result)

    def earlier_result(self, attempt: Attempt[Any]) -> Any:
        """The result or the error of a call whose key is done, in progress or in conflict."""
        if attempt.verdict is Verdict.DONE:
            return attempt.result
        if attempt.verdict is Verdict.CONFLICT:
            raise KeyConflict(f"{self.scope} has used this key before, with another payload")
        raise KeyInProgress(f"another call of {self.scope} is at work on this key")


class _Postponed(Exception):
    """The function asked to be called again later, so its work is rolled back."""

    def __init__(self, later: Later) -> None:
        super().__init__(later)
        self.later = later


class _SessionDecorator(Protocol[S_co]):
    """Decorates functions that begin with a session, and methods with one after ``self``."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[S_co, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a method's object is not a session
        self, function: Callable[Concatenate[Owner, S_co, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[S_co, P], R], /) -> Callable[P, R | None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, S_co, P], R], /
    ) -> Callable[Concatenate[Owner, P], R | None]: ...


class _PlainDecorator(Protocol):
    """Decorates a function without a session."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def idempotent(
    guard: SessionGuard[K, S],
    *,
    key: Callable[..., K],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> _SessionDecorator[S]: ...
@overload
def idempotent(
    guard: PlainGuard[K],
    *,
    key: Callable[..., K],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> _PlainDecorator: ...
def idempotent(
    guard: Any,
    *,
    key: Callable[..., Any],
    payload: Callable[..., Payload] | None = None,
    scope: str | None = None,
    keeps_result: bool | None = None,
) -> Any:
    """Run a function once per key, however often it is called; a decorator.

    The function runs only if the key is new. If the guard has a session, the function receives it
    as its first argument, a method after ``self``; ``key`` and ``payload`` receive neither.
    A repeated call returns the stored result, or ``None``. When the decorated function returns,
    everything is committed, so a message may be acknowledged. A function that returns
    :class:`txmq.Later` counts as not called: its key stays free, and a whole batch is delivered
    again.

    It works for any caller: consumers of txmq, consumers of other libraries, your own code. Put
    this decorator directly on the function, and the decorator that registers it above.

    Args:
        guard: Knows which keys are done.
        key: Returns the key; called with the arguments of the call, without the session.
        payload: Returns the data that came with the key, as bytes or text; called with the same
            arguments. By default it is the body of the message that a consumer passes to the
            function, even if the function takes the decoded body, or else the ``body`` of an
            argument that has one. A different payload under the same key is refused.
        scope: The namespace of the key; by default the function's name with its module. Set it if
            the function may be renamed while messages can still be redelivered, or if the function
            has no usable name: a lambda, a partial, an object, ``_``.
        keeps_result: Store the function's result for repeated calls. By default the guard decides:
            a :class:`~txmq.idempotent.token.TokenGuard` stores it.

    Raises:
        ConfigError: The guard, the key or the payload does not fit the function, or a scope is
            needed.
        UsageError: From a call: ``payload`` returned neither bytes nor text.
        KeyInProgress: From a call: another attempt is at work on the key. Consumers of txmq deliver
            the message again later.
        KeyConflict: From a call: the key was used for another payload. Consumers of txmq send the
            message to the dead letters.
        OutcomeUnknown: From a call: the work may be done or not; call again.
        Exception: From a call: any error of the function or the guard's library; nothing was done.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_fit(function, guard)
        chosen_scope = _scope_of(function) if scope is None else scope
        keeps = _keeps(function, guard, keeps_result)
        signature = _signature_of(function)
        is_method = signature is not None and object_parameter(signature) is not None
        if signature is not None:
            taken = _taken(signature, hidden=int(is_method) + int(guard.has_session))
            for part, made_by in (("key", key), ("payload", payload)):
                _check_part(_name_of(function), taken, part, made_by)
        return _decorate(Guarded(function, guard, key, payload, chosen_scope, keeps, is_method))

    return decorate


def _decorate(guarded: Guarded) -> Callable[..., Any]:
    wrap = _async_call if is_async(guarded.function) else _blocking_call
    call = functools.wraps(guarded.function)(wrap(guarded))
    vars(call)["__idempotent__"] = guarded
    if guarded.guard.has_session:
        # Frameworks inspect the parameters; hide the session, which the guard supplies.
        signature = signature_of(guarded.function)
        others = list(signature.parameters.values())
        place = 1 if guarded.is_method else 0
        session = others[place]
        if session.kind is not inspect.Parameter.VAR_POSITIONAL:
            del others[place]  # Otherwise it takes the session and all other arguments.
        vars(call)["__signature__"] = signature.replace(parameters=others)
        # Take the hints from the signature, not from call.__annotations__: here, annotations that
        # cannot be evaluated stay references.
        hints = {one.name: one.annotation for one in others if one is not session}
        hints["return"] = signature.return_annotation
        call.__annotations__ = {
            name: hint for name, hint in hints.items() if hint is not signature.empty
        }
    return call


def _blocking_call(guarded: Guarded) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(ATTEMPTS_MAX)):
            attempt = guarded.attempt(args, kwargs)
            try:
                with attempt:
                    if attempt.verdict is not Verdict.FIRST:
                        return guarded.earlier_result(attempt)
                    result = guarded.function(*guarded.arguments(attempt, args), **kwargs)
                    if inspect.isawaitable(result):
                        _refuse_awaitable(result)
                    guarded.accept(attempt, result)
            except _Postponed as postponed:
                return postponed.later
            except Exception as error:
                if not _may_retry(attempt, error, left):
                    raise
            else:
                return result
        raise AssertionError("the last attempt returns or raises")

    return call


def _async_call(guarded: Guarded) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        for left in reversed(range(ATTEMPTS_MAX)):
            attempt = guarded.attempt(args, kwargs)
            try:
                async with attempt:
                    if attempt.verdict is not Verdict.FIRST:
                        return guarded.earlier_result(attempt)
                    result = await guarded.function(*guarded.arguments(attempt, args), **kwargs)
                    guarded.accept(attempt, result)
            except _Postponed as postponed:
                return postponed.later
            except Exception as error:
                if not _may_retry(attempt, error, left):
                    raise
            else:
                return result
        raise AssertionError("the last attempt returns or raises")

    return call


def _may_retry(attempt: Attempt[Any], error: Exception, left: int) -> bool:
    if not left or not attempt.is_undone_for_others(error):
        return False
    log.info("the database undid the work, trying again at once: %s", error)
    return True


def _refuse_awaitable(result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()
    raise UsageError("a plain function returned an awaitable, so its work was not done")


def _check_fit(function: Callable[..., Any], guard: Any) -> None:
    name = _name_of(function)
    if not callable(getattr(guard, "attempt", None)):
        raise ConfigError(f"{guard!r} is not a guard: it has no attempt()")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name} is a generator function: calling it would do no work")
    if is_async(function) is guard.is_blocking:
        wanted = (
            "it is async, so use an asyncio source, such as an AsyncEngine or a redis.asyncio.Redis"
            if guard.is_blocking
            else "it blocks, so use a blocking source, such as an Engine or a redis.Redis"
        )
        raise ConfigError(f"{name} needs a guard over another source: {wanted}")
    if guard.has_session:
        signature = signature_of(function)
        owner = object_parameter(signature)
        if len(signature.parameters) < (1 if owner is None else 2):
            place = "first parameter" if owner is None else f"parameter after {owner.name}"
            raise ConfigError(f"{name} takes no session: add a {place}, the guard passes one")


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return signature_of(function)
    except ValueError:
        return None  # Some built-in functions have no signature.


def _taken(signature: inspect.Signature, *, hidden: int) -> inspect.Signature:
    """The parameters that callers pass: all after the ``hidden`` ones, unless ``*args`` takes
    those.
    """
    given = list(signature.parameters.values())
    while hidden and given[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del given[0]
        hidden -= 1
    return signature.replace(parameters=given, return_annotation=signature.empty)


def _check_part(
    name: str, taken: inspect.Signature, part: str, made_by: Callable[..., Any] | None
) -> None:
    """Refuse a key or payload that fits no call of the function."""
    if made_by is None:
        return
    if not callable(made_by):
        raise ConfigError(
            f"the {part} of {name} must be a function of its arguments, not {made_by!r}"
        )
    wanted = _signature_of(made_by)
    if wanted is not None and not _fits_a_call(wanted, taken):
        raise ConfigError(
            f"{name} is called with {_plain(taken)}; the function of its {part} receives the same "
            f"arguments, but takes {_plain(wanted)}"
        )


def _fits_a_call(wanted: inspect.Signature, taken: inspect.Signature) -> bool:
    """Whether some call that matches ``taken`` also matches ``wanted``."""
    parameters = taken.parameters.values()
    if any(one.kind in _OPEN for one in parameters):
        return True  # It takes any number of arguments.
    named = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    placed = [one for one in parameters if one not in named]
    required = sum(one.default is one.empty for one in placed)
    names = {one.name: None for one in named if one.default is one.empty}
    calls = [([None] * count, names) for count in range(required, len(placed) + 1)]
    calls.append(([], names | {one.name: None for one in placed}))
    return any(_takes(wanted, args, kwargs) for args, kwargs in calls)


def _takes(signature: inspect.Signature, args: list[None], kwargs: dict[str, None]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _plain(signature: inspect.Signature) -> str:
    """A signature as an error shows it, without annotations."""
    parameters = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _keeps(function: Callable[..., Any], guard: Any, wanted: bool | None) -> bool:
    # keeps_result of a guard: None leaves it to the decorator, False means it cannot store any.
    default = getattr(guard, "keeps_result", None)
    if wanted and default is False:
        raise ConfigError(
            f"{_name_of(function)} keeps its result, but its guard cannot store results"
        )
    return bool(default) if wanted is None else wanted


def _scope_of(function: Callable[..., Any]) -> str:
    # Two functions that share a scope by accident would skip each other's work.
    if getattr(function, "__name__", "_") in {"<lambda>", "_"}:
        raise ConfigError(f"{_name_of(function)} has no name of its own: pass a scope")
    return _name_of(function)


def _name_of(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module in {"__main__", "__mp_main__"}:
        module = _program(module)
    return f"{module}.{name or type(function).__qualname__}"


def _program(module: str) -> str:
    """A program's name, the same whether it is run, imported, or started by multiprocessing."""
    main = sys.modules.get(module)
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name).removesuffix(".__main__")
    return PurePath(getattr(main, "__file__", None) or module).stem


def check_text(text: object, what: str = "key") -> str:
    """Return a key or a scope if it is valid.

    Raises:
        UsageError: It is not a printable text.
        LimitExceeded: It is too long.
    """
    # MySQL ignores spaces at the end when it compares texts.
    if not isinstance(text, str) or not text.isprintable() or text.endswith(" "):
        raise UsageError(
            f"{text!r} is not a valid {what}: use a text of printable characters that does not end "
            "in a space"
        )
    if not text and what == "key":
        raise UsageError("an empty text is not a valid key")
    if len(text) > KEY_CHARS_MAX:
        raise LimitExceeded(f"the length of a {what}", KEY_CHARS_MAX, len(text))
    return text


def redelivery_horizon(
    *,
    kept: DurationLike = 72 * 3600.0,
    retry_time: DurationLike = 4 * 3600.0 + 46 * 60.0,
    longest_stop: DurationLike = 24 * 3600.0,
) -> float:
    """The longest time between the handling of a message and its next delivery; with the defaults
    four days and five hours.

    A message can return while its broker keeps it (``kept``, a broker's ``fileReservedTime``):
    an operator resets an offset, a new consumer group starts, a dead letter is sent again. Its last
    retry comes ``retry_time`` later (a group's 16 retries). A consumer that holds it may also be
    stopped for ``longest_stop``.
    """
    return (
        seconds("kept", kept)
        + seconds("retry_time", retry_time)
        + seconds("longest_stop", longest_stop)
    )


class Verdict(Enum):
    """The state of a key's work."""

    FIRST = "first"
    """The key is new: this attempt does the work."""
    IN_PROGRESS = "in progress"
    """Another attempt is at work; whether it will succeed is not known yet."""
    DONE = "done"
    """The work was done before."""
    CONFLICT = "conflict"
    """The same key was used for another payload."""


class KeyState(NamedTuple):
    """A verdict, and the result that was stored with the key, encoded."""

    verdict: Verdict
    result: str | None = None
    fingerprint: str = ""


def judge(ours: str, theirs: str, result: str | None) -> KeyState:
    """Compare the fingerprints of an attempt and of stored work; an empty one matches any."""
    if ours and theirs and ours != theirs:
        return KeyState(Verdict.CONFLICT)
    return KeyState(Verdict.DONE, result, theirs)


def fingerprint(payload: bytes | bytearray | memoryview | str | None) -> str:
    """A hash of the payload in 32 characters; empty for no payload."""
    if payload is None:
        return ""
    data = payload.encode(errors="surrogatepass") if isinstance(payload, str) else payload
    return blake2b(data, digest_size=16).hexdigest()


def encode_result(result: object) -> str:
    """The text stored for a result.

    Raises:
        UsageError: JSON cannot carry the result.
        LimitExceeded: The result is too large.
    """
    try:
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise UsageError(f"a stored result must be a value JSON can represent: {error}") from error
    if size > STORED_RESULT_BYTES_MAX:
        raise LimitExceeded("a stored result in bytes", STORED_RESULT_BYTES_MAX, size)
    return text


def decode_result(stored: str | None) -> object:
    """A stored result; ``None`` where nothing was stored."""
    return None if stored is None else json.loads(stored)
