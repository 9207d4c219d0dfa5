"""The parser of conditions; it also refuses what RocketMQ refuses although its grammar allows it.

``expr := and (OR and)*``, ``and := eq (AND eq)*``, ``eq := cmp (= cmp | <> cmp | IS [NOT] NULL)*``,
``cmp := unary (< > <= >= unary | [NOT] BETWEEN | [NOT] IN | [NOT] CONTAINS ...)*``; a sign or NOT
binds tighter than all of these, so ``NOT a > 5`` compares ``NOT a``, which is refused.
RocketMQ ignores text after a complete expression; here it is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from txmq.limits import FILTER_DEPTH_MAX, FILTER_OPERANDS_MAX
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
from txmq_broker.core.filter.tokens import (
    DECIMAL,
    END,
    FLOATING,
    NAME,
    QUOTED,
    Token,
    invalid_filter,
    tokens_of,
)
from txmq_broker.core.filter.values import order

__all__ = ["Parsed", "parse"]

_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS: Final = frozenset(("<", "<=", ">", ">="))
_SEARCHES: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_DENIABLE: Final = frozenset(("BETWEEN", "IN", *_SEARCHES))
_VALUE: Final = "a property, a number, a text in single quotes, TRUE, FALSE, NULL or ("
_INT_END: Final = 1 << 31
_LONG_END: Final = 1 << 63
_DOUBLE_MIN: Final = 5e-324
_INFINITE: Final = float("inf")


class Parsed(NamedTuple):
    """A condition's tree, and its number of properties and constants."""

    root: ConditionNode
    operands: int


class Operand(NamedTuple):
    """A part of the tree, with its position in the text and its depth."""

    node: Node
    at: int
    depth: int


def parse(expression: str) -> Parsed:
    """Parse a condition.

    Raises:
        SubscriptionInvalid: It does not parse, or exceeds a limit; the text says where and why.
    """
    return Parser(expression).parse()


class Parser:
    """A recursive-descent parser of one expression."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens_of(expression)
        self._peek = next(self._tokens)
        self._open = 0
        self._operands = 0

    def parse(self) -> Parsed:
        """Parse the whole expression."""
        found = self._or()
        token = self._peek
        if token.kind != END:
            # A condition that ends early would match unwanted messages.
            raise invalid_filter(
                token.at, f"expected AND, OR, a comparison or the end, not {token}"
            )
        return Parsed(_condition(found), self._operands)

    # Tokens

    def _take(self) -> Token:
        token = self._peek
        self._peek = next(self._tokens)
        return token

    def _accept(self, kind: str) -> bool:
        if self._peek.kind != kind:
            return False
        self._take()
        return True

    def _expect(self, kind: str, what: str) -> Token:
        token = self._take()
        if token.kind != kind:
            raise invalid_filter(token.at, f"expected {what}, not {token}")
        return token

    # Conditions

    def _or(self) -> Operand:
        return self._series("OR", self._and, Or)

    def _and(self) -> Operand:
        return self._series("AND", self._equality, And)

    def _series(
        self,
        word: str,
        part: Callable[[], Operand],
        join: Callable[[tuple[ConditionNode, ...]], ConditionNode],
    ) -> Operand:
        first = part()
        if self._peek.kind != word:
            return first
        operands = [first]
        parts = [_condition(first)]
        while self._accept(word):
            operands.append(part())
            parts.append(_condition(operands[-1]))
        return _over(join(tuple(parts)), *operands)

    def _equality(self) -> Operand:
        left = self._comparison()
        while (kind := self._peek.kind) in {"=", "<>", "IS"}:
            self._take()
            if kind == "IS":
                is_denied = self._accept("NOT")
                self._expect("NULL", "NULL" if is_denied else "NULL or NOT NULL")
                left = _over(_unless(is_denied, Equal(left.node, Truth(None))), left)
            else:
                right = self._comparison()
                _check_equal(left, right)
                left = _over(_unless(kind == "<>", Equal(left.node, right.node)), left, right)
        return left

    def _comparison(self) -> Operand:
        left = self._unary()
        while True:
            kind = self._peek.kind
            if kind in _ORDERS:
                self._take()
                right = self._unary()
                _check_order(left, right)
                left = _over(Comparison(kind, left.node, right.node), left, right)
            elif kind == "NOT" or kind in _DENIABLE:
                left = self._deniable(left)
            else:
                return left

    def _deniable(self, left: Operand) -> Operand:
        is_denied = self._accept("NOT")
        token = self._take()
        if token.kind == "BETWEEN":
            return self._between(left, is_denied=is_denied)
        if token.kind == "IN":
            return self._membership(left, is_denied=is_denied)
        if token.kind in _SEARCHES:
            wanted = self._text()
            return _over(TextSearch(token.kind, left.node, wanted, is_denied), left)
        raise invalid_filter(
            token.at, f"expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, not {token}"
        )

    def _between(self, of: Operand, *, is_denied: bool) -> Operand:
        low = self._unary()
        self._expect("AND", "AND and the upper bound")
        high = self._unary()
        _check_order(of, low)
        _check_order(of, high)
        if is_denied:
            outside = (Comparison("<", of.node, low.node), Comparison(">", of.node, high.node))
            return _over(Or(outside), of, low, high)
        if _are_crossed(low.node, high.node):
            raise invalid_filter(low.at, "the lower bound is greater than the upper one")
        return _over(Between(of.node, low.node, high.node), of, low, high)

    def _membership(self, left: Operand, *, is_denied: bool) -> Operand:
        if not isinstance(left.node, PropertyName):
            raise invalid_filter(left.at, "expected the name of a property on the left of IN")
        self._expect("(", "( and texts in single quotes")
        texts = {self._text()}
        while self._accept(","):
            texts.add(self._text())
        self._expect(")", '"," or ")"')
        return _over(Membership(left.node.name, frozenset(texts), is_denied), left)

    # Values

    def _unary(self) -> Operand:
        token = self._peek
        if token.kind not in {"+", "-", "NOT", "("}:
            return self._leaf()
        self._take()
        self._open += 1
        if self._open > FILTER_DEPTH_MAX:
            raise _too_deep(token.at)
        if token.kind == "(":
            found = self._or()
            self._expect(")", "AND, OR, a comparison or )")
        else:
            found = self._unary()
        self._open -= 1
        if token.kind == "-":
            return _over(Negative(found.node), found, at=token.at)
        if token.kind == "NOT":
            return _over(Not(_condition(found)), found, at=token.at)
        return found._replace(at=token.at)

    def _leaf(self) -> Operand:
        token = self._take()
        self._operands += 1
        if self._operands > FILTER_OPERANDS_MAX:
            why = f"a filter has at most {FILTER_OPERANDS_MAX} properties and constants"
            raise invalid_filter(token.at, why)
        return Operand(_leaf(token), token.at, 1)

    def _text(self) -> str:
        return _unquoted(self._expect(QUOTED, "a text in single quotes"))


def _leaf(token: Token) -> Node:
    if token.kind == NAME:
        return PropertyName(token.text)
    if token.kind == QUOTED:
        return Text(_unquoted(token))
    if token.kind == DECIMAL:
        return _decimal(token)
    if token.kind == FLOATING:
        return _floating(token)
    if token.kind in _TRUTHS:
        return Truth(_TRUTHS[token.kind])
    raise invalid_filter(token.at, f"expected {_VALUE}, not {token}")


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _decimal(token: Token) -> Number:
    digits = token.text.rstrip("lL")
    # Twenty digits are always too many, and converting thousands of digits is slow.
    value = int(digits) if len(digits) < 20 else _LONG_END
    if value >= _LONG_END:
        raise invalid_filter(token.at, f"a whole number is at most {_LONG_END - 1}")
    return Number(NumberKind.INT if value < _INT_END else NumberKind.LONG, value)


def _floating(token: Token) -> Number:
    value = float(token.text)
    if not _DOUBLE_MIN <= value < _INFINITE:
        # Like RocketMQ, which also refuses 0.0.
        why = "a number with a point or an exponent is from 4.9E-324 to 1.7976931348623157E308"
        raise invalid_filter(token.at, f"{why}; write 0 in place of 0.0")
    return Number(NumberKind.DOUBLE, value)


# Type checks


def _are_crossed(low: Node, high: Node) -> bool:
    return isinstance(low, Number) and isinstance(high, Number) and order(high, low) < 0


def _over(node: Node, *operands: Operand, at: int | None = None) -> Operand:
    """A node over its operands. The depth is limited, because evaluation is recursive."""
    start = operands[0].at if at is None else at
    depth = 1 + max([operand.depth for operand in operands])
    if depth > FILTER_DEPTH_MAX:
        raise _too_deep(start)
    return Operand(node, start, depth)


def _too_deep(at: int) -> Exception:
    return invalid_filter(at, f"a filter is nested at most {FILTER_DEPTH_MAX} deep")


def _unless(is_denied: bool, node: ConditionNode) -> ConditionNode:
    return Not(node) if is_denied else node


def _condition(operand: Operand) -> ConditionNode:
    node = operand.node
    if isinstance(node, PropertyName):
        return Flag(node.name)
    if isinstance(node, Number | Text | Negative):
        raise invalid_filter(operand.at, "expected a condition, not a value")
    return node


def _check_order(left: Operand, right: Operand) -> None:
    for operand in (left, right):
        node = operand.node
        if isinstance(node, Text):
            raise invalid_filter(operand.at, "expected a number or a property; texts have no order")
        if isinstance(node, Not):
            why = "NOT binds more tightly than a comparison; write NOT (...)"
            raise invalid_filter(operand.at, f"expected a number or a property; {why}")
        if not isinstance(node, PropertyName | Number | Negative):
            raise invalid_filter(
                operand.at, "expected a number or a property; truth values have no order"
            )


def _check_equal(left: Operand, right: Operand) -> None:
    for operand in (left, right):
        if operand.node == Truth(None):
            raise invalid_filter(operand.at, "nothing equals NULL; write IS NULL or IS NOT NULL")
    if isinstance(left.node, Truth) and isinstance(right.node, Number | Text):
        raise invalid_filter(left.at, "a truth value cannot be compared with a number or a text")
