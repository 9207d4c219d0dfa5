"""The credentials of a client, and the signature that proves them (RocketMQ's ACL 1.0).

A request carries its sender's access key and a signature: HMAC-SHA1, with the secret key, over the
values of all header fields in the order of their names, and the body. It does not cover the request
code. The secret itself never travels.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import TYPE_CHECKING, Final, Self

import msgspec

from txmq.errors import ConfigError

__all__ = [
    "ACCESS_KEY",
    "KEY_CHARS_MIN",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "Credentials",
    "SigningKey",
]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  # a name, no secret
SIGNATURE: Final = "Signature"
"""The header fields of the access key, the token and the signature."""

KEY_CHARS_MIN: Final = 7
"""The minimum length of both keys, as in RocketMQ."""

_UNSIGNED: Final = frozenset((SIGNATURE, "_UNIQUE_KEY_QUERY"))
"""Java clients add the second field after signing."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Credentials:
    """The keys that sign a client's requests.

    Raises:
        ConfigError: A key is too short, or given without its name.
    """

    access_key: str
    """The name of the account."""
    secret_key: str
    """The secret of the account; no text or log shows it."""
    security_token: str = ""
    """The token of a temporary account, which RocketMQ's clients send along."""

    if not TYPE_CHECKING:

        def __new__(cls, *keys: object, **_named: object) -> Self:
            """Refuse positional keys: nobody would notice that they are swapped."""
            if keys:
                raise ConfigError("name the keys: Credentials(access_key=..., secret_key=...)")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        """Refuse keys that RocketMQ would refuse."""
        for name in ("access_key", "secret_key"):
            key = getattr(self, name)
            if not isinstance(key, str):
                raise ConfigError(f"{name} is a text, not a value of type {type(key).__name__}")
            if len(key) < KEY_CHARS_MIN:
                raise ConfigError(f"{name} needs at least {KEY_CHARS_MIN} characters")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key=***)"

    def sign(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request, with the access key and the signature."""
        signed = {**fields, ACCESS_KEY: self.access_key}
        if self.security_token:
            signed[SECURITY_TOKEN] = self.security_token
        signed[SIGNATURE] = _signing_key(self.secret_key).sign_fields(signed, body)
        return signed


class SigningKey:
    """A secret key, prepared for many signatures: HMAC-SHA1 with both hashes already begun."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _BLOCK:
            secret = sha1(secret).digest()  # noqa: S324  # what RocketMQ's clients compute
        padded = secret.ljust(_BLOCK, b"\0")
        self._inner = sha1(padded.translate(_INNER))  # noqa: S324
        self._outer = sha1(padded.translate(_OUTER))  # noqa: S324

    def digest(self, content: bytes, body: bytes) -> bytes:
        """The raw signature of the joined values and the body."""
        # Half the time of hmac.digest, which looks up the algorithm each time.
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        inner.update(body)
        outer.update(inner.digest())
        return outer.digest()

    def sign_fields(self, fields: Mapping[str, str], body: bytes) -> str:
        """The signature of a request's fields and body."""
        return b2a_base64(self._digest_of(fields, body), newline=False).decode()

    def has_signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether this key made the signature among a request's fields."""
        try:
            given = msgspec.convert(fields.get(SIGNATURE, ""), bytes)
        except (msgspec.ValidationError, UnicodeEncodeError):  # It is not Base64.
            return False
        if len(given) != _DIGEST:  # Anybody can send junk, and hashing a long body takes time.
            return False
        # Constant time, so that the time does not reveal how much of it is right.
        return hmac.compare_digest(given, self._digest_of(fields, body))

    def _digest_of(self, fields: Mapping[str, str], body: bytes) -> bytes:
        values = [value for name, value in sorted(fields.items()) if name not in _UNSIGNED]
        return self.digest("".join(values).encode(errors="surrogatepass"), body)


_BLOCK: Final = 64
_DIGEST: Final = 20
_INNER: Final = bytes(value ^ 0x36 for value in range(256))
_OUTER: Final = bytes(value ^ 0x5C for value in range(256))


@lru_cache(maxsize=64)
def _signing_key(secret: str) -> SigningKey:
    return SigningKey(secret.encode())
