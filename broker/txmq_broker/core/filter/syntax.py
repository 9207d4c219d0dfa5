"""The tree of a condition. A :data:`ConditionNode` can be true, false or unknown."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

__all__ = [
    "And",
    "Between",
    "Comparison",
    "ConditionNode",
    "Equal",
    "Flag",
    "Membership",
    "Negative",
    "Node",
    "Not",
    "Number",
    "NumberKind",
    "Or",
    "PropertyName",
    "Text",
    "TextSearch",
    "Truth",
]


class NumberKind(Enum):
    """Java's number types; a constant's type says how to read a compared property."""

    INT = "a whole number of 32 bits"
    LONG = "a whole number of 64 bits"
    DOUBLE = "a floating-point number"


class PropertyName(NamedTuple):
    """The name of a property; its value is a text or NULL."""

    name: str


class Number(NamedTuple):
    """A constant number."""

    kind: NumberKind
    value: int | float


class Text(NamedTuple):
    """A constant text."""

    value: str


class Truth(NamedTuple):
    """TRUE, FALSE, or NULL."""

    value: bool | None


class Negative(NamedTuple):
    """A minus sign; the negative of a non-number is NULL."""

    of: Node


class Flag(NamedTuple):
    """A property used as a condition. As a text it is never true: false, or unknown."""

    name: str


class Comparison(NamedTuple):
    """``<``, ``<=``, ``>`` or ``>=``."""

    sign: str
    left: Node
    right: Node


class Between(NamedTuple):
    """BETWEEN."""

    of: Node
    low: Node
    high: Node


class Equal(NamedTuple):
    """``=``; with NULL on the right it is IS NULL."""

    left: Node
    right: Node


class Membership(NamedTuple):
    """IN: a property equals one of several texts."""

    name: str
    texts: frozenset[str]
    is_denied: bool


class TextSearch(NamedTuple):
    """CONTAINS, STARTSWITH or ENDSWITH."""

    verb: str
    of: Node
    wanted: str
    is_denied: bool


class Not(NamedTuple):
    """NOT."""

    of: ConditionNode


class And(NamedTuple):
    """AND."""

    parts: tuple[ConditionNode, ...]


class Or(NamedTuple):
    """OR."""

    parts: tuple[ConditionNode, ...]


ConditionNode: TypeAlias = (
    Truth | Flag | Comparison | Between | Equal | Membership | TextSearch | Not | And | Or
)
Node: TypeAlias = ConditionNode | PropertyName | Number | Text | Negative
