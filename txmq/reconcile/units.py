"""The second pass: it assembles every transfer that does not plainly agree from all of its rows.

These are few on most days, so texts are compared as texts, and sets hold the values that should
be single. An open transfer brings its earlier rows along; for one that was agreed before and is
booked again they are looked up.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from txmq.reconcile.rows import UNDECIDED, VISIBLE, legs_of
from txmq.reconcile.rules import DayWindow, Rules

__all__ = ["last_known", "units_of"]

_BY_PROGRESS: Final = ("prepared", "parked", "rolled_back", "sent", "committed")
"""The states of a half message in order: of the states that two days know, the last counts."""
_BY_EFFECT: Final = ("rolled_back", "prepared", "parked", "sent", "committed")
"""Of several messages of one key, the one with the greatest effect is shown."""
_STATES: Final = {
    "messages": VISIBLE,
    "committed": ("committed",),
    "undecided": UNDECIDED,
    "parked": ("parked",),
    "rolled_back": ("rolled_back",),
}
"""The counts of messages, by their states."""


def units_of(
    entries: DataFrame,
    messages: DataFrame,
    failures: DataFrame,
    offsets: DataFrame,
    rules: Rules,
    window: DayWindow,
) -> DataFrame:
    """One row for each key, with all its facts.

    Args:
        entries: All rows of these transfers in any bank and on any day.
        messages: All their messages, as known at the end of the day, each log position once
            (:func:`last_known`).
        failures: Their messages that consumers gave back, likewise.
        offsets: The consumer groups' offsets.
        rules: The consumer group of each topic.
        window: The day; an entry booked before it and recorded in it is late.
    """
    # A clearing row alone is not a transfer; the proofs detect that it has no other side.
    return (
        _booked_facts(entries, window)
        .join(_log_facts(messages, offsets, rules), "key", "full_outer")
        .join(_delivery_failures(failures, messages, rules), "key", "left")
        .select("key", *_facts())
    )


def last_known(messages: DataFrame) -> DataFrame:
    """One row for each log position: the latest known state."""
    best = Over.partitionBy("key", "id", "position").orderBy(_rank(_BY_PROGRESS).desc())
    found = messages.withColumn("place", f.row_number().over(best))
    return found.where(f.col("place") == 1).drop("place")


def _booked_facts(entries: DataFrame, window: DayWindow) -> DataFrame:
    """The entries of each key, summarized."""
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
        # Counting distinct values would take Spark another pass over all rows.
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


def _log_facts(messages: DataFrame, offsets: DataFrame, rules: Rules) -> DataFrame:
    """The messages of each key, and whether their consumers have reached them."""
    state, place = f.col("state"), ["group", "topic", "queue"]
    is_visible, one = state.isin(*VISIBLE), f.struct(
        "position", "id", "state", "decided_by", "reason"
    )  # fmt: skip
    # Every copy counts, so that a changed copy with the same id is found too.
    counts_for = ~(state == "rolled_back")
    is_unread = f.col("amount").isNull() | f.col("currency").isNull()
    # The log does not record deliveries, but the offset of each group.
    is_behind = f.col("next_offset") > f.col("queue_offset")
    found = _with_group(messages, rules).join(f.broadcast(offsets), place, "left")
    of_each = found.groupBy("key").agg(
        *(_ids(state.isin(*states)).alias(name) for name, states in _STATES.items()),
        f.max_by(one, f.struct(_rank(_BY_EFFECT), f.col("position"))).alias("message"),
        f.count(f.when(is_visible & is_unread, 1)).alias("unread"),
        f.collect_set(f.when(is_visible, f.col("payer"))).alias("ordered_payers"),
        f.collect_set(f.when(is_visible, f.col("payee"))).alias("ordered_payees"),
        f.collect_set(f.when(is_visible, f.col("currency"))).alias("ordered_currencies"),
        f.collect_set(f.when(is_visible, f.col("amount"))).alias("ordered_amounts"),
        f.max(f.when(counts_for, f.col("amount"))).alias("ordered"),
        f.max(f.when(counts_for, f.col("currency"))).alias("ordered_currency"),
        f.min("stored_ms").alias("message_first_ms"),
        f.max(f.coalesce("decided_ms", "stored_ms")).alias("message_last_ms"),
        f.max(f.when(is_visible, is_behind)).alias("is_taken"),
    )
    # If a message is stored several times, the copy with the greatest effect counts.
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
    """Add the consumer group of each message, by its topic."""
    of_topics = {flow.topic: flow.group for flow in reversed(rules.log.flow) if flow.group}
    group = f.lit(None).cast("string")
    for topic, name in sorted(of_topics.items()):
        group = f.when(f.col("topic") == topic, name).otherwise(group)
    return messages.withColumn("group", group)


def _delivery_failures(failures: DataFrame, messages: DataFrame, rules: Rules) -> DataFrame:
    """The last failure of each key's messages. Another message of the same key from an earlier
    day does not count.
    """
    visible = _with_group(messages, rules).where(f.col("state").isin(*VISIBLE))
    last = f.max_by(f.struct("state", "reason"), f.struct("position", "state"))
    of_theirs = failures.join(visible, ["key", "id", "group"], "left_semi")
    return of_theirs.groupBy("key").agg(last.alias("failure"))


def _facts() -> list[Column]:
    """All columns, with zeros and empty sets instead of NULL."""
    numbers = (
        "debits", "debited", "returns", "returned", "credits", "credited", "numbered", "numbers",
        "messages", "committed", "undecided", "parked", "rolled_back", "unread", "odd",
        "ordered",
    )  # fmt: skip
    pairs = {
        "payers": "ordered_payers",
        "payees": "ordered_payees",
        "currencies": "ordered_currencies",
        "amounts": "ordered_amounts",
    }
    failure, message = f.col("failure"), f.col("message")
    delivery = (
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
        delivery.alias("delivery"),
        message.id.alias("message_id"),
        message.state.alias("message_state"),
        message.decided_by.alias("decided_by"),
        f.coalesce(
            f.when(failure.state == "dead", failure.reason), message.reason
        ).alias("reason"),
        f.coalesce("is_late", f.lit(False)).alias("is_late"),
        f.least("booked_first_ms", "message_first_ms").alias("first_ms"),
        f.greatest("booked_last_ms", "message_last_ms").alias("last_ms"),
    ]  # fmt: skip


def _union(*names: str) -> Column:
    """The union of these sets, sorted."""
    empty = f.array()
    found = [f.coalesce(f.col(name), empty) for name in names]
    return f.sort_array(f.array_distinct(f.concat(*found)))
