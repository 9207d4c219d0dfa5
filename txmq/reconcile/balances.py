"""The balances of accounts over the day, from the bank's entries, its table of accounts, and the
result of the day before.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.extract.controls import LOWER_HALF
from txmq.reconcile.ledgers import Ledgers, index_in, texts, union
from txmq.reconcile.rules import Rules
from txmq.reconcile.second_pass import Sums
from txmq.reconcile.tables import BALANCES
from txmq.reconcile.transfer import ARRIVED

__all__ = ["KINDS", "balances_of", "count_ids"]

KINDS: Final = ("debit", "return", "credit", "other")
"""The kinds of bookings, which are columns of ``BALANCES``."""
_ACCOUNT: Final = ("bank", "account", "currency")
_ROLES: Final = ("customer", "suspense", "clearing", "capital")
_ROLE_CODE: Final = index_in("role", _ROLES)
"""The role as a number: an aggregate over texts has to sort."""
_SUMS: Final = ("opening", "opening_rows", "rows", "later", "closed", "closed_rows")
_OTHERS: Final = {"told": "sum", "first_id": "min", "closed_id": "max", "last_id": "max"}
"""These are NULL if an account has none."""
_HALVES: Final = {"low": f"amount & {LOWER_HALF}", "high": "shiftright(amount, 32)"}
"""No sum of halves overflows, in whatever order Spark adds them up."""


def balances_of(
    entries: DataFrame, ledgers: Ledgers, closed: DataFrame | None, rules: Rules
) -> DataFrame:
    """The balances of each account over the day, as ``BALANCES``, in an order of their own.

    ``moved`` and ``closing`` are NULL if they do not fit into 64 bits; Spark's error would not name
    the account. ``entries`` are those of the day, and ``closed`` the balances of the day before.
    """
    numbered = [bank.name for bank in rules.bank if bank.entries.gapless]
    # Without gapless banks the ids are not read.
    id_ = f"IF(bank IN ({texts(numbered)}), id, NULL)" if numbered else "CAST(NULL AS BIGINT)"
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
    of_kind = (
        *("max(role_code) AS role_code", "count(1) AS rows"),
        *("min(id) AS first_id", "max(id) AS last_id"),
        *(f"sum({half}) AS {half}" for half in _HALVES),
    )
    moved = rows.groupBy(*_ACCOUNT, "at").agg(*map(f.expr, of_kind))
    code = f"{_ROLE_CODE} AS role_code"
    opening = "amount AS opening", "rows AS opening_rows"
    of_before = "closing AS closed", "closing_rows AS closed_rows", "last_id AS closed_id"
    # Without a result of the day before, these columns exist too.
    nothing = "0L AS closed", "0L AS closed_rows", "CAST(NULL AS BIGINT) AS closed_id"
    parts = union(
        moved,
        ledgers.opening.selectExpr(*_ACCOUNT, code, *opening, *nothing),
        ledgers.later.selectExpr(*_ACCOUNT, code, "amount AS later"),
        ledgers.accounts.selectExpr(*_ACCOUNT, "balance AS told"),
        # An account without rows stays an account, with its last number.
        None if closed is None else closed.selectExpr(*_ACCOUNT, code, *of_before),
    )
    sums = (
        "max(role_code) AS role_code",
        *(f"sum(coalesce({name}, 0)) AS {name}" for name in _SUMS),
        *(f"{how}({name}) AS {name}" for name, how in _OTHERS.items()),
        *(
            f"sum(IF(at = {place}, {half}, NULL)) AS {name}_{half}"
            for place, name in enumerate(KINDS)
            for half in _HALVES
        ),
    )
    # Each part has about one row for an account, so adding up before the shuffle gains nothing.
    found = parts.repartition(*_ACCOUNT).groupBy(*_ACCOUNT).agg(*map(f.expr, sums))
    found = found.selectExpr("*", *(f"{_joined(name)} AS `{name}`" for name in KINDS))
    sum_ = reduce(lambda one, other: f"try_add({one}, {other})", (f"`{name}`" for name in KINDS))
    made = {
        **{name: f"coalesce(`{name}`, 0)" for name in KINDS},
        "role": f"get(array({texts(_ROLES)}), coalesce(role_code, 0))",
        "closing": "try_add(opening, moved)",
        "closing_rows": "opening_rows + rows",
        "last_id": "greatest(last_id, closed_id)",
    }
    columns = (f"{made.get(name, name)} AS `{name}`" for name in BALANCES.names)
    found = found.selectExpr("*", f"{sum_} AS moved").selectExpr(*columns)
    return found.sortWithinPartitions(*_ACCOUNT)


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
