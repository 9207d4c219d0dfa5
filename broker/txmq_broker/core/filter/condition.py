"""A condition as functions: made once, asked for every message.

A function takes the text of a message's properties, with a separator before and behind it, and
says true, false or, with ``None``, unknown. Each finds its own property in the text: a condition is
mostly decided by one or two, and a message may have dozens. What is asked most, a property beside a
constant, has functions of its own; everything else goes through :func:`values.equal` and
:func:`values.order`.
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
_SHORT: Final = 10  # Fewer digits are a number of 32 bits.
_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Condition:
    """An expression that was read."""

    __slots__ = ("_test", "expression", "operands")

    def __init__(self, expression: str) -> None:
        root, self.operands = parse(expression)
        self.expression = expression
        self._test = _test_of(root)

    def admits(self, text: str) -> bool:
        """Whether a message is wanted that has these properties.

        One of which nothing can be said is not: a property is no number where one is compared.
        """
        try:
            return self._test(f"\x02{text}\x02") is True
        except ValueError:
            return False


def _test_of(node: ConditionNode) -> Test:  # noqa: PLR0911 - one for each shape of the tree
    if isinstance(node, And):
        return _every([_test_of(part) for part in node.parts])
    if isinstance(node, Or):
        return _either([_test_of(part) for part in node.parts])
    if isinstance(node, Not):
        return _opposite(_test_of(node.of))
    if isinstance(node, Comparison):
        return _ordered(node)
    if isinstance(node, Between):
        return _between(node)
    if isinstance(node, Equal):
        return _equal(node)
    if isinstance(node, Membership):
        return _member(node)
    if isinstance(node, TextSearch):
        return _searched(node)
    if isinstance(node, Flag):
        read = _reader(node.name)
        return lambda text: None if read(text) is None else False
    known = node.value
    return lambda text: known  # noqa: ARG005


def _every(tests: list[Test]) -> Test:
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


def _either(tests: list[Test]) -> Test:
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
        # A pair without a value counts for nothing, and one before it may have one.
        return text[at : text.find(_PAIR_END, at)] or properties.find(text, name)

    return read


def _member(node: Membership) -> Test:
    read, texts, is_denied = _reader(node.name), node.texts, node.is_denied

    def test(text: str) -> bool | None:
        value = read(text)
        return None if value is None else (value in texts) is not is_denied

    return test


def _searched(node: TextSearch) -> Test:
    if not node.sought:
        return lambda text: False  # noqa: ARG005
    value_of, search = _value_of(node.of), _SEARCHES[node.verb]
    sought, is_denied = node.sought, node.is_denied

    def test(text: str) -> bool | None:
        value = value_of(text)
        # Not NULL but false, and so is the opposite: neither contains a text what is none.
        return isinstance(value, str) and search(value, sought) is not is_denied

    return test


# Comparisons


def _constant(node: Node) -> Number | None:
    """A number that stands in the expression, with its signs."""
    if isinstance(node, Number):
        return node
    if isinstance(node, Negative):
        inner = _constant(node.of)
        return None if inner is None else Number(inner.kind, -inner.value)
    return None


def _on_number(name: str, kind: NumberKind, judge: Callable[[float], bool]) -> Test:
    """Look at a property that is a number."""
    mark = f"{_PAIR_END}{name}\x01"
    size, number_of = len(mark), READERS[kind]

    def test(text: str) -> bool | None:
        at = text.rfind(mark)
        if at < 0:
            return None
        at += size  # As in _reader; calling that would cost a sixth of the whole.
        value = text[at : text.find(_PAIR_END, at)] or properties.find(text, name)
        if value is None:
            return None
        if len(value) < _SHORT and value.isdecimal() and value.isascii():
            return judge(int(value))  # Which it nearly always is; also as a double it is the same.
        number = number_of(value)
        # NaN is greater than everything; a constant is never 0 and never infinite.
        return judge(math.inf if number != number else number)  # noqa: PLR0124

    return test


def _ordered(node: Comparison) -> Test:
    number = _constant(node.right)
    if isinstance(node.left, PropertyName) and number is not None:
        judge = partial(_MIRRORED[node.sign], number.value)
        return _on_number(node.left.name, number.kind, judge)
    left_of, right_of, compare = _value_of(node.left), _value_of(node.right), _ORDERS[node.sign]

    def test(text: str) -> bool | None:
        left = left_of(text)
        if left is None:
            return None  # And the right one is not looked at, whatever is wrong with it.
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
        return _every([_ordered(part) for part in parts])
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
    """The negative of what is no number; still, what nothing can be said of stays so."""

    def read(text: str) -> Value:
        value_of(text)
        return None

    return read
