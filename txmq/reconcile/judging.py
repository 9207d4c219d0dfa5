"""A day's tables, as they were written, are judged: they are made a summary, and the summary gets a
verdict. What somebody signs is so what lies there.
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
from txmq.reconcile.report.masking import mask
from txmq.reconcile.report.words import amount
from txmq.reconcile.rules import Money, Rules
from txmq.reconcile.summary import BUCKETS, Aged, Decided, Item, Proof, Result, Total, Verdict
from txmq.reconcile.tables import ENTRIES
from txmq.reconcile.written import Order, Written, added, foremost

__all__ = ["judged"]

_ORDER: Final = {class_.value: place for place, class_ in enumerate(Class)}
_OF_ACCOUNTS: Final = ("roll-forward", "roll-forward-rows", "account-table")
"""Proofs whose rows are accounts; those of the others are transfers, or nothing."""
_WORST: Final[Order] = (
    ("off", "descending"),
    ("bank", "ascending"),
    ("account", "ascending"),
    ("currency", "ascending"),
)
_OLDEST: Final[Order] = (("age_days", "descending"), ("amount", "descending"), ("key", "ascending"))
_LATEST: Final[Order] = (("decided_ms", "descending"), ("position", "ascending"))


def judged(
    tables: Mapping[str, Written], rules: Rules, manifest: Manifest, contents: Mapping[str, str]
) -> Result:
    """The summary of a day.

    Args:
        tables: What was written, by its name.
        rules: The limits.
        manifest: What was read.
        contents: The hash of each table.

    Raises:
        ReconcileRefused: The classes do not add up to what the banks have booked, or Spark has not
            read all that was extracted: a mistake of txmq's own, or of Spark. Or a table cannot be
            read.
    """
    _see_all_was_read(tables["balances"], manifest)
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


def _see_all_was_read(balances: Written, manifest: Manifest) -> None:
    """What the accounts have had is what was extracted, to the row and to the cent."""
    rows, amounts = Counter[str](), dict[tuple[str, str], int]()
    read = balances.pieces("bank", "currency", "rows", "moved")
    sums = added(read, ("bank", "currency"), ("rows", "moved"))
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


def _totals(totals: Written) -> tuple[Total, ...]:
    found = [Total(*row.values()) for piece in totals.pieces() for row in piece.to_pylist()]
    return tuple(sorted(found, key=lambda total: (_ORDER[total.class_], total.currency)))


def _proofs(
    proofs: Written, rules: Rules
) -> tuple[tuple[Proof, ...], int, Mapping[tuple[str, str], int]]:
    """Each proof as a whole, then what does not hold; how many do not, and by how much they are off
    by proof and currency.
    """
    wholes = (piece.filter(pc.field("account").is_null()) for piece in proofs.pieces())
    found = [_proof(row) for piece in wholes for row in piece.to_pylist()]
    shown = foremost(_alone(proofs), rules.limits.evidence, _WORST, by="proof")
    found += [_proof(row) for row in shown]
    do_not_hold = (piece.filter(~pc.field("holds")) for piece in _alone(proofs))
    sums = added(do_not_hold, ("proof", "currency"), ("off",))
    off = {(proof, currency or ""): sum_ for (proof, currency), (_, sum_) in sums.items()}
    broken = sum(count for count, _ in sums.values())
    named = {proof for proof, _ in off}
    for proof in found:
        if proof.account is not None or proof.holds:
            continue
        if proof.proof.startswith("classes-"):
            raise ReconcileRefused(
                f"the classes do not add up: {proof.about}, but {proof.expected} is not "
                f"{proof.found} in {proof.currency}; that is a mistake of txmq's, please report it"
            )
        off.setdefault((proof.proof, proof.currency or ""), abs(proof.expected - proof.found))
    # Of what is named by accounts or transfers the whole is no more than their sum.
    whole = sum(
        not proof.holds and proof.account is None and proof.proof not in named for proof in found
    )
    found.sort(key=lambda proof: (
        proof.proof, proof.account is not None, proof.bank or "", proof.currency or "",
        -abs(proof.expected - proof.found), proof.account or "",
    ))  # fmt: skip
    return tuple(found), broken + whole, off


def _alone(proofs: Written) -> Iterator[pa.Table]:
    """What was proved of single accounts or transfers, and by how much it is off."""
    for piece in proofs.pieces():
        rows = piece.filter(pc.field("account").is_valid())
        off = pc.abs(pc.subtract(_wide(rows["expected"]), _wide(rows["found"])))
        yield rows.append_column("off", off)


def _wide(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """With room for the difference of any two."""
    return numbers.cast(pa.decimal128(19, 0))


def _proof(row: dict[str, Any]) -> Proof:
    if row["proof"] in _OF_ACCOUNTS and row["account"] is not None:
        row = row | {"account": mask(row["account"])}
    return Proof(**{name: row[name] for name in Proof.__struct_fields__})


def _items(items: Written, rules: Rules) -> tuple[Item, ...]:
    """Some of each class: the oldest, and of these the largest."""
    shown = foremost(items.pieces(), rules.limits.evidence, _OLDEST, by="class")
    # The places of rows of a class stay as they are.
    return tuple(map(_item, sorted(shown, key=lambda row: _ORDER[row["class"]])))


def _item(row: dict[str, Any]) -> Item:
    plain = row | {"class_": row["class"]}
    plain |= {side: _masked(plain[side]) for side in ("payer", "payee")}
    return Item(**{name: plain[name] for name in Item.__struct_fields__})


def _masked(accounts: str | None) -> str | None:
    return accounts and " / ".join(map(mask, accounts.split(" / ")))


def _decisions(by_hand: Written, rules: Rules) -> tuple[Decided, ...]:
    """The latest of them."""
    found = []
    for row in foremost(by_hand.pieces(), rules.limits.evidence, _LATEST):
        plain = row | {"message_id": row["id"]}
        plain |= {side: _masked(plain[side]) for side in ("payer", "payee")}
        found.append(Decided(**{name: plain[name] for name in Decided.__struct_fields__}))
    return tuple(found)


def _aging(items: Written) -> tuple[tuple[Aged, ...], int]:
    """The matrix, and how old the oldest break is."""
    read = items.pieces("class", "bucket", "currency", "amount")
    sums = added(read, ("class", "bucket", "currency"), ("amount",))
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
    """What is more than the rules forgive."""
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
