"""The summary of a day and its verdict, made from the stored tables, which the signature covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.classes import Class
from txmq.reconcile.differences import OF_ACCOUNTS, ProofDay
from txmq.reconcile.explanations import Explanations, ProofExplanation
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.report.words import amount, mask, mask_sides
from txmq.reconcile.rules import Rules
from txmq.reconcile.summary import BUCKETS, Aged, Proof, Result, Total
from txmq.reconcile.tables import ENTRIES
from txmq.reconcile.written_table import WrittenTable, sum_groups, top_rows

__all__ = ["judge"]

_CLASSES: Final[list[str]] = list(Class)
_BY_DIFFERENCE: Final = ("-size", "bank", "account", "currency")
_BY_AGE: Final = ("-age_days", "-amount", "key")
_BY_TIME: Final = ("-decided_ms", "position")
_OF_MANIFEST: Final = ("business_date", "start_ms", "end_ms", "as_of_ms", "is_final", "controls")
_NOT_SHOWN: Final = (
    *("group", "debit_bank", "credit_bank", "debits", "returns", "credits"),
    *("last_ms", "history"),
)
"""Columns of ``ITEMS`` that no report has."""
_DECISION: Final = (
    *("key", "message_id", "state", "payer", "payee", "amount", "currency"),
    *("decided_ms", "reason"),
)


def judge(
    tables: Mapping[str, WrittenTable],
    rules: Rules,
    manifest: Manifest,
    contents: Mapping[str, str],
    explanations: Explanations | None = None,
) -> Result:
    """Summarize a day and decide its verdict.

    ``contents`` has the hash of each table that the run has written.

    Raises:
        ReconcileRefused: A table cannot be read. Or txmq or Spark has an error: the classes do not
            add up to the banks' bookings, or the workers did not read the whole extract.
    """
    _check_all_was_read(tables["balances"], manifest)
    totals = [msgspec.convert(row, Total) for row in tables["totals"].rows()]
    proofs, broken, off = _proofs(ProofDay(manifest, tables, explanations), rules)
    aging, oldest = _aging(tables["items"])
    most = rules.limits.evidence
    items = top_rows(tables["items"].pieces(), most, _BY_AGE, by="class")
    items.sort(key=lambda row: _CLASSES.index(row["class"]))  # Rows of a class keep their order.
    decisions = top_rows(tables["by_hand"].pieces(), most, _BY_TIME)
    currencies = {total.currency for total in totals} | {proof.currency for proof in proofs}
    found = Result(
        name=rules.name,
        rules_version=rules.version,
        rules_digest=rules.digest,
        verdict="clean",
        why=(),
        totals=tuple(sorted(totals, key=lambda one: (_CLASSES.index(one.class_), one.currency))),
        aging=aging,
        proofs=proofs,
        broken_proofs=broken,
        items=tuple(
            {name: value for name, value in row.items() if name not in _NOT_SHOWN}
            for row in map(mask_sides, items)
        ),
        closed=tables["closed"].row_count,
        decisions=tuple(
            {name: row["id" if name == "message_id" else name] for name in _DECISION}
            for row in map(mask_sides, decisions)
        ),
        decided_by_hand=tables["by_hand"].row_count,
        digits={name: rules.money_of(name).digits for name in sorted(filter(None, currencies))},
        contents=dict(contents),
        oldest_days=oldest,
        zone=rules.day.zone,
        **{name: getattr(manifest, name) for name in _OF_MANIFEST},
    )
    if over := tuple(_exceeded_limits(found, off, rules)):
        return msgspec.structs.replace(found, verdict="over limits", why=over)
    if within := tuple(_reasons(found)):
        return msgspec.structs.replace(found, verdict="within limits", why=within)
    return found


def _check_all_was_read(balances: WrittenTable, manifest: Manifest) -> None:
    """Check that the accounts' bookings equal the extract, to the row and to the cent."""
    read = balances.pieces("bank", "currency", "rows", "moved")
    sums = sum_groups(read, ("bank", "currency"), ("rows", "moved"))
    for control in (one for one in manifest.controls if one.table == ENTRIES.name):
        bank = control.source
        rows = sum(of[1] for (name, _), of in sums.items() if name == bank)
        amounts = {name: sums.get((bank, name), [0])[-1] for name in control.amounts}
        now = msgspec.structs.replace(control, rows=rows, amounts=amounts)
        if (differs := control.difference(now)) is not None:
            raise ReconcileRefused(f"the workers did not read the whole extract: {differs}")


def _proofs(
    day: ProofDay, rules: Rules
) -> tuple[tuple[Proof, ...], int, Mapping[tuple[str, str], int]]:
    """The proofs, with rows that differ; how many are open; the rest by proof and currency."""
    covers, most = day.covers(), rules.limits.evidence
    shown = top_rows(day.covered_rows(covers), most, _BY_DIFFERENCE, by="proof")
    numbers = ("is_open", "size", "by_items", "by_person")
    sums = sum_groups(day.covered_rows(covers), ("proof", "bank", "currency"), numbers)
    single = {proof for proof, _, _ in sums}
    for row in day.tables["proofs"].rows(where=pc.field("account").is_null()):
        off, group = row["found"] - row["expected"], (row["proof"], row["bank"], row["currency"])
        if off and row["proof"].startswith("classes-"):
            raise ReconcileRefused(
                f"the classes do not add up: {row['about']}, but {row['expected']} is not "
                f"{row['found']} in {row['currency']}; this is an error in txmq, please report it"
            )
        # If single accounts or transfers have rows, the whole proof is only their sum.
        if row["proof"] not in single:
            cover = covers.get(day.place_of(row))
            by_items = (cover and cover.by_items) or 0
            by_person = off - by_items if cover and cover.person else 0
            rest = off - by_items - by_person
            sums[group] = [1, int(rest != 0), abs(rest), by_items, by_person]
        shown.append(row | dict(zip(numbers, sums.get(group, [0] * 5)[1:], strict=True)))
    left = Counter[tuple[str, str]]()
    for (proof, _, currency), (_, _, size, *_) in sums.items():
        left[proof, currency or ""] += size
    people = {place: cover.person for place, cover in covers.items()}
    found = [_proof(row, people.get(day.place_of(row))) for row in shown]
    found.sort(key=lambda proof: (
        proof.proof, proof.account is not None, proof.bank or "", proof.currency or "",
        not proof.is_open, -abs(proof.difference), proof.account or "",
    ))  # fmt: skip
    return tuple(found), sum(are_open for _, are_open, *_ in sums.values()), left


def _proof(row: dict[str, Any], person: ProofExplanation | None) -> Proof:
    more: dict[str, Any] = {name: int(row[name]) for name in ("by_items", "by_person")}
    more["is_open"] = bool(row["is_open"])
    if person is not None:
        more |= {"explained_by": person.by, "explanation": person.reason, "until": person.last}
    if row["proof"] in OF_ACCOUNTS and row["account"] is not None:
        more["account"] = mask(row["account"])
    return msgspec.convert(row | more, Proof)


def _aging(items: WrittenTable) -> tuple[tuple[Aged, ...], int]:
    """The aging matrix, and the age of the oldest break."""
    read = items.pieces("class", "bucket", "currency", "amount")
    sums = sum_groups(read, ("class", "bucket", "currency"), ("amount",))
    found = [Aged(*place, *of) for place, of in sums.items()]
    found.sort(key=lambda cell: (
        _CLASSES.index(cell.class_), cell.currency, BUCKETS.index(cell.bucket)
    ))  # fmt: skip
    ages = sum_groups(items.pieces("group", "age_days"), ("group", "age_days"), ())
    return tuple(found), max((age for group, age in ages if group == "break"), default=0)


def _reasons(found: Result) -> Iterator[str]:
    """The sentences about breaks and proofs within the limits."""
    if found.breaks:
        yield f"{quantity(found.breaks, 'break is', 'breaks are')} within the limits"
    for proof in sorted({proof.proof for proof in found.proofs if proof.is_open}):
        yield f"the proof {proof} does not hold, by an amount within the limits"


def _exceeded_limits(
    found: Result, off: Mapping[tuple[str, str], int], rules: Rules
) -> Iterator[str]:
    """The sentences about exceeded limits."""
    limits = rules.limits
    if found.breaks > limits.breaks:
        yield f"{quantity(found.breaks, 'break is', 'breaks are')} more than {limits.breaks}"
    if found.oldest_days > limits.age_days:
        age, allowed = quantity(found.oldest_days, "business day"), limits.age_days
        yield f"a break is {age} old, and {quantity(allowed, 'is', 'are')} allowed"
    for currency, sum_ in found.at_risk.items():
        money = rules.money_of(currency)
        if sum_ > money.materiality:
            risk, most = (amount(minor, money.digits) for minor in (sum_, money.materiality))
            yield f"{risk} {currency} at risk is more than the {most} that is material"
    for (proof, currency), sum_ in sorted(off.items()):
        money = rules.money_of(currency)
        if sum_ > money.materiality:
            off_by = f"{amount(sum_, money.digits)} {currency}" if currency else f"{sum_}"
            yield f"the proof {proof} does not hold: it is off by {off_by}"
