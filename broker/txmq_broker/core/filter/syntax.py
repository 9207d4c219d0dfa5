"""The tree of a condition. Shapes that can be true, false or unknown are :data:`ConditionNode`."""

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
    """Java's types of numbers: by that of a constant a property is read."""

    INT = "a whole number of 32 bits"
    LONG = "a whole number of 64 bits"
    DOUBLE = "a floating-point number"


class PropertyName(NamedTuple):
    """What a message has under a name: a text, or nothing."""

    name: str


class Number(NamedTuple):
    """A number as it was written."""

    kind: NumberKind
    value: int | float


class Text(NamedTuple):
    """What stood in quotes."""

    value: str


class Truth(NamedTuple):
    """TRUE, FALSE, or NULL."""

    value: bool | None


class Negative(NamedTuple):
    """A minus before something; only numbers have a negative, for anything else it is NULL."""

    of: Node


class Flag(NamedTuple):
    """A property in the place of a condition. It is a text and so never true: false, or unknown."""

    name: str


class Comparison(NamedTuple):
    """One thing before or behind another: ``<``, ``<=``, ``>``, ``>=``."""

    sign: str
    left: Node
    right: Node


class Between(NamedTuple):
    """Not below one thing and not above another."""

    of: Node
    low: Node
    high: Node


class Equal(NamedTuple):
    """One thing the same as another; with NULL on the right it is IS NULL."""

    left: Node
    right: Node


class Membership(NamedTuple):
    """A property that is one of several texts."""

    name: str
    texts: frozenset[str]
    is_denied: bool


class TextSearch(NamedTuple):
    """A text that contains, begins with or ends with another."""

    verb: str
    of: Node
    sought: str
    is_denied: bool


class Not(NamedTuple):
    """The opposite."""

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
