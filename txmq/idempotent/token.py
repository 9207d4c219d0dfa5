"""A guard for calls instead of messages: the caller fetches a token first and sends it along.

A token contains its time of issue; with a secret it also proves who issued it. So nothing is stored
until a token is used. A token too old to be remembered is refused, so no call is executed twice.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from txmq.errors import ConfigError, TokenRefused, UsageError
from txmq.idempotent.guard import Attempt, Payload, PlainGuard, SessionGuard
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy
from txmq.settings.units import DurationLike, seconds

__all__ = ["TokenGuard"]

S = TypeVar("S")
H = TypeVar("H", bound=bool)

_TIME_BYTES: Final = 6
_CHANCE_BYTES: Final = 16
_BODY_BYTES: Final = _TIME_BYTES + _CHANCE_BYTES
SECRET_BYTES_MIN: Final = 16

CLOCKS_APART_MS: Final = 60_000
"""The maximum clock difference between processes that share a secret."""


class TokenOptions(TypedDict, total=False):
    """The options of a :class:`TokenGuard`."""

    secret: bytes | None
    good_for: DurationLike
    clock: Clock | None
    entropy: Entropy | None


class TokenGuard(Generic[S, H]):
    """A guard whose keys are issued tokens. A form, or the first of two requests, fetches a token;
    the call that carries it is executed once, however often it is sent. A repeated call receives
    the first result: results are stored unless the decorator says otherwise.

    The same token with a different payload is a conflict; during the work it is in progress. The
    inner guard alone determines which keys can be lost. It must remember keys for longer than
    ``good_for`` plus a minute, so that a token expires before it is forgotten.

    Args:
        inner: The guard that knows which keys are done, and stores results.
        secret: Accept only tokens issued with this secret: 16 or more unguessable bytes, the same
            in all processes that accept them. Without a secret, callers can forge tokens with any
            time of issue.
        good_for: How long after its issue a token is accepted, in the first or a repeated call.
        clock: Gives the time.
        entropy: Gives randomness.

    Raises:
        ConfigError: The secret is too short, or no token would ever be accepted.
    """

    keeps_result: Literal[True] = True

    @overload
    def __init__(
        self: TokenGuard[S, Literal[True]],
        inner: SessionGuard[str, S],
        **options: Unpack[TokenOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenGuard[None, Literal[False]],
        inner: PlainGuard[str],
        **options: Unpack[TokenOptions],
    ) -> None: ...
    def __init__(
        self,
        inner: Any,
        *,
        secret: bytes | None = None,
        good_for: DurationLike = 3600.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if secret is not None and len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(f"a secret needs {SECRET_BYTES_MIN} bytes or more, not {len(secret)}")
        self._inner = inner
        self._secret = secret
        self._good_for_ms = int(seconds("good_for", good_for, least=0.001) * 1000)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()

    @property
    def has_session(self) -> H:
        """True if the inner guard has a session."""
        found: H = self._inner.has_session
        return found

    @property
    def is_blocking(self) -> bool:
        """True if its attempts use ``with``; otherwise they use ``async with``."""
        is_blocking: bool = self._inner.is_blocking
        return is_blocking

    def issue(self) -> str:
        """A new token, in characters that URLs and headers can carry; nothing is stored."""
        issued = self._clock.wall_ms().to_bytes(_TIME_BYTES)
        return self._encode(issued + self._entropy.token(_CHANCE_BYTES))

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            TokenRefused: The token was not issued here, or is too old.
            UsageError: The token is not a text.
        """
        self.check(key)
        attempt: Attempt[S] = self._inner.attempt(key, scope=scope, payload=payload)
        return attempt

    def check(self, token: str) -> None:
        """Check that a token is valid, without asking the guard whether it was used.

        Raises:
            TokenRefused: The token was not issued here, or is too old.
            UsageError: The token is not a text.
        """
        if not isinstance(token, str):
            raise UsageError(f"a token is a text, not a {type(token).__name__}")
        body = _decode(token)
        # Base64 has several spellings of the same bytes; only one is a token, so it is one key.
        if body is None or not hmac.compare_digest(self._encode(body).encode(), token.encode()):
            raise TokenRefused("this token was not issued here")
        age_ms = self._clock.wall_ms() - int.from_bytes(body[:_TIME_BYTES])
        if age_ms > self._good_for_ms:
            raise TokenRefused(f"this token is {age_ms // 1000} s old; fetch another")
        if age_ms < -CLOCKS_APART_MS:
            raise TokenRefused("this token was issued in the future: compare the clocks")

    def _encode(self, body: bytes) -> str:
        proof = b"" if self._secret is None else hmac.digest(self._secret, body, "sha256")
        return urlsafe_b64encode(body + proof).rstrip(b"=").decode()


def _decode(token: str) -> bytes | None:
    try:
        # Surplus padding does no harm.
        body = urlsafe_b64decode(token.encode("ascii") + b"====")[:_BODY_BYTES]
    except (Error, ValueError):
        return None
    return body if len(body) == _BODY_BYTES else None
