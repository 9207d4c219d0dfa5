"""The verdict of a guard on a key and its payload. Pure."""

from __future__ import annotations

import json
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from txmq.errors import LimitExceeded, UsageError
from txmq.limits import STORED_RESULT_BYTES_MAX

__all__ = ["KeyState", "Verdict", "decode_result", "encode_result", "fingerprint", "judge"]


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
