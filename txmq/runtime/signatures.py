"""Signatures of functions and methods, even if their annotations cannot be evaluated."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

__all__ = ["is_async", "object_parameter", "signature_of"]


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """The signature of a function.

    From Python 3.14 on, reading an annotation evaluates it. It may name a type that the module
    defines further down, or imports for type checkers only. Such an annotation stays a reference.

    Raises:
        ValueError: The function has no signature, like some built-in functions.
        TypeError: The object is not callable.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def is_async(function: Callable[..., object]) -> bool:
    """Whether a call must be awaited; an object may have an ``async`` ``__call__``."""
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not its presence
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def object_parameter(signature: inspect.Signature) -> inspect.Parameter | None:
    """The ``self`` or ``cls`` parameter of a method, while its class is being defined.

    A bound method no longer has it, and a function never does.
    """
    first = next(iter(signature.parameters.values()), None)
    return first if first is not None and first.name in {"self", "cls"} else None
