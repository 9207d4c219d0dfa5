"""Signatures of functions, also of those whose annotations cannot be evaluated."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

__all__ = ["signature_of"]


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """The signature of a function.

    From Python 3.14 on, reading an annotation evaluates it. It may name a type that the module
    defines further down, or imports for type checkers only. Such an annotation stays a reference.

    Raises:
        ValueError: It has none, as some built-in functions.
        TypeError: It is not callable.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
