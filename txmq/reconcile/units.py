"""The second pass: every transfer that is not plainly agreed, put together from all of its rows.

They are few on most days, so texts are compared as texts here, and sets are kept of what should be
one thing. A transfer that was left open before brings its earlier rows along; one that was agreed
before and is booked again has them looked up.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from txmq.reconcile.rows import UNDECIDED, VISIBLE, legs_of
from txmq.reconcile.rules import Rules, Window

__all__ = ["last_known", "units_of"]

_KNOWN: Final = ("prepared", "parked", "rolled_back", "sent", "committed")
"""What becomes of a half message, in its order: of what two days have heard of it, the last."""
_TOLD: Final = ("rolled_back", "prepared", "parked", "sent", "committed")
"""Of several messages of one key, the one that moves most is shown."""
_STATES: Final = {
    "messages": VISIBLE,
    "committed": ("committed",),
    "undecided": UNDECIDED,
    "parked": ("parked",),
    "rolled_back": ("rolled_back",),
}
"""What is counted of them, by the states of their places."""


def units_of(
    entries: DataFrame,
    messages: DataFrame,
    failures: DataFrame,
    offsets: DataFrame,
    rules: Rules,
    window: Window,
) -> DataFrame:
    """One row for each key, with all that is known of it.

    Args:
        entries: All rows of these transfers in any bank, whenever they were booked.
        messages: All messages about them, as they were known at the end of the day, each place in
            the log once (:func:`last_known`).
        failures: Those that were given back, likewise.
        offsets: How far groups of consumers have come.
        rules: They say who consumes.
        window: The day; what was booked before it and recorded in it is late.
    """
    # A clearing row alone is no transfer; that nothing stands behind it is for the proofs to say.
    return (
        _booked(entries, window)
        .join(_said(messages, offsets, rules), "key", "full_outer")
        .join(_given_back(failures, messages, rules), "key", "left")
        .select("key", *_facts())
    )


def last_known(messages: DataFrame) -> DataFrame:
    """One row for each place in the log that several days have heard of: what was known last."""
    best = Over.partitionBy("key", "id", "position").orderBy(_rank(_KNOWN).desc())
    found = messages.withColumn("place", f.row_number().over(best))
    return found.where(f.col("place") == 1).drop("place")


def _booked(entries: DataFrame, window: Window) -> DataFrame:
    """What the banks have of each key."""
    legs, kind, amount = legs_of(entries), f.col("kind"), f.col("amount")
    is_late = (f.col("booked_ms") < window.start_ms) & (f.col("recorded_ms") >= window.start_ms)
    is_customers = f.col("role") == "customer"

    def number(which: str) -> Column:
        return f.count(f.when(kind == which, 1)).cast("int")

    def total(which: str, sign: int) -> Column:
        return f.sum(f.when(kind == which, amount * sign).otherwise(0))

    return legs.groupBy("key").agg(
        number("debit").alias("debits"),
        total("debit", -1).alias("debited"),
        number("return").alias("returns"),
        total("return", 1).alias("returned"),
        number("credit").alias("credits"),
        total("credit", 1).alias("credited"),
        f.count(f.when(kind == "credit", f.col("id"))).alias("numbered"),
        # Spark would go through all rows once more to count what is distinct.
        f.size(f.collect_set(f.when(kind == "credit", f.col("id")))).alias("numbers"),
        f.collect_set(f.when(kind == "debit", f.col("bank"))).alias("debit_banks"),
        f.collect_set(f.when(kind == "credit", f.col("bank"))).alias("credit_banks"),
        f.collect_set(f.when((kind != "credit") & is_customers, f.col("account"))).alias("payers"),
        f.collect_set(f.when((kind == "credit") & is_customers, f.col("account"))).alias("payees"),
        f.collect_set(f.col("currency")).alias("currencies"),
        f.collect_set(f.abs(amount)).alias("amounts"),
        f.count(f.when(f.when(kind == "debit", -amount).otherwise(amount) < 0, 1)).alias("odd"),
        f.max(is_late).alias("is_late"),
        f.min("recorded_ms").alias("booked_first_ms"),
        f.max("recorded_ms").alias("booked_last_ms"),
    )


def _said(messages: DataFrame, offsets: DataFrame, rules: Rules) -> DataFrame:
    """What the log has of each key, and whether its consumers have come as far."""
    state, place = f.col("state"), ["group", "topic", "queue"]
    is_visible, one = state.isin(*VISIBLE), f.struct(
        "position", "id", "state", "decided_by", "reason", "payer", "payee"
    )  # fmt: skip
    # Each copy counts: who changes one of them and keeps its id is found as well.
    counts_for = ~(state == "rolled_back")
    is_unread = f.col("amount").isNull() | f.col("currency").isNull()
    # The log does not know who was handed what, but how far a group has come.
    is_behind = f.col("next_offset") > f.col("queue_offset")
    found = _with_group(messages, rules).join(f.broadcast(offsets), place, "left")
    of_each = found.groupBy("key").agg(
        *(_ids(state.isin(*states)).alias(name) for name, states in _STATES.items()),
        f.max_by(one, f.struct(_rank(_TOLD), f.col("position"))).alias("message"),
        f.count(f.when(is_visible & is_unread, 1)).alias("unread"),
        f.collect_set(f.when(is_visible, f.col("payer"))).alias("told_payers"),
        f.collect_set(f.when(is_visible, f.col("payee"))).alias("told_payees"),
        f.collect_set(f.when(is_visible, f.col("currency"))).alias("told_currencies"),
        f.collect_set(f.when(is_visible, f.col("amount"))).alias("told_amounts"),
        f.max(f.when(counts_for, f.col("amount"))).alias("ordered"),
        f.max(f.when(counts_for, f.col("currency"))).alias("ordered_currency"),
        f.min("stored_ms").alias("told_first_ms"),
        f.max(f.coalesce("decided_ms", "stored_ms")).alias("told_last_ms"),
        f.max(f.when(is_visible, is_behind)).alias("is_taken"),
    )
    # Of several places where the same message lies, the one that moves most counts.
    undecided = f.array_except("undecided", "messages")
    rolled_back = f.array_except(f.array_except("rolled_back", "messages"), "undecided")
    return of_each.withColumns({
        "messages": f.size("messages"),
        "committed": f.size("committed"),
        "undecided": f.size(undecided),
        "parked": f.size(f.array_except("parked", "messages")),
        "rolled_back": f.size(rolled_back),
    })  # fmt: skip


def _ids(is_so: Column) -> Column:
    return f.collect_set(f.when(is_so, f.col("id")))


def _rank(states: tuple[str, ...]) -> Column:
    return f.array_position(f.array(*map(f.lit, states)), f.col("state"))


def _with_group(messages: DataFrame, rules: Rules) -> DataFrame:
    """With who consumes each, as its topic says."""
    of_topics = {flow.topic: flow.group for flow in reversed(rules.log.flow) if flow.group}
    group = f.lit(None).cast("string")
    for topic, name in sorted(of_topics.items()):
        group = f.when(f.col("topic") == topic, name).otherwise(group)
    return messages.withColumn("group", group)


def _given_back(failures: DataFrame, messages: DataFrame, rules: Rules) -> DataFrame:
    """What became last of each key's messages that their consumers gave back. A message of the same
    key that had its own day is none of them.
    """
    visible = _with_group(messages, rules).where(f.col("state").isin(*VISIBLE))
    last = f.max_by(f.struct("state", "reason"), f.struct("position", "state"))
    of_theirs = failures.join(visible, ["key", "id", "group"], "left_semi")
    return of_theirs.groupBy("key").agg(last.alias("failure"))


def _facts() -> list[Column]:
    """All columns, with nothing where there is nothing."""
    numbers = (
        "debits", "debited", "returns", "returned", "credits", "credited", "numbered", "numbers",
        "messages", "committed", "undecided", "parked", "rolled_back", "unread", "odd",
        "ordered",
    )  # fmt: skip
    pairs = {
        "payers": "told_payers",
        "payees": "told_payees",
        "currencies": "told_currencies",
        "amounts": "told_amounts",
    }
    failure, message = f.col("failure"), f.col("message")
    on_its_way = (
        f.when(f.col("messages").isNull() | (f.col("messages") == 0), None)
        .when(failure.isNotNull(), failure.state)
        .when(f.col("is_taken"), "consumed")
        .when(f.col("is_taken").isNotNull(), "unacknowledged")
        .otherwise("undelivered")
    )
    zero = f.lit(0)
    return [
        *(f.coalesce(name, zero).alias(name) for name in numbers),
        *(_union(a, b).alias(a) for a, b in pairs.items()),
        _union("debit_banks").alias("debit_banks"),
        _union("credit_banks").alias("credit_banks"),
        f.col("ordered_currency"),
        on_its_way.alias("delivery"),
        message.id.alias("message_id"),
        message.state.alias("message_state"),
        message.decided_by.alias("decided_by"),
        f.coalesce(
            f.when(failure.state == "dead", failure.reason), message.reason
        ).alias("reason"),
        message.payer.alias("told_payer"),
        message.payee.alias("told_payee"),
        f.coalesce("is_late", f.lit(False)).alias("is_late"),
        f.least("booked_first_ms", "told_first_ms").alias("first_ms"),
        f.greatest("booked_last_ms", "told_last_ms").alias("last_ms"),
    ]  # fmt: skip


def _union(*names: str) -> Column:
    """What there is in any of these sets, once each and in order."""
    empty = f.array()
    found = [f.coalesce(f.col(name), empty) for name in names]
    return f.sort_array(f.array_distinct(f.concat(*found)))
