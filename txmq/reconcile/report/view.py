"""The content of the page, in its order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from txmq.reconcile.classes import About, Class
from txmq.reconcile.report import facts
from txmq.reconcile.report.words import amount, points, rate, signed
from txmq.reconcile.summary import BUCKETS, Item, Proof, Result, Run, Total

__all__ = [
    "AgedRow",
    "ClassEvidence",
    "ClassGroup",
    "CurrencySum",
    "Figure",
    "ProofTable",
    "aged",
    "evidence",
    "figures",
    "groups",
    "not_found",
    "open_proofs",
    "proofs",
    "sums",
]

_GROUPS: Final = (
    ("break", "Breaks: these need a person"),
    ("open", "Open: these are in flight, or explained"),
    ("agreed", "Agreed: these need no action"),
)


class Figure(NamedTuple):
    """A figure at the head of the page."""

    name: str
    values: tuple[tuple[str, str], ...]
    """Each with its unit, if it has one."""
    note: str


class CurrencySum(NamedTuple):
    """The sum of rows of totals, in one currency."""

    currency: str
    transfers: int
    debited: int
    returned: int
    credited: int
    ordered: int
    at_risk: int


class ClassGroup(NamedTuple):
    """The classes of one group."""

    title: str
    rows: tuple[tuple[Total, About], ...]

    @property
    def sums(self) -> tuple[CurrencySum, ...]:
        """The sums by currency."""
        return sums(total for total, _ in self.rows)


class AgedRow(NamedTuple):
    """A row of the aging matrix: count and amount for each bucket."""

    name: str
    currency: str
    cells: tuple[tuple[int, int], ...]

    @property
    def with_sum(self) -> tuple[tuple[int, int], ...]:
        """The cells, then their sum."""
        return (*self.cells, (sum(c for c, _ in self.cells), sum(a for _, a in self.cells)))


class ClassEvidence(NamedTuple):
    """A class, and some of its transfers."""

    name: str
    about: About
    items: dict[str, list[Item]]
    """By currency."""
    transfers: int
    """The number of its transfers."""


class ProofTable(NamedTuple):
    """The proofs of one currency; those of counts have none."""

    currency: str
    rows: tuple[Proof, ...]


def figures(run: Run) -> tuple[Figure, ...]:
    """The figures at the head of the page."""
    result = run.result
    flying, flying_sums = facts.in_flight(result)
    before = run.trend[-1] if run.trend else None
    return (
        Figure(
            "Match rate",
            ((rate(result.match_rate), ""),),
            f"{points(result.match_rate, before.match_rate)} since the day before"
            if before
            else "",
        ),
        Figure("Transfers", ((f"{result.transfers:,}", ""),), "each in exactly one class"),
        Figure(
            "Breaks",
            ((f"{result.breaks:,}", ""),),
            f"{signed(result.breaks - before.breaks)} since the day before" if before else "",
        ),
        Figure("Value at risk", _amounts(result, result.at_risk), "the amount in breaks"),
        Figure(
            "Oldest break",
            ((f"{result.oldest_days}", "business days"),) if result.breaks else (("none", ""),),
            "since it was first seen",
        ),
        Figure(
            "In flight",
            ((f"{flying:,}", ""),),
            ", ".join(map(" ".join, _amounts(result, flying_sums))) if flying else "none",
        ),
    )


def _amounts(result: Result, sums: dict[str, int]) -> tuple[tuple[str, str], ...]:
    amounts = tuple(
        (amount(sums[currency], facts.digits(result, currency)), currency)
        for currency in sorted(sums)
        if sums[currency]
    )
    return amounts or (("0", ""),)


def groups(result: Result) -> tuple[ClassGroup, ...]:
    """The classes with transfers; those that need a person first."""
    found = []
    for group, title in _GROUPS:
        rows = [total for total in result.totals if total.group == group]
        rows.sort(key=lambda total: (facts.rank(total.class_), total.currency))
        if rows:
            found.append(
                ClassGroup(title, tuple((total, facts.about(total.class_)) for total in rows))
            )
    return tuple(found)


def sums(totals: Iterable[Total]) -> tuple[CurrencySum, ...]:
    """All rows together, by currency."""
    found: dict[str, CurrencySum] = {}
    for total in totals:
        so_far = found.get(total.currency, CurrencySum(total.currency, 0, 0, 0, 0, 0, 0))
        numbers = (getattr(so_far, name) + getattr(total, name) for name in CurrencySum._fields[1:])
        found[total.currency] = CurrencySum(total.currency, *numbers)
    return tuple(found[currency] for currency in sorted(found))


def not_found(result: Result) -> tuple[str, ...]:
    """The classes without transfers."""
    there = {total.class_ for total in result.totals if total.transfers}
    return tuple(class_.value for class_ in Class if class_ not in there)


def aged(result: Result) -> tuple[tuple[AgedRow, ...], tuple[AgedRow, ...]]:
    """The rows of the aging matrix, and their sums by currency."""
    rows: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for cell in result.aging:
        cells = rows.setdefault((cell.class_, cell.currency), {})
        cells[cell.bucket] = (cell.transfers, cell.at_risk)
    shown = [
        AgedRow(name, currency, tuple(cells.get(bucket, (0, 0)) for bucket in BUCKETS))
        for (name, currency), cells in rows.items()
    ]
    shown.sort(key=lambda row: (facts.rank(row.name), row.currency))
    below = []
    for currency in sorted({row.currency for row in shown}):
        columns = zip(*(row.cells for row in shown if row.currency == currency), strict=True)
        cells_ = tuple((sum(c for c, _ in column), sum(a for _, a in column)) for column in columns)
        below.append(AgedRow("All", currency, cells_))
    return tuple(shown), tuple(below)


def proofs(result: Result) -> tuple[ProofTable, ...]:
    """The proofs of each currency: those with an open difference, the explained ones, then those
    that hold.
    """
    by_unit: dict[str, list[Proof]] = {}
    for proof in result.proofs:
        by_unit.setdefault(proof.currency or "", []).append(proof)
    for rows in by_unit.values():
        rows.sort(key=lambda proof: (not proof.is_open, proof.holds, -abs(proof.difference)))
    return tuple(ProofTable(unit, tuple(by_unit[unit])) for unit in sorted(by_unit))


def open_proofs(result: Result) -> tuple[Proof, ...]:
    """The proofs with an open difference, the greatest first."""
    found = (proof for proof in result.proofs if proof.is_open)
    return tuple(sorted(found, key=lambda proof: -abs(proof.rest)))


def evidence(result: Result) -> tuple[ClassEvidence, ...]:
    """The sample of each class, by currency."""
    by_class: dict[str, dict[str, list[Item]]] = {}
    for item in result.items:
        by_class.setdefault(item.class_, {}).setdefault(item.currency, []).append(item)
    order = {group: at for at, (group, _) in enumerate(_GROUPS)}
    return tuple(
        ClassEvidence(
            name,
            facts.about(name),
            by_class[name],
            sum(total.transfers for total in result.totals if total.class_ == name),
        )
        for name in sorted(
            by_class, key=lambda name: (order[facts.about(name).group], facts.rank(name))
        )
    )
