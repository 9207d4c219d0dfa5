"""Record and check, for calls that are no messages: an id is given out before, and comes with them.

A token says when it was issued, and with a secret that it was issued here. So nothing is stored
until one is used, and what is too old to be known is refused, not done again.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Any, Final, Generic, Literal, TypeVar, overload

from txmq.errors import ConfigError, TokenRefused, UsageError
from txmq.idempotent.guard import Attempt, Payload, PlainGuard, SessionGuard
from txmq.runtime.clock import Clock, SystemClock
from txmq.runtime.entropy import Entropy, SystemEntropy

__all__ = ["TokenGuard"]

S = TypeVar("S")
H = TypeVar("H", bound=bool)

_TIME_BYTES: Final = 6
_CHANCE_BYTES: Final = 16
_BODY_BYTES: Final = _TIME_BYTES + _CHANCE_BYTES
SECRET_BYTES_MIN: Final = 16

CLOCKS_APART_MS: Final = 60_000
"""How far the clocks of those who share a secret may differ."""


class TokenGuard(Generic[S, H]):
    """A guard whose keys are given out: a form, or the first of two requests, fetches one, and what
    is sent with it is done once, however often it is sent. Who sends it again is told what was told
    the first time: results are kept unless the decorator says otherwise.

    The same token with another payload is a conflict, while somebody is at work on it, it is in
    progress. What is lost is what the guard inside loses, and nothing else: a token is refused
    before that guard forgets it, as long as that one keeps what is done for longer than
    ``good_for_s`` and a minute.

    Args:
        inner: The guard that knows what was done, and keeps results.
        secret: With it, only tokens are taken that were issued under it: 16 bytes or more that
            nobody can guess, the same for all who take them. Without one whoever calls can make up
            tokens, with any time in them.
        good_for_s: How long after its issue a token can be used, the first time or again.
        clock: Where the time comes from.
        entropy: Where chance comes from.

    Raises:
        ConfigError: The secret is too short, or nothing would ever be taken.
    """

    keeps_result: Literal[True] = True

    @overload
    def __init__(
        self: TokenGuard[S, Literal[True]],
        inner: SessionGuard[str, S],
        *,
        secret: bytes | None = None,
        good_for_s: float = 3600.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: TokenGuard[None, Literal[False]],
        inner: PlainGuard[str],
        *,
        secret: bytes | None = None,
        good_for_s: float = 3600.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None: ...
    def __init__(
        self,
        inner: Any,
        *,
        secret: bytes | None = None,
        good_for_s: float = 3600.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if secret is not None and len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(f"a secret has {SECRET_BYTES_MIN} bytes or more, not {len(secret)}")
        if good_for_s <= 0:
            raise ConfigError("no token would be good for anything: good_for_s is more than 0")
        self._inner = inner
        self._secret = secret
        self._good_for_ms = int(good_for_s * 1000)
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()

    @property
    def has_session(self) -> H:
        """Whether the guard inside has one."""
        found: H = self._inner.has_session
        return found

    @property
    def is_blocking(self) -> bool:
        """Whether its attempts are for ``with``, otherwise for ``async with``."""
        is_blocking: bool = self._inner.is_blocking
        return is_blocking

    def issue(self) -> str:
        """A new token, of characters that a URL and a header can carry; nothing is stored."""
        issued = self._clock.wall_ms().to_bytes(_TIME_BYTES)
        return self._written(issued + self._entropy.token(_CHANCE_BYTES))

    def attempt(self, key: str, *, scope: str = "", payload: Payload = None) -> Attempt[S]:
        """See :meth:`txmq.idempotent.guard.Guard.attempt`.

        Raises:
            TokenRefused: It was not issued here, or is too old.
            UsageError: That is no text.
        """
        self.check(key)
        attempt: Attempt[S] = self._inner.attempt(key, scope=scope, payload=payload)
        return attempt

    def check(self, token: str) -> None:
        """See that a token can be used; without asking anybody whether it was.

        Raises:
            TokenRefused: It was not issued here, or is too old.
            UsageError: That is no text.
        """
        if not isinstance(token, str):
            raise UsageError(f"a token is a text, not a {type(token).__name__}")
        body = _read(token)
        # Also what reads the same and is written otherwise is another key, and so no token.
        if body is None or not hmac.compare_digest(self._written(body).encode(), token.encode()):
            raise TokenRefused("this token was not issued here")
        age_ms = self._clock.wall_ms() - int.from_bytes(body[:_TIME_BYTES])
        if age_ms > self._good_for_ms:
            raise TokenRefused(f"this token is {age_ms // 1000} s old; fetch another")
        if age_ms < -CLOCKS_APART_MS:
            raise TokenRefused("this token was issued later than now")

    def _written(self, body: bytes) -> str:
        proof = b"" if self._secret is None else hmac.digest(self._secret, body, "sha256")
        return urlsafe_b64encode(body + proof).rstrip(b"=").decode()


def _read(token: str) -> bytes | None:
    try:
        # It has its four characters of filling whether they are needed or not.
        body = urlsafe_b64decode(token.encode("ascii") + b"====")[:_BODY_BYTES]
    except (Error, ValueError):
        return None
    return body if len(body) == _BODY_BYTES else None
