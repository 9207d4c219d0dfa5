"""The life of a break over the days: new, carried on, explained, closed, perhaps reopened.
Pure: DataFrames in, DataFrames out, and no query runs here. Even ages are expressions.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txmq.reconcile.classes import ABOUT, Class
from txmq.reconcile.rules import Day, Rules
from txmq.reconcile.summary import BUCKETS, FIGURES
from txmq.reconcile.tables import ITEMS

__all__ = ["FACTS_OF_ITEMS", "HISTORY", "Carried", "carry", "split_closed"]

HISTORY: Final = 32
"""The maximum of changes in the history of an item: the first, and the latest ones."""

_LIFE_COLUMNS: Final = frozenset(
    {
        "break_id", "was", "status", "first_seen", "age_days", "bucket", "history",
        "explained_by", "explanation",
    }
)  # fmt: skip

FACTS_OF_ITEMS: Final = tuple(name for name in ITEMS.names if name not in _LIFE_COLUMNS)
"""The columns of an item that come from its own day: the input of :func:`carry`."""

_OPEN: Final = tuple(class_.value for class_ in Class if ABOUT[class_].group == "open")
_MONDAY: Final = date(1969, 12, 29)
"""The last Monday before day 0 of the calendar; weeks begin here."""


class Carried(NamedTuple):
    """Open and closed items, both as ``ITEMS``; no transfer is in both."""

    items: DataFrame
    """The items that are not agreed when the day ends."""
    closed: DataFrame
    """The items of the day before that are agreed now."""


def carry(
    today: DataFrame,
    previous: DataFrame | None,
    explanations: DataFrame | None,
    rules: Rules,
    day: date,
    agreed_before: DataFrame | None = None,
) -> DataFrame:
    """Carry the items of the day before into this one; as ``ITEMS``, including closed items.

    An item of the day before without news today stays the same, a day older: money must not
    vanish.

    Args:
        today: A row with the columns :data:`FACTS_OF_ITEMS` for each transfer that is not
        agreed, and for each former item that is agreed now.
        previous: The items when the day before ended, as ``ITEMS``.
        explanations: As ``EXPLANATIONS``. Each is valid while the break keeps its class and
        figures.
        rules: The name, the weekends and the holidays.
        day: The business date.
        agreed_before: Transfers that were agreed on earlier days: ``key``, and a ``history`` for
        each time one was closed; the latest history continues. If one of them is an item today
        it is reopened, and its age starts again.
    """
    named = F.concat(F.lit(rules.name), F.lit("\0"), F.col("key"))
    items = _with_agreed(_with_previous(today, previous), agreed_before)
    items = items.withColumn("break_id", F.substring(F.sha2(named, 256), 1, 16))
    items = _with_status(_with_explanations(items, explanations), day)
    items = items.withColumn("age_days", _age(rules.day, day)).withColumn("bucket", _bucket())
    return items.select(*ITEMS.names)


def split_closed(items: DataFrame) -> Carried:
    """Split the items by whether they are closed."""
    is_closed = F.col("status") == "closed"
    return Carried(items.where(~is_closed), items.where(is_closed))


def _with_previous(today: DataFrame, previous: DataFrame | None) -> DataFrame:
    """The facts of today, or of the day before if today has none; and the former class."""
    if previous is None:
        nothing = F.lit(None).cast("string")
        return today.select(
            *FACTS_OF_ITEMS,
            *(nothing.alias(name) for name in ("_was", "_class", "_first_seen", "_history")),
            F.lit(False).alias("_is_same"),
        ).where(F.col("group") != "agreed")
    # An explained item continues with its own class; its explanation is checked again.
    raw = F.coalesce(F.col("was"), F.col("class"))
    before = previous.withColumns(
        {
            "_class": F.col("class"),
            "_was": raw,
            "class": raw,
            "group": F.when(raw.isin(*_OPEN), "open").otherwise("break"),
        }
    )
    has_news = F.col("now.key").isNotNull()
    joined = today.alias("now").join(
        before.alias("then"), F.col("now.key") == F.col("then.key"), "full_outer"
    )
    return joined.select(
        *(
            F.when(has_news, F.col(f"now.{name}")).otherwise(F.col(f"then.{name}")).alias(name)
            for name in FACTS_OF_ITEMS
        ),
        F.col("then._was").alias("_was"),
        F.col("then._class").alias("_class"),
        F.col("then.first_seen").alias("_first_seen"),
        F.col("then.history").alias("_history"),
        (~has_news | _are_same("now", "then", "class", *FIGURES)).alias("_is_same"),
    ).where((F.col("group") != "agreed") | F.col("_was").isNotNull())


def _with_agreed(items: DataFrame, agreed_before: DataFrame | None) -> DataFrame:
    """Mark new items that were agreed on an earlier day, with their history of that day."""
    if agreed_before is None:
        return items.withColumns({"_is_again": F.lit(False), "_older": F.lit(None).cast("string")})
    # Its last change begins with the date on which it was closed.
    closing = F.element_at(F.split("history", ","), -1)
    older = F.max_by("history", closing).alias("_older")
    agreed = agreed_before.groupBy(F.col("key").alias("_agreed")).agg(older)
    joined = items.join(agreed, F.col("key") == F.col("_agreed"), "left")
    return joined.withColumn("_is_again", F.col("_agreed").isNotNull()).drop("_agreed")


def _with_explanations(items: DataFrame, explanations: DataFrame | None) -> DataFrame:
    """Add the explanation, if the break did not change since it was explained."""
    if explanations is None:
        nothing = F.lit(None).cast("string")
        return items.withColumns({"explained_by": nothing, "explanation": nothing})
    # An agreed transfer needs no explanation.
    is_item = F.col("item.group") != "agreed"
    is_valid = is_item & _are_same("item", "note", "break_id", "class", *FIGURES)
    joined = items.alias("item").join(F.broadcast(explanations).alias("note"), is_valid, "left")
    return joined.select("item.*", "note.explained_by", "note.explanation")


def _are_same(one: str, other: str, *names: str) -> Column:
    """True if two rows are equal in these columns; NULL equals NULL."""
    pairs = ((F.col(f"{one}.{name}"), F.col(f"{other}.{name}")) for name in names)
    return reduce(and_, (mine.eqNullSafe(theirs) for mine, theirs in pairs))


def _with_status(items: DataFrame, day: date) -> DataFrame:
    """Add status, history and first date, but not the age."""
    is_explained = F.col("explained_by").isNotNull()
    raw = F.col("class")
    status = (
        F.when(F.col("group") == "agreed", "closed")
        .when(is_explained, "explained")
        .when(F.col("_was").isNull(), F.when(F.col("_is_again"), "reopened").otherwise("new"))
        .when(~F.col("_is_same"), "changed")
        .otherwise("open")
    )
    called = F.when(is_explained, Class.EXPLAINED.value).otherwise(raw)
    is_same = F.col("_is_same") & (F.col("_class") == called)
    # The last booking closes an item; its moment identifies that booking.
    closing = F.when(F.col("group") == "agreed", F.col("last_ms").cast("string"))
    entry = F.concat_ws(" ", F.lit(day.isoformat()), raw, status, closing)
    before = F.coalesce(F.col("_history"), F.col("_older"))
    found = items.withColumns(
        {
            "status": status,
            "history": F.when(is_same, before).otherwise(_shorten(F.concat_ws(",", before, entry))),
            "was": F.when(is_explained, raw),
            "first_seen": F.coalesce(F.col("_first_seen"), F.lit(day.isoformat())),
        }
    )
    # Last, because the columns above read the old values.
    return found.withColumns(
        {"class": called, "group": F.when(is_explained, "open").otherwise(F.col("group"))}
    )


def _shorten(history: Column) -> Column:
    """Keep the first change, and the latest."""
    changes = F.split(history, ",")
    last = F.slice(changes, -(HISTORY - 1), HISTORY - 1)
    short = F.concat_ws(",", F.concat(F.slice(changes, 1, 1), last))
    return F.when(F.size(changes) > HISTORY, short).otherwise(history)


def _age(rule: Day, day: date) -> Column:
    """Business days since an item was first seen, as in :meth:`Day.age`."""
    first = F.to_date("first_seen")
    passed = _business_days(rule, F.lit(day)) - _business_days(rule, first)
    return F.greatest(passed, F.lit(0)).cast("int")


def _business_days(rule: Day, at: Column) -> Column:
    """The number of business days up to a date, since a Monday long ago."""
    weeks = msgspec.structs.replace(rule, holidays=frozenset())
    works = [weeks.is_business(_MONDAY + timedelta(days=index)) for index in range(7)]
    days = F.datediff(at, F.lit(_MONDAY))
    of_week = F.array(*(F.lit(sum(works[: index + 1])) for index in range(7)))
    counted = F.floor(days / 7) * sum(works) + of_week[F.pmod(days, F.lit(7))]
    # A holiday on a weekend does not count twice.
    holidays = sorted(holiday for holiday in rule.holidays if weeks.is_business(holiday))
    if not holidays:
        return counted
    passed = F.filter(F.array(*map(F.lit, holidays)), lambda holiday: holiday <= at)
    return counted - F.size(passed)


def _bucket() -> Column:
    age = F.col("age_days")
    found = F.when(age == 0, BUCKETS[0])
    for most, bucket in zip((1, 3, 7), BUCKETS[1:], strict=False):
        found = found.when(age <= most, bucket)
    return found.otherwise(BUCKETS[-1])
