"""What a day came to is judged: its tables are made a summary, and the summary gets a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from txmq.errors import ReconcileRefused
from txmq.reconcile.classes import Class
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.ledgers import Outcome
from txmq.reconcile.report.masking import mask
from txmq.reconcile.report.words import amount
from txmq.reconcile.rules import Money, Rules
from txmq.reconcile.summary import BUCKETS, Aged, Decided, Item, Proof, Result, Total, Verdict
from txmq.reconcile.tables import ENTRIES

__all__ = ["judged"]

_ORDER: Final = {each.value: place for place, each in enumerate(Class)}
_OF_ACCOUNTS: Final = ("roll-forward", "roll-forward-rows", "account-table")
"""Proofs whose rows are accounts; those of the others are transfers, or nothing."""


def judged(
    outcome: Outcome, rules: Rules, manifest: Manifest, contents: Mapping[str, str]
) -> Result:
    """The summary of a day.

    Args:
        outcome: Its tables.
        rules: The limits.
        manifest: What was read.
        contents: The hash of each table.

    Raises:
        ReconcileRefused: The classes do not add up to what the banks have booked, or Spark has not
            read all that was extracted: a mistake of txmq's own, or of Spark.
    """
    _see_all_was_read(outcome.balances, manifest)
    totals = _totals(outcome.totals)
    proofs, broken, off = _proofs(outcome.proofs, rules)
    items = _items(outcome.items, rules)
    aging, oldest = _aging(outcome.items)
    verdict, why = _verdict(totals, proofs, off, oldest, rules)
    currencies = {each.currency for each in totals} | {each.currency or "" for each in proofs}
    return Result(
        name=rules.name,
        business_date=manifest.business_date,
        rules_version=rules.version,
        rules_digest=rules.digest,
        start_ms=manifest.start_ms,
        end_ms=manifest.end_ms,
        as_of_ms=manifest.as_of_ms,
        is_final=manifest.is_final,
        verdict=verdict,
        why=tuple(why),
        controls=manifest.controls,
        totals=totals,
        aging=aging,
        proofs=proofs,
        broken_proofs=broken,
        items=items,
        closed=outcome.closed.count(),
        decisions=_decisions(outcome.by_hand, rules),
        decided_by_hand=outcome.by_hand.count(),
        digits={each: _money(rules, each).digits for each in sorted(currencies) if each},
        contents=dict(contents),
    )


def _money(rules: Rules, currency: str) -> Money:
    return rules.money.get(currency) or Money()


def _see_all_was_read(balances: DataFrame, manifest: Manifest) -> None:
    """What the accounts have had is what was extracted, to the row and to the cent."""
    moved = f.sum(f.col("moved").cast("decimal(38,0)"))
    sums = balances.groupBy("bank", "currency").agg(f.sum("rows"), moved).collect()
    rows, amounts = Counter[str](), dict[tuple[str, str], int]()
    for bank, currency, count, sum_ in sums:
        rows[bank] += count
        amounts[bank, currency] = int(sum_)
    for each in manifest.controls:
        if each.table != ENTRIES.name:
            continue
        bank, now = each.source, rows[each.source]
        if now != each.rows:
            raise ReconcileRefused(
                f"{bank}/{each.table}: {each.rows} rows were extracted and Spark has read {now}"
            )
        for currency, was in each.amounts.items():
            if (found := amounts.get((bank, currency), 0)) != was:
                raise ReconcileRefused(
                    f"{bank}/{each.table}: the sum of {currency} was {was} when it was "
                    f"extracted, and is {found} of what Spark has read"
                )


def _totals(totals: DataFrame) -> tuple[Total, ...]:
    found = [Total(*each) for each in totals.collect()]
    return tuple(sorted(found, key=lambda each: (_ORDER[each.class_], each.currency)))


def _proofs(
    proofs: DataFrame, rules: Rules
) -> tuple[tuple[Proof, ...], int, Mapping[tuple[str, str], int]]:
    """Each proof as a whole, then what does not hold; how many do not, and by how much they are off
    by proof and currency.
    """
    is_whole = f.col("account").isNull()
    differs = f.abs(f.col("expected") - f.col("found"))
    off = {
        (each["proof"], each["currency"] or ""): int(each["off"])
        for each in proofs.where(~f.col("holds") & ~is_whole)
        .groupBy("proof", "currency")
        .agg(f.sum(differs).alias("off"))
        .collect()
    }
    place = f.row_number().over(
        Over.partitionBy("proof", is_whole).orderBy(differs.desc(), "bank", "account", "currency")
    )
    shown = proofs.withColumn("place", place).where(
        is_whole | (f.col("place") <= rules.limits.evidence)
    )
    found = [_proof(each) for each in shown.drop("place").collect()]
    named = {proof for proof, _ in off}
    for each in found:
        if each.account is not None or each.holds:
            continue
        if each.proof.startswith("classes-"):
            raise ReconcileRefused(
                f"the classes do not add up: {each.about}, but {each.expected} is not "
                f"{each.found} in {each.currency}; that is a mistake of txmq's, please report it"
            )
        off.setdefault((each.proof, each.currency or ""), abs(each.expected - each.found))
    broken = proofs.where(~f.col("holds") & ~is_whole).count()
    # Of what is named by accounts or transfers the whole is no more than their sum.
    whole = sum(
        not each.holds and each.account is None and each.proof not in named for each in found
    )
    found.sort(key=lambda each: (
        each.proof, each.account is not None, each.bank or "", each.currency or "",
        -abs(each.expected - each.found), each.account or "",
    ))  # fmt: skip
    return tuple(found), broken + whole, off


def _proof(row: Row) -> Proof:
    plain = row.asDict()
    if plain["proof"] in _OF_ACCOUNTS and plain["account"] is not None:
        plain["account"] = mask(plain["account"])
    return Proof(**plain)


def _items(items: DataFrame, rules: Rules) -> tuple[Item, ...]:
    """Some of each class: the oldest, and of these the largest."""
    order = (f.col("age_days").desc(), f.col("amount").desc(), f.col("key"))
    place = f.row_number().over(Over.partitionBy("class").orderBy(*order))
    shown = items.withColumn("place", place).where(f.col("place") <= rules.limits.evidence)
    rows = sorted(shown.collect(), key=lambda each: (_ORDER[each["class"]], each["place"]))
    return tuple(_item(each) for each in rows)


def _item(row: Row) -> Item:
    plain = row.asDict()
    plain["class_"] = plain.pop("class")
    plain |= {side: _masked(plain[side]) for side in ("payer", "payee")}
    return Item(**{name: plain[name] for name in Item.__struct_fields__})


def _masked(accounts: str | None) -> str | None:
    return accounts and " / ".join(map(mask, accounts.split(" / ")))


def _decisions(by_hand: DataFrame, rules: Rules) -> tuple[Decided, ...]:
    """The latest of them."""
    latest = by_hand.orderBy(f.col("decided_ms").desc(), "position").limit(rules.limits.evidence)
    found = []
    for each in latest.withColumnRenamed("id", "message_id").collect():
        plain = each.asDict() | {side: _masked(each[side]) for side in ("payer", "payee")}
        found.append(Decided(**{name: plain[name] for name in Decided.__struct_fields__}))
    return tuple(found)


def _aging(items: DataFrame) -> tuple[tuple[Aged, ...], int]:
    """The matrix, and how old the oldest break is."""
    rows = (
        items.groupBy("class", "group", "bucket", "currency")
        .agg(
            f.count(f.lit(1)).alias("transfers"),
            f.sum("amount").alias("at_risk"),
            f.max("age_days").alias("oldest"),
        )
        .collect()
    )
    found = [
        Aged(each["class"], each["bucket"], each["currency"], each["transfers"], each["at_risk"])
        for each in rows
    ]
    found.sort(key=lambda each: (
        _ORDER[each.class_], each.currency, BUCKETS.index(each.bucket)
    ))  # fmt: skip
    oldest = max((each["oldest"] for each in rows if each["group"] == "break"), default=0)
    return tuple(found), oldest


def _verdict(
    totals: tuple[Total, ...],
    proofs: tuple[Proof, ...],
    off: Mapping[tuple[str, str], int],
    oldest: int,
    rules: Rules,
) -> tuple[Verdict, list[str]]:
    breaks = sum(each.transfers for each in totals if each.group == "break")
    failed = sorted({each.proof for each in proofs if not each.holds})
    over = list(_over(totals, off, breaks, oldest, rules))
    if over:
        return "over limits", over
    if not breaks and not failed:
        return "clean", []
    why = [f"{breaks} {'break is' if breaks == 1 else 'breaks are'} within the limits"]
    why += [f"the proof {each} does not hold, by an amount within the limits" for each in failed]
    return "within limits", why[not breaks :]


def _over(
    totals: tuple[Total, ...],
    off: Mapping[tuple[str, str], int],
    breaks: int,
    oldest: int,
    rules: Rules,
) -> Iterator[str]:
    """What is more than the rules forgive."""
    limits, at_risk = rules.limits, Counter[str]()
    for each in totals:
        if each.group == "break":
            at_risk[each.currency] += each.at_risk
    if breaks > limits.breaks:
        yield f"{breaks} breaks are more than {limits.breaks}"
    if oldest > limits.age_days:
        yield f"a break is {oldest} business days old, and {limits.age_days} are allowed"
    for currency, sum_ in sorted(at_risk.items()):
        money = _money(rules, currency)
        if sum_ > money.materiality:
            most = amount(money.materiality, money.digits)
            yield (
                f"{amount(sum_, money.digits)} {currency} at risk is more than the {most} that is "
                "material"
            )
    for (proof, currency), sum_ in sorted(off.items()):
        money = _money(rules, currency)
        if sum_ > money.materiality:
            told = f"{amount(sum_, money.digits)} {currency}" if currency else f"{sum_}"
            yield f"the proof {proof} does not hold: it is off by {told}"
