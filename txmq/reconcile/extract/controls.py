"""Control totals, from what a database or Spark has added up; pure.

Both are asked for one row per currency. Where they cannot add up what does not fit into 64 bits,
they add up the lower and the upper halves of numbers, and the whole is made of these here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from txmq.quantity import quantity
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import Table

__all__ = ["LIMIT", "control_of", "difference", "has_number", "money_of", "numbers_of", "whole"]

LIMIT: Final = 1 << 63
"""Hash totals are what is left of a sum when this is taken away often enough."""

_OTHERS: Final = {
    "the least id": "least",
    "the greatest id": "most",
    "the hash total": "hash_total",
}


def numbers_of(table: Table) -> tuple[str, ...]:
    """The columns that its hash total adds up: all its numbers."""
    return tuple(column.name for column in table.columns if column.type in ("long", "int"))


def money_of(table: Table) -> str | None:
    """The column that is added up by currency; none in a table without money."""
    return next((name for name in ("amount", "balance") if name in table.names), None)


def has_number(table: Table) -> bool:
    """Whether its rows have numbers of their own."""
    return any(column.name == "id" and column.type == "long" for column in table.columns)


def whole(halves: Sequence[Any]) -> int:
    """A sum, from the sums of its lower and of its upper halves, or from itself."""
    return sum(int(half or 0) << 32 * place for place, half in enumerate(halves))


def control_of(source: str, table: Table, rows: Iterable[Sequence[Any]]) -> Control:
    """The control totals of a table.

    Args:
        source: A bank's name, or ``log``.
        table: Which one.
        rows: One for each currency: it, how many rows, the least and the greatest id, the sum of
            money, and the sum of all numbers.
    """
    count, total, amounts, ends = 0, 0, dict[str, int](), list[int]()
    for currency, counted, least, most, money, numbers in rows:
        count += counted
        total += numbers
        ends += [id_ for id_ in (least, most) if id_ is not None]
        if money_of(table) is not None:
            amounts[currency or ""] = amounts.get(currency or "", 0) + money
    if not amounts.get("", 1):
        del amounts[""]  # Nothing that has no currency is nothing.
    return Control(
        source,
        table.name,
        count,
        dict(sorted(amounts.items())),
        total % LIMIT,
        min(ends, default=None),
        max(ends, default=None),
    )


def difference(was: Control, now: Control) -> str | None:
    """The first control total that differs, in a sentence; none where all are equal.

    Args:
        was: What was there before.
        now: What is there, or was written, after.
    """
    where = f"{was.source}/{was.table}"
    if was.rows != now.rows:
        extracted = quantity(was.rows, "row was", "rows were")
        return f"{where}: {extracted} extracted and {quantity(now.rows, 'is', 'are')} there"
    for currency in sorted(was.amounts.keys() | now.amounts.keys()):
        one, other = was.amounts.get(currency), now.amounts.get(currency)
        money = currency or "no currency"
        if one is None or other is None:
            was_it, is_it = ("not ", "") if one is None else ("", "not ")
            return f"{where}: {money} was {was_it}extracted and is {is_it}there"
        if one != other:
            return f"{where}: the sum of {money} was {one} when it was extracted and is {other}"
    for name, field in _OTHERS.items():
        then, since = getattr(was, field), getattr(now, field)
        if then != since:
            return f"{where}: {name} was {then} when it was extracted and is {since}"
    return None
