"""Control totals from the sums of a database or Spark; pure.

Both return one row for each currency. A sum may not fit into 64 bits, so they add up the lower and
the upper halves of the numbers, which are joined here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from txmq.quantity import quantity
from txmq.reconcile.summary import Control
from txmq.reconcile.tables import TableSchema

__all__ = [
    "LIMIT",
    "LOWER_HALF",
    "control_from_answer",
    "control_totals",
    "difference",
    "has_number",
    "join_halves",
    "money_column",
    "number_columns",
]

LIMIT: Final = 1 << 63
"""Hash totals are sums modulo this."""
LOWER_HALF: Final = (1 << 32) - 1

_OTHERS: Final = {
    "the least id": "least",
    "the greatest id": "most",
    "the hash total": "hash_total",
}


def number_columns(table: TableSchema) -> tuple[str, ...]:
    """The columns of a table's hash total: all numbers."""
    return tuple(column.name for column in table.columns if column.type in ("long", "int"))


def money_column(table: TableSchema) -> str | None:
    """The column added up by currency; ``None`` in a table without money."""
    return next((name for name in ("amount", "balance") if name in table.names), None)


def has_number(table: TableSchema) -> bool:
    """True if the ids of its rows are numbers."""
    return any(column.name == "id" and column.type == "long" for column in table.columns)


def join_halves(low: int | None, high: int | None) -> int:
    """A sum from the sums of the lower and upper halves of its numbers; 0 without any."""
    return (low or 0) + ((high or 0) << 32)


def control_totals(source: str, table: TableSchema, rows: Iterable[Sequence[Any]]) -> Control:
    """The control totals of a table.

    Args:
        source: A bank's name, or ``log``.
        table: The table.
        rows: One for each currency: currency, number of rows, least id, greatest id, sum of
            money, sum of all numbers.
    """
    count, total, amounts, ends = 0, 0, dict[str, int](), list[int]()
    for currency, counted, least, most, money, numbers in rows:
        count += counted
        total += numbers
        ends += [id_ for id_ in (least, most) if id_ is not None]
        if money_column(table) is not None:
            amounts[currency or ""] = amounts.get(currency or "", 0) + money
    if not amounts.get("", 1):
        del amounts[""]  # A sum of zero without a currency is not information.
    return Control(
        source,
        table.name,
        count,
        dict(sorted(amounts.items())),
        total % LIMIT,
        min(ends, default=None),
        max(ends, default=None),
    )


def control_from_answer(source: str, table: TableSchema, rows: Sequence[Sequence[Any]]) -> Control:
    """The control totals from answers to ``control_query`` in ``statements``."""
    numbers, money = number_columns(table), money_column(table)
    found = []
    for currency, count, least, most, *sums in rows:
        totals = {
            name: join_halves(*sums[2 * place : 2 * place + 2])
            for place, name in enumerate(numbers)
        }
        total = totals[money] if money is not None else 0
        found.append((currency, count, least, most, total, sum(totals.values())))
    return control_totals(source, table, found)


def difference(was: Control, now: Control) -> str | None:
    """Describe the first control total that differs; ``None`` if all are equal.

    Args:
        was: The control totals before.
        now: The control totals after.
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
