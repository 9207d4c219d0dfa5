"""The same night as a good PySpark engineer writes it by hand, in DataFrames and one file.

It knows the cases of a seeded day (``tests/reconcile/days.py``) and no others: it is the first day,
no money was recalled, no fee was booked, no account is a suspense account, and no bank proves both
sides of a booking. It writes the same ten tables as ``txmq reconcile``, and shares with it only the
definitions of the tables. It neither hashes nor syncs what it writes, and makes no report.
"""

import sys
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f

from txmq.reconcile.tables import (
    BALANCES,
    BOOKED,
    FAILURES,
    ITEMS,
    MATCHES,
    MESSAGES,
    PROOFS,
    TOTALS,
)

TABLES = {
    "matches": MATCHES,
    "items": ITEMS,
    "closed": ITEMS,
    "entries": BOOKED,
    "messages": MESSAGES,
    "failures": FAILURES,
    "by_hand": MESSAGES,
    "balances": BALANCES,
    "totals": TOTALS,
    "proofs": PROOFS,
}
NOT_COMPARED = {("proofs", "about")}
"""Prose, in which each job has its own words."""
LEGS = ("debit", "credit", "return")
VISIBLE = ("sent", "committed")
UNDECIDED = ("prepared", "parked")
BY_EFFECT = ("rolled_back", "prepared", "parked", "sent", "committed")
AGREED = ("matched", "returned", "rolled-back")
ACCOUNT = ("bank", "account", "currency")
OPEN = ("in-flight",)


def reconcile_by_hand(ledgers, rules, day, out):
    """Reconcile a day, and write the ten tables; returns the number of items."""
    window = rules.day.window(day)
    recorded = f.col("recorded_ms")
    entries = ledgers.entries.where((recorded >= window.start_ms) & (recorded < window.end_ms))
    legs = entries.where(f.col("kind").isin(*LEGS))
    messages = as_known(ledgers.messages, window)
    failures = ledgers.failures.where(f.col("stored_ms") < window.end_ms)

    booked = sum_legs(legs.where(f.col("role") != "clearing"), window)
    ordered = sum_messages(messages, failures, ledgers.offsets, rules)
    facts = classify(booked.join(ordered, "key", "full_outer"), rules, window).cache()
    is_agreed = f.col("class").isin(*AGREED)
    items = as_items(facts.where(~is_agreed), rules, day).cache()

    def write(name, rows):
        rows.select(*TABLES[name].names).write.parquet(str(out / name))

    write("matches", facts.where(is_agreed))
    write("items", items)
    write("closed", items.limit(0))
    classes = f.broadcast(items.select("key", "class"))
    of_items = legs.join(classes, "key").cache()
    write("entries", of_items)
    write("messages", messages.join(classes, "key", "left_semi"))
    write("failures", failures.join(classes, "key", "left_semi"))
    write("by_hand", messages.where(f.col("decided_by") == "operator"))
    balances = sum_accounts(entries, ledgers).cache()
    write("balances", balances)
    totals = sum_classes(facts.where(is_agreed), items, of_items).cache()
    write("totals", totals)
    proofs = prove_accounts(balances).unionByName(prove_banks(balances, totals))
    is_difference = f.col("account").isNotNull() | (
        (f.col("proof") == "conservation") & ~f.col("holds")
    )
    write("proofs", proofs.withColumn("first_seen", f.when(is_difference, day.isoformat())))
    return items.count()


def as_known(messages, window):
    """The messages of the day as known at its end: later decisions are masked."""
    stored, decided = f.col("stored_ms"), f.coalesce("decided_ms", "stored_ms")
    is_known = (f.col("state") == "sent") | (decided < window.end_ms)
    masked = {
        name: f.when(is_known, f.col(name))
        for name in ("queue_offset", "decided_ms", "decided_by", "reason")
    }
    masked["state"] = f.when(is_known, f.col("state")).otherwise("prepared")
    moment = f.when(is_known & (f.col("state") != "sent"), decided).otherwise(stored)
    is_of_day = (stored < window.end_ms) & (moment >= window.start_ms) & (moment < window.end_ms)
    return messages.where(is_of_day).withColumns(masked)


def sum_legs(legs, window):
    """Each transfer's bookings as one row."""
    kind, amount = f.col("kind"), f.col("amount")
    account = f.when(f.col("role") != "suspense", f.col("account"))

    def of(name, value):
        return f.when(kind == name, value)

    payer = f.when(kind != "credit", account)
    # The transfers of one bank are all paid to the other one.
    is_home = f.col("bank") == f.split_part("key", f.lit("/"), f.lit(1))
    is_late = (f.col("booked_ms") < window.start_ms) & (f.col("recorded_ms") >= window.start_ms)
    return legs.groupBy("key").agg(
        *(f.count(of(name, amount)).cast("int").alias(f"{name}s") for name in LEGS),
        f.sum(of("debit", -amount)).alias("debited"),
        f.sum(of("credit", amount)).alias("credited"),
        f.sum(of("return", amount)).alias("returned"),
        *both("id", of("credit", f.col("id"))),
        *both("debit_bank", f.when(kind != "credit", f.col("bank"))),
        *both("credit_bank", of("credit", f.col("bank"))),
        *both("leg_payer", payer),
        *both("leg_payee", of("credit", account)),
        *both("leg_currency", f.col("currency")),
        *both("leg_amount", f.abs(amount)),
        f.max(((amount > 0) == (kind == "debit")) & (amount != 0)).alias("leg_odd"),
        f.max(is_home == (kind == "credit")).alias("is_at_wrong_bank"),
        f.max(is_late).alias("is_late"),
        *both("leg_ms", f.col("recorded_ms")),
    )


def sum_messages(messages, failures, offsets, rules):
    """Each transfer's messages as one row, with how far they have come."""
    group = f.create_map(*(f.lit(t) for flow in rules.log.flow for t in (flow.topic, flow.group)))
    failed = failures.groupBy("id", "group").agg(
        f.max(f.struct("stored_ms", "position", "state", "reason")).alias("failure")
    )
    rows = (
        messages.withColumn("group", group[f.col("topic")])
        .join(f.broadcast(failed), ["id", "group"], "left")
        .join(f.broadcast(offsets), ["group", "topic", "queue"], "left")
    )
    state, amount, currency = f.col("state"), f.col("amount"), f.col("currency")
    is_visible, is_valid = state.isin(*VISIBLE), state != "rolled_back"
    effect = reduce(
        lambda case, place: case.when(state == BY_EFFECT[place], place),
        range(1, len(BY_EFFECT)),
        f.when(state == BY_EFFECT[0], 0),
    )
    shown = f.struct(effect, "position", "id", "state", "decided_by", "reason")

    def visible(value):
        return f.when(is_visible, value)

    return rows.groupBy("key").agg(
        *both("message_ids", visible(f.col("id"))),
        f.max(state == "committed").alias("has_commit"),
        f.max(state.isin(*UNDECIDED)).alias("is_undecided"),
        f.max(state == "parked").alias("is_parked"),
        f.max(state == "rolled_back").alias("is_rolled_back"),
        f.max(visible(amount.isNull() | currency.isNull())).alias("is_unread"),
        f.max(f.when(is_valid, amount)).alias("ordered"),
        f.max(f.when(is_valid, currency)).alias("ordered_currency"),
        *both("message_payer", visible(f.col("payer"))),
        *both("message_payee", visible(f.col("payee"))),
        *both("message_currency", visible(currency)),
        *both("message_amount", visible(amount)),
        f.min("stored_ms").alias("message_ms"),
        f.max(f.greatest("stored_ms", "decided_ms")).alias("message_ms_hi"),
        f.max(shown).alias("message"),
        f.max(visible(f.col("failure"))).alias("failure"),
        f.max(visible(f.col("next_offset") > f.col("queue_offset"))).alias("is_taken"),
    )


def both(name, value):
    """The least and the greatest value: they differ if the rows do not agree."""
    return f.min(value).alias(name), f.max(value).alias(f"{name}_hi")


def classify(met, rules, window):
    """The facts of each transfer, and its class."""
    col, lit = f.col, f.lit
    numbers = ("debits", "credits", "returns", "debited", "credited", "returned", "ordered")
    marks = ("leg_odd", "is_at_wrong_bank", "is_late", "has_commit")
    marks = (*marks, "is_undecided", "is_parked", "is_rolled_back")
    met = met.fillna(0, numbers).fillna(False, (*marks, "is_unread"))
    for name in ("payer", "payee", "currency", "amount"):
        met = met.withColumns({
            name: f.least(f"leg_{name}", f"message_{name}"),
            f"{name}_hi": f.greatest(f"leg_{name}_hi", f"message_{name}_hi"),
        })  # fmt: skip
    message, failure = col("message"), col("failure")
    is_visible = col("message_ids").isNotNull()
    by_offset = (
        f.when(col("is_taken"), "consumed")
        .when(~col("is_taken"), "unacknowledged")
        .otherwise("undelivered")
    )
    # A transfer of the seeded day has at most two messages.
    is_twice = (col("message_ids") != col("message_ids_hi")).cast("int")
    dead_reason = f.when(failure["state"] == "dead", failure["reason"])
    met = met.withColumns({
        "messages": f.when(is_visible, 1 + is_twice).otherwise(0),
        "delivery": f.when(is_visible, f.coalesce(failure["state"], by_offset)),
        "first_ms": f.least("leg_ms", "message_ms"),
        "last_ms": f.greatest("leg_ms_hi", "message_ms_hi"),
        "currency": f.coalesce("currency", "ordered_currency", lit("")),
        "spread": f.coalesce(col("amount_hi") - col("amount"), lit(0)),
        "reason": f.coalesce(dead_reason, message["reason"]),
        "message_id": message["id"],
        "message_state": message["state"],
        "decided_by": message["decided_by"],
    })  # fmt: skip
    met = met.withColumn("class", class_of(rules, window))
    left = col("debited") - col("returned") - col("credited")
    whole = f.greatest("ordered", "amount_hi", lit(0))
    at_risk = (
        f.when(col("class") == "currency-mismatch", whole)
        .when(left != 0, f.abs(left))
        .when((col("class") == "amount-mismatch") & (col("spread") != 0), col("spread"))
        .otherwise(whole)
    )
    holder = (
        f.when(left > 0, "transit")
        .when((col("credits") > 0) & (col("returns") > 0), "both")
        .when(col("credits") > 0, "payee")
        .when((col("returns") > 0) | (col("debits") > 0), "payer")
        .otherwise("nobody")
    )
    names = {name: joined(name) for name in ("debit_bank", "credit_bank", "payer", "payee")}
    return met.withColumns({**names, "amount": at_risk, "holder": holder}).select(
        *(name for name in ITEMS.names if name in FACTS)
    )


FACTS = {
    *("key", "class", "amount", "currency", "holder", "debit_bank", "credit_bank"),
    *("payer", "payee", "debits", "debited", "returns", "returned", "credits", "credited"),
    *("messages", "ordered", "message_id", "message_state", "delivery", "decided_by"),
    *("reason", "is_late", "first_ms", "last_ms"),
}


def class_of(rules, window):
    """The first class that fits."""
    col = f.col
    debited, credited, returned = (col(name) > 0 for name in ("debits", "credits", "returns"))
    was_taken, is_visible = col("debits") > col("returns"), col("messages") > 0
    is_undecided = ~is_visible & col("is_undecided")
    was_rolled_back = ~is_visible & ~col("is_undecided") & col("is_rolled_back")
    is_unknown = ~is_visible & ~col("is_undecided") & ~col("is_rolled_back")
    is_paid = ~debited & (credited | returned)
    is_owed = was_taken & is_visible & ~credited
    delivery = f.coalesce("delivery", f.lit(""))
    tolerances = [f.lit(v) for name, m in rules.money.items() for v in (name, m.tolerance)]
    is_off = col("spread") > f.coalesce(f.create_map(*tolerances)[col("currency")], f.lit(0))
    incomplete = {
        "committed-but-not-debited": ~debited & is_visible & col("has_commit"),
        "message-without-debit": ~debited & is_visible,
        "debit-without-message": was_taken & is_unknown,
        "parked": is_undecided,
        "dead-letter": is_owed & (delivery == "dead"),
        "committed-undelivered": is_owed & delivery.isin("undelivered", "unacknowledged"),
        "delivered-uncredited": is_owed,
    }
    is_given_up = (delivery == "dead") | (~is_visible & col("is_parked"))
    is_young = col("first_ms") > window.end_ms - rules.day.grace_ms
    can_wait = is_young & ~credited & ~is_paid & ~is_given_up
    is_done = (credited & is_visible) | returned
    odd = col("leg_odd") | f.coalesce(col("message_amount") < 0, f.lit(False))
    classes = {
        "duplicate-debit": (col("debits") > 1) | (col("returns") > 1),
        "duplicate-credit": (col("credits") > 1) & (col("id") == col("id_hi")),
        "duplicate-message": col("messages") > 1,
        "double-credit": (col("credits") > 1) | (credited & returned),
        "currency-mismatch": differs("leg_currency", "message_currency"),
        "amount-mismatch": is_off | col("is_unread") | odd,
        "account-mismatch": (col("payer") != col("payer_hi")) | (col("payee") != col("payee_hi")),
        "credit-without-message": ~is_visible
        & (credited | is_paid)
        & ~(was_taken & was_rolled_back),
        "rolled-back-but-debited": was_taken & was_rolled_back,
        "wrong-bank": col("is_at_wrong_bank"),
        "in-flight": can_wait & reduce(lambda one, other: one | other, incomplete.values()),
        **incomplete,
        "prior-period": is_done & col("is_late"),
        "returned": returned,
        "rolled-back": was_rolled_back,
    }
    return f.coalesce(*(f.when(holds, name) for name, holds in classes.items()), f.lit("matched"))


def differs(one, other):
    """True if not all values of two ledgers are equal."""
    return f.least(one, other) != f.greatest(f"{one}_hi", f"{other}_hi")


def joined(name):
    """The values of a column, mostly one."""
    least, most = f.col(name), f.col(f"{name}_hi")
    return f.when(least == most, least).otherwise(f.concat(least, f.lit(" / "), most))


def as_items(facts, rules, day):
    """The breaks and the open transfers, as new ones."""
    named = f.concat(f.lit(f"{rules.name}\0"), "key")
    nothing = f.lit(None).cast("string")
    return facts.withColumns({
        "break_id": f.substring(f.sha2(named, 256), 1, 16),
        "was": nothing,
        "group": group_of("class"),
        "status": f.lit("new"),
        "first_seen": f.lit(day.isoformat()),
        "age_days": f.lit(0),
        "bucket": f.lit("0"),
        "history": f.concat_ws(" ", f.lit(day.isoformat()), "class", f.lit("new")),
        "explained_by": nothing,
        "explanation": nothing,
        "id_doubt": nothing,
        "suggestion": nothing,
    })  # fmt: skip


def group_of(class_):
    """The group of a class."""
    is_open = f.col(class_).isin(*OPEN)
    return f.when(f.col(class_).isin(*AGREED), "agreed").when(is_open, "open").otherwise("break")


def sum_accounts(entries, ledgers):
    """The balances of each account over the day."""
    kind, amount = f.col("kind"), f.col("amount")
    moved = entries.groupBy("role", *ACCOUNT).agg(
        f.count("*").alias("rows"),
        *(f.sum(f.when(kind == name, amount)).alias(name) for name in LEGS),
        f.sum(f.when(~kind.isin(*LEGS), amount)).alias("other"),
    )
    opening = ledgers.opening.withColumnsRenamed({"amount": "opening", "rows": "opening_rows"})
    later = ledgers.later.drop("rows").withColumnRenamed("amount", "later")
    parts = moved.unionByName(opening, allowMissingColumns=True)
    parts = parts.unionByName(later, allowMissingColumns=True)
    sums = ("opening", "opening_rows", "rows", *LEGS, "other", "later")
    journal = parts.groupBy("role", *ACCOUNT).agg(*(f.sum(name).alias(name) for name in sums))
    told = ledgers.accounts.withColumnRenamed("balance", "told")
    found = journal.join(told, [*ACCOUNT], "full_outer").fillna(0, sums)
    found = found.fillna("customer", "role")
    found = found.withColumn("moved", sum((f.col(name) for name in (*LEGS, "other")), f.lit(0)))
    no_id = f.lit(None).cast("long")
    return found.withColumns({
        "moved": f.col("moved").cast("long"),
        "closing": f.col("opening") + f.col("moved"),
        "closing_rows": f.col("opening_rows") + f.col("rows"),
        "closed": f.lit(0).cast("long"),
        "closed_rows": f.lit(0).cast("long"),
        "first_id": no_id,
        "closed_id": no_id,
        "last_id": no_id,
    })  # fmt: skip


def sum_classes(agreed, items, of_items):
    """The totals of each class. What was booked counts in the currency of its rows."""
    sums = ("transfers", "debited", "returned", "credited", "ordered", "at_risk")
    one = f.lit(1).alias("transfers")
    plain = agreed.select("class", "currency", one, *sums[1:5])
    broken = items.select("class", "currency", one, "ordered", f.col("amount").alias("at_risk"))
    kind, amount = f.col("kind"), f.col("amount")
    booked = of_items.where(f.col("role") != "clearing").select(
        "class",
        "currency",
        f.when(kind == "debit", -amount).alias("debited"),
        f.when(kind == "return", amount).alias("returned"),
        f.when(kind == "credit", amount).alias("credited"),
    )
    rows = plain.unionByName(broken, allowMissingColumns=True)
    rows = rows.unionByName(booked, allowMissingColumns=True)
    added = rows.groupBy("class", "currency").agg(*(f.sum(name).alias(name) for name in sums))
    return added.fillna(0, sums).withColumn("group", group_of("class"))


def prove_accounts(balances):
    """The table of accounts against the journal: each account that differs, and each bank."""
    is_listed = (f.col("role") == "customer") | f.col("told").isNotNull()
    rows = balances.where(is_listed).select(
        *ACCOUNT,
        f.coalesce("told", f.lit(0)).alias("expected"),
        (f.col("closing") + f.col("later")).alias("found"),
    )
    is_wrong = f.col("expected") != f.col("found")
    banks = rows.groupBy("bank", "currency").agg(
        f.sum("expected").alias("expected"),
        f.sum("found").alias("found"),
        (~f.max(is_wrong)).alias("holds"),
    )
    wrong = rows.where(is_wrong).withColumn("holds", f.lit(False))
    return wrong.unionByName(banks, allowMissingColumns=True).withColumns({
        "proof": f.lit("account-table"),
        "about": f.lit("the table of accounts equals the journal"),
    })  # fmt: skip


def prove_banks(balances, totals):
    """All banks together: the money of customers, and the classes against the books."""
    role, moved = f.col("role"), f.col("moved")

    def booked(name):
        return f.sum(f.when(role != "clearing", f.col(name)).otherwise(0))

    books = balances.groupBy("currency").agg(
        f.sum(f.when(role == "capital", -moved).otherwise(0)).alias("outside"),
        f.sum(f.when(role.isin("customer", "suspense"), moved).otherwise(0)).alias("held"),
        (-booked("debit")).alias("debit"),
        booked("return").alias("return"),
        booked("credit").alias("credit"),
    )
    names = ("debited", "returned", "credited")
    classed = totals.groupBy("currency").agg(*(f.sum(name).alias(name) for name in names))
    met = books.join(f.broadcast(classed), "currency", "left").fillna(0, names)
    transit = f.col("debited") - f.col("returned") - f.col("credited")
    pairs = {
        "conservation": (f.col("outside") - transit, f.col("held")),
        "classes-debit": (f.col("debit"), f.col("debited")),
        "classes-return": (f.col("return"), f.col("returned")),
        "classes-credit": (f.col("credit"), f.col("credited")),
    }
    proofs = f.array(
        *(
            f.struct(f.lit(name).alias("proof"), a.alias("expected"), b.alias("found"))
            for name, (a, b) in pairs.items()
        )
    )
    rows = met.select("currency", f.inline(proofs))
    nothing = f.lit(None).cast("string")
    return rows.withColumns({
        "bank": nothing,
        "account": nothing,
        "holds": f.col("expected") == f.col("found"),
        "about": f.lit("two sums over all banks are equal"),
    })  # fmt: skip


def differences(ours, theirs):
    """The tables whose rows differ between two folders, with the numbers of rows that only one
    has, and an example.
    """
    found = {}
    for name, table in TABLES.items():
        names = [n for n in table.names if (name, n) not in NOT_COMPARED]
        one, other = (_rows(folder / name, names) for folder in (ours, theirs))
        if one != other:
            example = next(iter((one - other) or (other - one)), None)
            found[name] = len(one - other), len(other - one), example
    return found


def _rows(folder, names):
    files = sorted(folder.glob("**/*.parquet"))
    rows = pa.concat_tables(
        [pq.read_table(file, partitioning=None).select(names) for file in files]
    )
    columns = (column.to_pylist() for column in rows.columns)
    counted = {}
    for row in zip(*columns, strict=True):
        counted[row] = counted.get(row, 0) + 1
    return {(count, *row) for row, count in counted.items()}


if __name__ == "__main__":
    print(differences(*map(Path, sys.argv[1:])))
