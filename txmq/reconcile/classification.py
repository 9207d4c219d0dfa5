"""The truth table: the class of a transfer, from its facts.

The conditions are in the order of :class:`~txmq.reconcile.classes.Class`, and the first that
holds counts. Together they are complete; a transfer without a class stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.rules import Rules

__all__ = ["classify", "group_of_class"]


def classify(units: DataFrame, rules: Rules, as_of_ms: int) -> DataFrame:
    """Add the class and group of each unit, the amount at risk, and the holder of the money.

    Args:
        units: The facts of each transfer (:func:`~txmq.reconcile.units.units_of`), with
            ``was_open`` for those left open before.
        rules: The tolerances, and the grace.
        as_of_ms: The end of the day, or the time of reading if that was earlier.
    """
    found = f.coalesce(
        *(f.when(condition, class_.value) for class_, condition in _table(rules, as_of_ms)),
        f.raise_error(f.concat(f.lit("no class fits transfer "), f.col("key"))),
    )
    return (
        units.withColumn("class", found)
        .withColumn("group", group_of_class())
        .withColumns({"amount": _at_risk(), "currency": _currency(), "holder": _holder()})
        .withColumns({
            "debit_bank": _joined("debit_banks"),
            "credit_bank": _joined("credit_banks"),
            "payer": _joined("payers"),
            "payee": _joined("payees"),
        })
    )  # fmt: skip


def group_of_class() -> Column:
    """The group of the column ``class``."""
    pairs = ", ".join(f"'{class_.value}', '{about.group}'" for class_, about in ABOUT.items())
    return f.expr(f"map({pairs})[class]")


def _table(rules: Rules, as_of_ms: int) -> Iterator[tuple[Class, Column]]:
    col = f.col
    debited, returned, credited = col("debits") > 0, col("returns") > 0, col("credits") > 0
    was_taken = col("debits") > col("returns")
    is_visible, is_undecided = col("messages") > 0, col("undecided") > 0
    was_rolled_back = ~is_visible & ~is_undecided & (col("rolled_back") > 0)
    is_paid = ~debited & (credited | returned)
    once = (col("debits") == 1) & (col("credits") + col("returns") == 1)

    yield Class.DUPLICATE_DEBIT, (col("debits") > 1) | (col("returns") > 1)
    yield (
        Class.DUPLICATE_CREDIT,
        (col("credits") > 1) & (col("numbered") == col("credits")) & (col("numbers") == 1),
    )
    yield Class.DUPLICATE_MESSAGE, col("messages") > 1
    yield Class.DOUBLE_CREDIT, (col("credits") > 1) | (credited & returned)
    yield Class.CURRENCY_MISMATCH, f.size("currencies") > 1
    # An odd row has the wrong sign: it takes where it should give, or the reverse.
    is_odd = (col("unread") > 0) | (col("odd") > 0)
    yield Class.AMOUNT_MISMATCH, (_spread() > _tolerance(rules)) | is_odd
    yield Class.ACCOUNT_MISMATCH, (f.size("payers") > 1) | (f.size("payees") > 1)
    yield (
        Class.CREDIT_WITHOUT_MESSAGE,
        ~is_visible & (credited | is_paid) & ~(was_taken & was_rolled_back),
    )
    yield Class.ROLLED_BACK_BUT_DEBITED, was_taken & was_rolled_back

    is_young = col("first_ms") > as_of_ms - rules.day.grace_ms
    is_given_up = (col("delivery") == "dead") | (col("parked") > 0)
    incomplete = list(_incomplete(debited, was_taken, credited, is_visible, is_undecided))
    waits = incomplete[0][1]
    for _, condition in incomplete[1:]:
        waits |= condition
    # Time may still complete these transfers, so this class comes before every incomplete class and
    # after all breaks that time cannot mend. Money that was paid out is not in flight.
    can_wait = is_young & ~credited & ~is_paid & ~f.coalesce(is_given_up, f.lit(False))
    yield Class.IN_FLIGHT, waits & can_wait
    yield from incomplete

    agrees = once & ~(credited & returned)
    is_matched, is_returned = agrees & credited & is_visible, agrees & returned
    yield Class.PRIOR_PERIOD, (is_matched | is_returned) & col("is_late") & ~col("was_open")
    yield Class.RETURNED, is_returned
    yield Class.ROLLED_BACK, was_rolled_back
    yield Class.MATCHED, is_matched


def _incomplete(
    debited: Column, was_taken: Column, credited: Column, is_visible: Column, is_undecided: Column
) -> Iterator[tuple[Class, Column]]:
    delivery = f.col("delivery")
    is_owed = was_taken & is_visible & ~credited
    yield Class.COMMITTED_BUT_NOT_DEBITED, ~debited & is_visible & (f.col("committed") > 0)
    yield Class.MESSAGE_WITHOUT_DEBIT, ~debited & is_visible
    yield (
        Class.DEBIT_WITHOUT_MESSAGE,
        was_taken & ~is_visible & ~is_undecided & (f.col("rolled_back") == 0),
    )
    yield Class.PARKED, ~is_visible & is_undecided
    yield Class.DEAD_LETTER, is_owed & (delivery == "dead")
    yield Class.COMMITTED_UNDELIVERED, is_owed & delivery.isin("undelivered", "unacknowledged")
    yield Class.DELIVERED_UNCREDITED, is_owed


def _spread() -> Column:
    found = f.array_max("amounts") - f.array_min("amounts")
    return f.coalesce(found, f.lit(0))


def _tolerance(rules: Rules) -> Column:
    found: Column = f.lit(0)
    for name, money in sorted(rules.money.items()):
        if money.tolerance:
            found = f.when(_currency() == name, money.tolerance).otherwise(found)
    return found


def _open() -> Column:
    """Money taken from a payer and not given to anyone; negative for money given and not taken."""
    return f.col("debited") - f.col("returned") - f.col("credited")


def _at_risk() -> Column:
    """The amount that the banks or their customers may lose."""
    whole = f.coalesce(f.greatest(f.array_max("amounts"), f.col("ordered")), f.lit(0))
    is_mixed = f.col("class") == Class.CURRENCY_MISMATCH.value
    is_spread = (f.col("class") == Class.AMOUNT_MISMATCH.value) & (_spread() > 0)
    agreed = f.when(is_spread, _spread()).otherwise(whole)
    return f.when(is_mixed | (_open() == 0), f.when(is_mixed, whole).otherwise(agreed)).otherwise(
        f.abs(_open())
    )


def _currency() -> Column:
    return f.coalesce(f.get("currencies", f.lit(0)), f.col("ordered_currency"), f.lit(""))


def _holder() -> Column:
    paid, back = f.col("credits") > 0, f.col("returns") > 0
    return (
        f.when(_open() > 0, "transit")
        .when(paid & back, "both")
        .when(paid, "payee")
        .when(back | (f.col("debits") > 0), "payer")
        .otherwise("nobody")
    )


def _joined(name: str) -> Column:
    """The names in a set, mostly one, joined by `` / ``."""
    return f.when(f.size(name) > 0, f.concat_ws(" / ", name))
