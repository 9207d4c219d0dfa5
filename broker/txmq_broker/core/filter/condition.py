"""A condition compiled to functions: once for each condition, called for every message.

A function takes the text of a message's properties, with a separator before and after it, and
returns true, false or ``None`` for unknown. Each function searches the text for its property,
because one or two of dozens of properties usually decide. The most frequent case, a property and a
constant, has specialized functions; the others use :func:`values.equal` and :func:`values.order`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from txmq.protocol import properties
from txmq_broker.core.filter.parser import parse
from txmq_broker.core.filter.syntax import (
    And,
    Between,
    Comparison,
    ConditionNode,
    Equal,
    Flag,
    Membership,
    Negative,
    Node,
    Not,
    Number,
    NumberKind,
    Or,
    PropertyName,
    Text,
    TextSearch,
    Truth,
)
from txmq_broker.core.filter.values import READERS, Value, equal, order, truth

__all__ = ["Condition"]

Test: TypeAlias = Callable[[str], bool | None]
Reader: TypeAlias = Callable[[str], str | None]

_PAIR_END: Final = "\x02"
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"<": _ORDERS[">"], "<=": _ORDERS[">="], ">": _ORDERS["<"], ">=": _ORDERS["<="]}
_SHORT: Final = 10  # A number with fewer digits fits 32 bits.
_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Condition:
    """A compiled expression."""

    __slots__ = ("_test", "expression", "operands")

    def __init__(self, expression: str) -> None:
        root, self.operands = parse(expression)
        self.expression = expression
        self._test = _test_of(root)

    def admits(self, text: str) -> bool:
        """Return true if the condition is true for these properties.

        False if it compares a number with a property that is not a number.
        """
        try:
            return self._test(f"\x02{text}\x02") is True
        except ValueError:
            return False


def _test_of(node: ConditionNode) -> Test:  # noqa: PLR0911 - one for each node type
    if isinstance(node, And):
        return _and([_test_of(part) for part in node.parts])
    if isinstance(node, Or):
        return _or([_test_of(part) for part in node.parts])
    if isinstance(node, Not):
        return _opposite(_test_of(node.of))
    if isinstance(node, Comparison):
        return _comparison(node)
    if isinstance(node, Between):
        return _between(node)
    if isinstance(node, Equal):
        return _equal(node)
    if isinstance(node, Membership):
        return _membership(node)
    if isinstance(node, TextSearch):
        return _search(node)
    if isinstance(node, Flag):
        read = _reader(node.name)
        return lambda text: None if read(text) is None else False
    known = node.value
    return lambda text: known  # noqa: ARG005


def _and(tests: list[Test]) -> Test:
    def test(text: str) -> bool | None:
        answer: bool | None = True
        for inner in tests:
            one = inner(text)
            if one is False:
                return False
            if one is None:
                answer = None
        return answer

    return test


def _or(tests: list[Test]) -> Test:
    def test(text: str) -> bool | None:
        answer: bool | None = False
        for inner in tests:
            one = inner(text)
            if one is True:
                return True
            if one is None:
                answer = None
        return answer

    return test


def _opposite(inner: Test) -> Test:
    def test(text: str) -> bool | None:
        one = inner(text)
        return None if one is None else not one

    return test


# Properties


def _reader(name: str) -> Reader:
    mark = f"{_PAIR_END}{name}\x01"
    size = len(mark)

    def read(text: str) -> str | None:
        at = text.rfind(mark)
        if at < 0:
            return None
        at += size
        # A pair without a value is ignored; an earlier pair of the same name may have one.
        return text[at : text.find(_PAIR_END, at)] or properties.find(text, name)

    return read


def _membership(node: Membership) -> Test:
    read, texts, is_denied = _reader(node.name), node.texts, node.is_denied

    def test(text: str) -> bool | None:
        value = read(text)
        return None if value is None else (value in texts) is not is_denied

    return test


def _search(node: TextSearch) -> Test:
    if not node.wanted:
        return lambda text: False  # noqa: ARG005
    value_of, search = _value_of(node.of), _SEARCHES[node.verb]
    wanted, is_denied = node.wanted, node.is_denied

    def test(text: str) -> bool | None:
        value = value_of(text)
        # For a missing property the result is false, not NULL, with and without NOT.
        return isinstance(value, str) and search(value, wanted) is not is_denied

    return test


# Comparisons


def _constant(node: Node) -> Number | None:
    """A constant number in the expression, with its signs."""
    if isinstance(node, Number):
        return node
    if isinstance(node, Negative):
        inner = _constant(node.of)
        return None if inner is None else Number(inner.kind, -inner.value)
    return None


def _on_number(name: str, kind: NumberKind, judge: Callable[[float], bool]) -> Test:
    """A test of a numeric property."""
    mark = f"{_PAIR_END}{name}\x01"
    size, number_of = len(mark), READERS[kind]

    def test(text: str) -> bool | None:
        at = text.rfind(mark)
        if at < 0:
            return None
        at += size  # _reader inlined: its call would cost a sixth of the time.
        value = text[at : text.find(_PAIR_END, at)] or properties.find(text, name)
        if value is None:
            return None
        if len(value) < _SHORT and value.isdecimal() and value.isascii():
            return judge(int(value))  # The usual case; a double would have the same value.
        number = number_of(value)
        # In Java NaN is greater than everything; a double constant is never 0 or infinite.
        return judge(math.inf if number != number else number)  # noqa: PLR0124

    return test


def _comparison(node: Comparison) -> Test:
    number = _constant(node.right)
    if isinstance(node.left, PropertyName) and number is not None:
        judge = partial(_MIRRORED[node.sign], number.value)
        return _on_number(node.left.name, number.kind, judge)
    left_of, right_of, compare = _value_of(node.left), _value_of(node.right), _ORDERS[node.sign]

    def test(text: str) -> bool | None:
        left = left_of(text)
        if left is None:
            return None  # The right side is not read, even if it is invalid.
        right = right_of(text)
        if right is None:
            return None
        assert not isinstance(left, bool)
        assert not isinstance(right, bool)
        return compare(order(left, right), 0)

    return test


def _between(node: Between) -> Test:
    low, high = _constant(node.low), _constant(node.high)
    if (
        not isinstance(node.of, PropertyName)
        or low is None
        or high is None
        or low.kind != high.kind
    ):
        parts = (Comparison(">=", node.of, node.low), Comparison("<=", node.of, node.high))
        return _and([_comparison(part) for part in parts])
    least, most = low.value, high.value
    return _on_number(node.of.name, low.kind, lambda number: least <= number <= most)


def _equal(node: Equal) -> Test:
    if not isinstance(node.left, PropertyName):
        return _equal_values(node.left, node.right)
    number = _constant(node.right)
    if number is not None:
        return _on_number(node.left.name, number.kind, partial(operator.eq, number.value))
    read = _reader(node.left.name)
    if isinstance(node.right, Text):
        wanted = node.right.value
        return lambda text: None if (value := read(text)) is None else value == wanted
    if isinstance(node.right, Truth):
        return _equal_truth(read, node.right.value)
    return _equal_values(node.left, node.right)


def _equal_truth(read: Reader, wanted: bool | None) -> Test:
    if wanted is None:
        return lambda text: read(text) is None
    return lambda text: None if (value := read(text)) is None else truth(value) is wanted


def _equal_values(left: Node, right: Node) -> Test:
    left_of, right_of = _value_of(left), _value_of(right)
    return lambda text: equal(left_of(text), right_of(text))


def _value_of(node: Node) -> Callable[[str], Value]:
    if isinstance(node, PropertyName):
        return _reader(node.name)
    if isinstance(node, Number | Negative):
        number = _constant(node)
        if number is not None:
            return lambda text: number  # noqa: ARG005
    if isinstance(node, Text):
        known = node.value
        return lambda text: known  # noqa: ARG005
    if isinstance(node, Negative):
        return _nothing(_value_of(node.of))
    assert not isinstance(node, Number)
    return _test_of(node)


def _nothing(value_of: Callable[[str], Value]) -> Callable[[str], Value]:
    """The negative of a non-number is NULL; the value is still read, because it may be invalid."""

    def read(text: str) -> Value:
        value_of(text)
        return None

    return read
