"""Signatures of functions, also of methods, and where annotations cannot be evaluated."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

__all__ = ["object_parameter", "signature_of"]


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


def object_parameter(signature: inspect.Signature) -> inspect.Parameter | None:
    """The parameter for a method's object, called ``self`` or ``cls``, while its class is defined.

    The method of an object has it no more, and a function never.
    """
    first = next(iter(signature.parameters.values()), None)
    return first if first is not None and first.name in {"self", "cls"} else None
