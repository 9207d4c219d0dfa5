"""What a guard says of a key, and of what came with it. Pure."""

from __future__ import annotations

import json
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from txmq.errors import LimitExceeded, UsageError
from txmq.limits import STORED_RESULT_BYTES_MAX

__all__ = ["Found", "Verdict", "decoded", "encoded", "fingerprint", "judged"]


class Verdict(Enum):
    """Whether something is to be done."""

    FIRST = "first"
    """Nobody has done it: now it is being done, here."""
    IN_PROGRESS = "in progress"
    """Somebody else is at it; whether it will be done is not known yet."""
    DONE = "done"
    """It was done before."""
    CONFLICT = "conflict"
    """Something else was done under the same key."""


class Found(NamedTuple):
    """A verdict, and what was stored with what is done, as it was stored."""

    verdict: Verdict
    result: str | None = None
    fingerprint: str = ""


def judged(ours: str, theirs: str, result: str | None) -> Found:
    """What is said of something that was done, by its fingerprint; an empty one says nothing."""
    if ours and theirs and ours != theirs:
        return Found(Verdict.CONFLICT)
    return Found(Verdict.DONE, result, theirs)


def fingerprint(payload: bytes | bytearray | memoryview | str | None) -> str:
    """By what the same payload is known: 32 characters; none for nothing."""
    if payload is None:
        return ""
    seen = payload.encode(errors="surrogatepass") if isinstance(payload, str) else payload
    return blake2b(seen, digest_size=16).hexdigest()


def encoded(result: object) -> str:
    """A result as it is stored.

    Raises:
        UsageError: JSON cannot carry it.
        LimitExceeded: It is too large.
    """
    try:
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as problem:
        raise UsageError(f"a result that is stored is what JSON can carry: {problem}") from problem
    if size > STORED_RESULT_BYTES_MAX:
        raise LimitExceeded("a stored result in bytes", STORED_RESULT_BYTES_MAX, size)
    return text


def decoded(stored: str | None) -> object:
    """A result that was stored; ``None`` where none was."""
    return None if stored is None else json.loads(stored)
