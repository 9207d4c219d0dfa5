"""The summary of a day and its verdict; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from txmq.errors import ReconcileRefused
from txmq.reconcile.classes import Class
from txmq.reconcile.differences import OF_ACCOUNTS, Cover, Dated, covers_of, dated
from txmq.reconcile.explanations import Explanations
from txmq.reconcile.extract.manifest import Manifest
from txmq.reconcile.report.words import amount, mask, mask_sides
from txmq.reconcile.rules import Rules
from txmq.reconcile.summary import BUCKETS, Aged, Proof, Result, Total, place_of_proof
from txmq.text import quantity

__all__ = ["Findings", "judge"]

_Row: TypeAlias = dict[str, Any]
_CLASSES: Final[list[str]] = list(Class)
_OF_MANIFEST: Final = ("business_date", "start_ms", "end_ms", "as_of_ms", "is_final", "controls")
_NOT_SHOWN: Final = ("group", "debits", "returns", "credits", "last_ms", "history")
"""The columns of ``ITEMS`` that reports leave out."""
_DECISION: Final = (
    *("key", "message_id", "state", "payer", "payee", "amount", "currency"),
    *("decided_ms", "reason"),
)


class Findings(NamedTuple):
    """The input of a day's verdict: sums over its tables, and the rows to show."""

    totals: Sequence[_Row]
    """The rows of ``TOTALS``."""
    proofs: pa.Table
    """The rows of ``PROOFS``."""
    explaining: Sequence[_Row]
    """The items that may explain why the proof of a transfer fails; see :func:`covers_of`."""
    groups: Sequence[_Row]
    """The items by ``class``, ``currency``, ``bucket``, ``age_days`` and ``first_seen``, with their
    ``count`` and the sum of their ``amount``."""
    items: Sequence[_Row]
    """The first items of each class: the oldest, and then the largest."""
    decisions: Sequence[_Row]
    """The latest messages that operators decided on the day."""
    closed: int
    """The number of items that were closed."""
    decided_by_hand: int
    """The number of all decisions by operators."""


def judge(
    findings: Findings,
    rules: Rules,
    manifest: Manifest,
    contents: Mapping[str, str],
    explanations: Explanations | None = None,
) -> Result:
    """Summarize a day and decide its verdict; pure.

    ``contents`` has the hash of each table that the run has written.

    Raises:
        ReconcileRefused: The classes do not add up to the banks' bookings: an error in txmq.
    """
    totals = [msgspec.convert(row, Total) for row in findings.totals]
    rows = findings.proofs.to_pylist()
    covers = covers_of(manifest, rows, findings.explaining, explanations)
    proofs, broken, off = _proofs(rows, covers, rules.limits.evidence)
    aging, oldest, carried = _aging(findings.groups, manifest.business_date)
    items = sorted(
        findings.items,
        key=lambda row: (
            _CLASSES.index(row["class"]), -row["age_days"], -row["amount"], row["key"]
        ),
    )  # fmt: skip
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
        closed=findings.closed,
        decisions=tuple(
            {name: row["id" if name == "message_id" else name] for name in _DECISION}
            for row in map(mask_sides, findings.decisions)
        ),
        decided_by_hand=findings.decided_by_hand,
        digits={name: rules.money_of(name).digits for name in sorted(filter(None, currencies))},
        contents=dict(contents),
        oldest_days=oldest,
        carried=carried,
        zone=rules.day.zone,
        **{name: getattr(manifest, name) for name in _OF_MANIFEST},
    )
    verdict, reasons = "over limits", list(_exceeded_limits(found, off, rules))
    if not reasons:
        verdict, reasons = "within limits", list(_reasons(found))
    if not reasons:
        return found
    why, places = zip(*reasons, strict=True)
    return replace(found, verdict=verdict, why=why, why_at=places)


def _proofs(
    rows: Iterable[_Row], covers: Mapping[Dated, Cover], most: int
) -> tuple[tuple[Proof, ...], int, Counter[tuple[str, str]]]:
    """The proofs and their differences; the number of open differences; what is unexplained, by
    proof and currency.
    """
    differences, wholes, left = list[Proof](), list[Proof](), Counter[tuple[str, str]]()
    of_whole = defaultdict[tuple[str, str | None, str | None], list[Proof]](list)
    for row in rows:
        proof, cover = msgspec.convert(row, Proof), covers.get(dated(row))
        if cover is None:
            wholes.append(proof)
            continue
        proof = _with_cover(proof, cover)
        differences.append(proof)
        left[proof.proof, proof.currency or ""] += abs(proof.rest)
        of_whole[proof.proof, proof.bank, proof.currency].append(proof)
    differences.sort(key=lambda one: (
        one.proof, -abs(one.rest), one.bank or "", one.account or "", one.currency or "",
        one.first_seen or "",
    ))  # fmt: skip
    shown = [
        one for _, some in groupby(differences, lambda one: one.proof) for one in islice(some, most)
    ]
    for whole in wholes:
        if not whole.holds and whole.proof.startswith("classes-"):
            raise ReconcileRefused(
                f"the classes do not add up: {whole.about}, but {whole.expected} is not "
                f"{whole.found} in {whole.currency}; this is an error in txmq, please report it"
            )
        # A proof that does not hold as a whole is the sum of its differences.
        place = whole.proof, whole.bank, whole.currency
        some = [] if whole.holds else of_whole[place]
        shown.append(
            replace(
                whole,
                is_open=any(one.is_open for one in some),
                by_items=sum(one.by_items for one in some),
                by_person=sum(one.by_person for one in some),
            )
        )
    found = [
        replace(one, account=mask(one.account)) if one.proof in OF_ACCOUNTS and one.account else one
        for one in shown
    ]
    found.sort(key=lambda proof: (
        proof.proof, proof.first_seen is not None, proof.bank or "", proof.currency or "",
        not proof.is_open, -abs(proof.difference), proof.account or "", proof.first_seen or "",
    ))  # fmt: skip
    return tuple(found), sum(one.is_open for one in differences), left


def _with_cover(proof: Proof, cover: Cover) -> Proof:
    if cover.is_by_item:
        return replace(proof, by_items=proof.difference)
    if (person := cover.person) is None:
        return replace(proof, is_open=True)
    who = {"explained_by": person.by, "explanation": person.reason, "until": person.last}
    return replace(proof, by_person=proof.difference, **who)


def _aging(groups: Iterable[_Row], day: str) -> tuple[tuple[Aged, ...], int, int]:
    """The aging matrix, the age of the oldest break, and the number of items from earlier days."""
    cells = defaultdict[tuple[str, str, str], list[int]](lambda: [0, 0])
    oldest = carried = 0
    for row in groups:
        cell = cells[row["class"], row["bucket"], row["currency"]]
        cell[0] += row["count"]
        cell[1] += int(row["amount"])
        if Class(row["class"]).group == "break":
            oldest = max(oldest, row["age_days"])
        if row["first_seen"] < day:
            carried += row["count"]
    found = [Aged(*place, *of) for place, of in cells.items()]
    found.sort(key=lambda cell: (
        _CLASSES.index(cell.class_), cell.currency, BUCKETS.index(cell.bucket)
    ))  # fmt: skip
    return tuple(found), oldest, carried


def _reasons(found: Result) -> Iterator[tuple[str, str]]:
    """The sentences about breaks and proofs within the limits, with their places on the page."""
    if found.breaks:
        sentence = f"{quantity(found.breaks, 'break is', 'breaks are')} within the limits"
        yield sentence, "evidence"
    open_ = {proof.proof: proof.place for proof in found.proofs if proof.is_open}
    for proof, place in sorted(open_.items()):
        yield f"the proof {proof} does not hold, by an amount within the limits", place


def _exceeded_limits(
    found: Result, off: Mapping[tuple[str, str], int], rules: Rules
) -> Iterator[tuple[str, str]]:
    """The sentences about exceeded limits, with their places on the page."""
    limits = rules.limits
    if found.breaks > limits.breaks:
        sentence = f"{quantity(found.breaks, 'break is', 'breaks are')} more than {limits.breaks}"
        yield sentence, "evidence"
    if found.oldest_days > limits.age_days:
        age, allowed = quantity(found.oldest_days, "business day"), limits.age_days
        sentence = f"a break is {age} old, and {quantity(allowed, 'is', 'are')} allowed"
        yield sentence, _place_of_break(found.items, "age_days")
    for currency, sum_ in found.at_risk.items():
        money = rules.money_of(currency)
        if sum_ > money.materiality:
            risk, most = (amount(minor, money.digits) for minor in (sum_, money.materiality))
            sentence = f"{risk} {currency} at risk is more than the {most} that is material"
            of_currency = (item for item in found.items if item["currency"] == currency)
            yield sentence, _place_of_break(of_currency, "amount")
    for (proof, currency), sum_ in sorted(off.items()):
        money = rules.money_of(currency)
        if sum_ > money.materiality:
            off_by = f"{amount(sum_, money.digits)} {currency}" if currency else f"{sum_}"
            sentence = f"the proof {proof} does not hold: it is off by {off_by}"
            yield sentence, place_of_proof(proof, currency)


def _place_of_break(items: Iterable[dict[str, Any]], greatest: str) -> str:
    """The place of the break with the greatest value in a column; the list if none is shown."""
    breaks = [item for item in items if Class(item["class"]).group == "break"]
    most = max(breaks, key=lambda item: item[greatest], default=None)
    return "evidence" if most is None else f"break-{most['break_id']}"
