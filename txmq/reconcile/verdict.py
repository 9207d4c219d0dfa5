"""The summary of a day and its verdict, made from the tables as they were written. The signature
covers the stored tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ReconcileRefused
from txmq.quantity import quantity
from txmq.reconcile.classes import Class
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.report.account_mask import mask
from txmq.reconcile.report.words import amount
from txmq.reconcile.rules import Money, Rules
from txmq.reconcile.summary import BUCKETS, Aged, HandDecision, Item, Proof, Result, Total, Verdict
from txmq.reconcile.tables import ENTRIES
from txmq.reconcile.written_table import Order, WrittenTable, sum_groups, top_rows

__all__ = ["judge"]

_ORDER: Final = {class_.value: place for place, class_ in enumerate(Class)}
_OF_ACCOUNTS: Final = ("roll-forward", "roll-forward-rows", "account-table")
"""Proofs with a row for each account; the others have a row for each transfer, or none."""
_WORST: Final[Order] = (
    ("off", "descending"),
    ("bank", "ascending"),
    ("account", "ascending"),
    ("currency", "ascending"),
)
_OLDEST: Final[Order] = (("age_days", "descending"), ("amount", "descending"), ("key", "ascending"))
_LATEST: Final[Order] = (("decided_ms", "descending"), ("position", "ascending"))


def judge(
    tables: Mapping[str, WrittenTable],
    rules: Rules,
    manifest: Manifest,
    contents: Mapping[str, str],
) -> Result:
    """Summarize a day and decide its verdict.

    Args:
        tables: The tables that the run has written, by name.
        rules: The limits.
        manifest: What was read.
        contents: The hash of each table.

    Raises:
        ReconcileRefused: The classes do not add up to what the banks have booked, or Spark has
            not read the whole extract: an error of txmq or of Spark. Or a table cannot be read.
    """
    _check_all_was_read(tables["balances"], manifest)
    totals = _totals(tables["totals"])
    proofs, broken, off = _proofs(tables["proofs"], rules)
    items = _items(tables["items"], rules)
    aging, oldest = _aging(tables["items"])
    verdict, why = _verdict(totals, proofs, off, oldest, rules)
    currencies = {total.currency for total in totals} | {proof.currency or "" for proof in proofs}
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
        closed=tables["closed"].rows,
        decisions=_decisions(tables["by_hand"], rules),
        decided_by_hand=tables["by_hand"].rows,
        digits={
            currency: _money(rules, currency).digits for currency in sorted(currencies) if currency
        },
        contents=dict(contents),
    )


def _money(rules: Rules, currency: str) -> Money:
    return rules.money.get(currency) or Money()


def _check_all_was_read(balances: WrittenTable, manifest: Manifest) -> None:
    """Check that the accounts' bookings equal the extract, to the row and to the cent."""
    rows, amounts = Counter[str](), dict[tuple[str, str], int]()
    read = balances.pieces("bank", "currency", "rows", "moved")
    sums = sum_groups(read, ("bank", "currency"), ("rows", "moved"))
    for (bank, currency), (_, count, sum_) in sums.items():
        rows[bank] += count
        amounts[bank, currency] = sum_
    for control in manifest.controls:
        if control.table != ENTRIES.name:
            continue
        bank, now = control.source, rows[control.source]
        if now != control.rows:
            was = quantity(control.rows, "row was", "rows were")
            raise ReconcileRefused(
                f"{bank}/{control.table}: {was} extracted and Spark has read {now}"
            )
        for currency, sum_ in control.amounts.items():
            if (found := amounts.get((bank, currency), 0)) != sum_:
                raise ReconcileRefused(
                    f"{bank}/{control.table}: the sum of {currency} was {sum_} when it was "
                    f"extracted, and is {found} of what Spark has read"
                )


def _totals(totals: WrittenTable) -> tuple[Total, ...]:
    found = [Total(*row.values()) for piece in totals.pieces() for row in piece.to_pylist()]
    return tuple(sorted(found, key=lambda total: (_ORDER[total.class_], total.currency)))


def _proofs(
    proofs: WrittenTable, rules: Rules
) -> tuple[tuple[Proof, ...], int, Mapping[tuple[str, str], int]]:
    """Each proof as a whole, then the rows that do not hold; their number; and the difference by
    proof and currency.
    """
    wholes = (piece.filter(pc.field("account").is_null()) for piece in proofs.pieces())
    found = [_proof(row) for piece in wholes for row in piece.to_pylist()]
    shown = top_rows(_single_proofs(proofs), rules.limits.evidence, _WORST, by="proof")
    found += [_proof(row) for row in shown]
    do_not_hold = (piece.filter(~pc.field("holds")) for piece in _single_proofs(proofs))
    sums = sum_groups(do_not_hold, ("proof", "currency"), ("off",))
    off = {(proof, currency or ""): sum_ for (proof, currency), (_, sum_) in sums.items()}
    broken = sum(count for count, _ in sums.values())
    named = {proof for proof, _ in off}
    for proof in found:
        if proof.account is not None or proof.holds:
            continue
        if proof.proof.startswith("classes-"):
            raise ReconcileRefused(
                f"the classes do not add up: {proof.about}, but {proof.expected} is not "
                f"{proof.found} in {proof.currency}; this is an error in txmq, please report it"
            )
        off.setdefault((proof.proof, proof.currency or ""), abs(proof.expected - proof.found))
    # Where single accounts or transfers are named, the whole is only their sum.
    whole = sum(
        not proof.holds and proof.account is None and proof.proof not in named for proof in found
    )
    found.sort(key=lambda proof: (
        proof.proof, proof.account is not None, proof.bank or "", proof.currency or "",
        -abs(proof.expected - proof.found), proof.account or "",
    ))  # fmt: skip
    return tuple(found), broken + whole, off


def _single_proofs(proofs: WrittenTable) -> Iterator[pa.Table]:
    """The proofs' rows for single accounts or transfers, with their differences."""
    for piece in proofs.pieces():
        rows = piece.filter(pc.field("account").is_valid())
        off = pc.abs(pc.subtract(_wide(rows["expected"]), _wide(rows["found"])))
        yield rows.append_column("off", off)


def _wide(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """As decimals with room for the difference of any two numbers."""
    return numbers.cast(pa.decimal128(19, 0))


def _proof(row: dict[str, Any]) -> Proof:
    if row["proof"] in _OF_ACCOUNTS and row["account"] is not None:
        row = row | {"account": mask(row["account"])}
    return Proof(**{name: row[name] for name in Proof.__struct_fields__})


def _items(items: WrittenTable, rules: Rules) -> tuple[Item, ...]:
    """A sample of each class: the oldest items, the largest first."""
    shown = top_rows(items.pieces(), rules.limits.evidence, _OLDEST, by="class")
    # The sort is stable, so rows of one class keep their order.
    return tuple(map(_item, sorted(shown, key=lambda row: _ORDER[row["class"]])))


def _item(row: dict[str, Any]) -> Item:
    plain = row | {"class_": row["class"]}
    plain |= {side: _masked(plain[side]) for side in ("payer", "payee")}
    return Item(**{name: plain[name] for name in Item.__struct_fields__})


def _masked(accounts: str | None) -> str | None:
    return accounts and " / ".join(map(mask, accounts.split(" / ")))


def _decisions(by_hand: WrittenTable, rules: Rules) -> tuple[HandDecision, ...]:
    """The latest of them."""
    found = []
    for row in top_rows(by_hand.pieces(), rules.limits.evidence, _LATEST):
        plain = row | {"message_id": row["id"]}
        plain |= {side: _masked(plain[side]) for side in ("payer", "payee")}
        found.append(HandDecision(**{name: plain[name] for name in HandDecision.__struct_fields__}))
    return tuple(found)


def _aging(items: WrittenTable) -> tuple[tuple[Aged, ...], int]:
    """The aging matrix, and the age of the oldest break."""
    read = items.pieces("class", "bucket", "currency", "amount")
    sums = sum_groups(read, ("class", "bucket", "currency"), ("amount",))
    found = [
        Aged(class_, bucket, currency, transfers, at_risk)
        for (class_, bucket, currency), (transfers, at_risk) in sums.items()
    ]
    found.sort(key=lambda cell: (
        _ORDER[cell.class_], cell.currency, BUCKETS.index(cell.bucket)
    ))  # fmt: skip
    breaks = (
        piece.filter(pc.field("group") == "break") for piece in items.pieces("group", "age_days")
    )
    return tuple(found), max(
        (pc.max(piece["age_days"]).as_py() or 0 for piece in breaks), default=0
    )


def _verdict(
    totals: tuple[Total, ...],
    proofs: tuple[Proof, ...],
    off: Mapping[tuple[str, str], int],
    oldest: int,
    rules: Rules,
) -> tuple[Verdict, list[str]]:
    breaks = sum(total.transfers for total in totals if total.group == "break")
    failed = sorted({proof.proof for proof in proofs if not proof.holds})
    over = list(_over(totals, off, breaks, oldest, rules))
    if over:
        return "over limits", over
    if not breaks and not failed:
        return "clean", []
    why = [f"{breaks} {'break is' if breaks == 1 else 'breaks are'} within the limits"]
    why += [f"the proof {proof} does not hold, by an amount within the limits" for proof in failed]
    return "within limits", why[not breaks :]


def _over(
    totals: tuple[Total, ...],
    off: Mapping[tuple[str, str], int],
    breaks: int,
    oldest: int,
    rules: Rules,
) -> Iterator[str]:
    """Say what exceeds the limits of the rules."""
    limits, at_risk = rules.limits, Counter[str]()
    for total in totals:
        if total.group == "break":
            at_risk[total.currency] += total.at_risk
    if breaks > limits.breaks:
        yield f"{quantity(breaks, 'break is', 'breaks are')} more than {limits.breaks}"
    if oldest > limits.age_days:
        yield (
            f"a break is {quantity(oldest, 'business day')} old, and "
            f"{quantity(limits.age_days, 'is', 'are')} allowed"
        )
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
