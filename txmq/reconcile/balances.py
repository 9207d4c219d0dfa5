"""The balances of accounts over the day, from the bank's entries, its table of accounts, and the
result of the day before.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile import tables
from txmq.reconcile.extract.controls import LOWER_HALF
from txmq.reconcile.ledgers import Ledgers
from txmq.reconcile.rows import index_in, texts, union
from txmq.reconcile.rules import Rules
from txmq.reconcile.second_pass import Sums
from txmq.reconcile.transfer import ARRIVED

__all__ = ["KINDS", "balances_of", "count_ids"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
_ACCOUNT: Final = ("bank", "account", "currency")
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_ROLE_CODE: Final = index_in("role", _ROLES)
"""The role as a number: an aggregate over texts has to sort."""
_NUMBERS: Final = ("first_id", "last_id", "closed_id")
_SUMS: Final = ("opening", "opening_rows", "rows", "later", "told", "closed", "closed_rows")
_HALVES: Final = {"low": f"amount & {LOWER_HALF}", "high": "shiftright(amount, 32)"}
"""No sum of halves overflows, in whatever order Spark adds them up."""
_OPTIONAL: Final = ("told", *_NUMBERS, "at", *_HALVES)


def balances_of(
    entries: DataFrame, ledgers: Ledgers, closed: DataFrame | None, rules: Rules
) -> DataFrame:
    """The balances of each account over the day, as ``BALANCES``, in an order of their own.

    ``moved`` and ``closing`` are NULL if they do not fit into 64 bits; Spark's error would not name
    the account.

    Args:
        entries: The entries of the day.
        ledgers: The sums before and after the day, and the tables of accounts.
        closed: The closing balances of the day before.
        rules: They name the banks whose ids have no gaps.
    """
    numbered = [bank.name for bank in rules.bank if bank.entries.gapless]
    # Without gapless banks the ids are not read.
    id_ = f"IF(bank IN ({texts(numbered)}), id, NULL)" if numbered else "NULL"
    credit, kind = KINDS.index("credit"), index_in("kind", KINDS)
    rows = entries.selectExpr(
        *_ACCOUNT,
        f"{_ROLE_CODE} AS role_code",
        f"IF(kind IN ({texts(ARRIVED)}), {credit}, {kind}) AS at",
        f"{id_} AS id",
        *(f"{half} AS {name}" for name, half in _HALVES.items()),
    )
    # Added up before the shuffle, so a busy account does not become a hot spot. The kinds have one
    # sum, since hardly any account has more than one of them.
    moved = rows.groupBy(*_ACCOUNT, "at").agg(
        *map(f.expr, ("max(role_code) AS role_code", "count(1) AS rows")),
        *map(f.expr, ("min(id) AS first_id", "max(id) AS last_id")),
        *(f.expr(f"sum({half}) AS {half}") for half in _HALVES),
    )
    parts = union(
        _part(ledgers.opening, _ROLE_CODE, opening="amount", opening_rows="rows"),
        _part(moved, **{name: name for name in ("rows", "first_id", "last_id", "at", *_HALVES)}),
        _part(ledgers.later, _ROLE_CODE, later="amount"),
        _part(ledgers.accounts, "NULL", told="balance"),
        # An account without rows stays an account, with its last number.
        None if closed is None else _part(
            closed, _ROLE_CODE, closed="closing", closed_rows="closing_rows", closed_id="last_id"
        ),
    )  # fmt: skip
    # Each part has about one row for an account, so adding up before the shuffle gains nothing.
    found = parts.repartition(*_ACCOUNT).groupBy(*_ACCOUNT).agg(
        f.expr("max(role_code) AS role_code"),
        *(f.expr(f"sum({name}) AS {name}") for name in _SUMS),
        f.expr("min(first_id) AS first_id"),
        *map(f.expr, ("max(closed_id) AS closed_id", "max(last_id) AS last_id")),
        *(
            f.expr(f"sum(IF(at = {place}, {half}, NULL)) AS {name}_{half}")
            for place, name in enumerate(KINDS)
            for half in _HALVES
        ),
    )  # fmt: skip
    found = found.selectExpr("*", *(f"{_joined(name)} AS `{name}`" for name in KINDS))
    sum_ = reduce(lambda one, other: f"try_add({one}, {other})", (f"`{name}`" for name in KINDS))
    made = {
        **{name: f"coalesce(`{name}`, 0)" for name in KINDS},
        "role": f"get(array({texts(_ROLES)}), coalesce(role_code, 0))",
        "closing": "try_add(opening, moved)",
        "closing_rows": "opening_rows + rows",
        "last_id": "greatest(last_id, closed_id)",
    }
    columns = (f"{made.get(name, name)} AS `{name}`" for name in tables.BALANCES.names)
    return (
        found.selectExpr("*", f"{sum_} AS moved")
        .selectExpr(*columns)
        .sortWithinPartitions(*_ACCOUNT)
    )


def count_ids(entries: DataFrame, closed: DataFrame | None, rules: Rules) -> Sums:
    """The number of different new ids on the day, of the banks whose ids have no gaps."""
    banks = [bank.name for bank in rules.bank if bank.entries.gapless]
    if not banks:
        return Counter()
    ids = entries.where(f"bank IN ({texts(banks)})")
    if closed is not None:
        known = closed.groupBy("bank").agg(f.max("last_id").alias("known"))
        ids = ids.join(f.broadcast(known), "bank", "left").where("id > coalesce(known, id - 1)")
    counts = ids.groupBy("bank").agg(f.count_distinct("id")).collect()
    return Counter({("ids", bank, ""): count for bank, count in counts})


def _joined(name: str) -> str:
    """The sum of numbers from the sums of their halves; NULL if it does not fit into 64 bits."""
    low = f"coalesce({name}_low, 0)"
    high = f"(coalesce({name}_high, 0) + shiftright({low}, 32))"
    fits = f"{high} BETWEEN {-1 << 31} AND {(1 << 31) - 1}"
    return f"IF({fits}, shiftleft({high}, 32) | {low} & {LOWER_HALF}, NULL)"


def _part(table: DataFrame, role_code: str = "role_code", **given: str) -> DataFrame:
    """A table with all summed columns; ``given`` names the columns that it has."""
    numbers = []
    for name in (*_SUMS, *_NUMBERS, "at", *_HALVES):
        none = "NULL" if name in _OPTIONAL else "0"
        found = f"coalesce({given[name]}, {none})" if name in given else none
        numbers.append(f"CAST({found} AS BIGINT) AS {name}")
    return table.selectExpr(*_ACCOUNT, f"CAST({role_code} AS INT) AS role_code", *numbers)
