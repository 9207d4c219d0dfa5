"""The results of many days as people look them up: lists of days, one day, its breaks.

This module only reads. Every function raises :class:`~txmq.errors.ReconcileRefused` if it cannot
read a file, for example one that was changed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from functools import reduce
from operator import and_, or_
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import NotFound, UsageError
from txmq.reconcile.explanations import BreakNote, BreakNotes, Explanations
from txmq.reconcile.report.words import mask_sides
from txmq.reconcile.results import Results, Signature
from txmq.reconcile.storage import Directory
from txmq.reconcile.summary import Proof, Run, SignatureState

__all__ = [
    "BreakPage",
    "DayReport",
    "DayRow",
    "ItemFilter",
    "ReportArchive",
    "find_items",
    "items_of",
]

_ORDER: Final = [("age_days", "descending"), ("amount", "descending"), ("break_id", "ascending")]


class ItemFilter(NamedTuple):
    """Which items to find; ``None`` matches all."""

    class_: str | None = None
    status: str | None = None
    bank: str | None = None
    account: str | None = None
    """As in the books, without a mask."""
    older_than: int | None = None
    """Business days."""

    def condition(self, *, is_complete: bool = False) -> pc.Expression:
        """The condition for items that match all fields.

        Items in flight and explained ones are left out, unless ``is_complete``, or a class or a
        status is given.
        """
        terms = [pc.field("age_days") > (-1 if self.older_than is None else self.older_than)]
        if not is_complete and self.class_ is None and self.status is None:
            terms.append(pc.field("group") == "break")
        for name, value in (("class", self.class_), ("status", self.status)):
            if value is not None:
                terms.append(pc.field(name) == value)
        sides = (("debit_bank", "credit_bank"), self.bank), (("payer", "payee"), self.account)
        for names, value in sides:
            if value is not None:
                # A side that several banks booked has all of their names.
                listed = rf"(^| / ){re.escape(value)}($| / )"
                found = (pc.match_substring_regex(pc.field(name), listed) for name in names)
                terms.append(reduce(or_, found))
        return reduce(and_, terms)


def items_of(
    results: Results,
    run: Run,
    wanted: ItemFilter | None = None,
    *,
    is_complete: bool = False,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """The items of a run that are not agreed, or the first of them: the oldest, then the largest.

    See :meth:`ItemFilter.condition`.
    """
    where = (wanted or ItemFilter()).condition(is_complete=is_complete)
    found: list[pa.Table] = []
    for piece in results.table("items", run.day, run.run_id).pieces(where=where):
        found.append(piece)
        if most is not None:
            found = [_in_order(found)[:most]]
    items: list[dict[str, Any]] = _in_order(found)[:most].to_pylist() if found else []
    return items


def _in_order(items: Iterable[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(items)
    return rows.take(pc.sort_indices(rows, sort_keys=_ORDER))


def find_items(
    items: Sequence[dict[str, Any]], ids: Sequence[str], name: str = "break_id"
) -> list[dict[str, Any]]:
    """The items whose ids begin with one of ``ids``, in the order of the items.

    Raises:
        UsageError: No item matches, or several do.
    """
    found = set()
    for id_ in ids:
        fit = [item for item in items if item[name].startswith(id_)]
        if len(fit) != 1 or not id_:
            noun, command = ("break", "breaks") if name == "break_id" else ("difference", "proofs")
            many = f"several {noun}s" if fit else f"no {noun}"
            remedy = f"see txmq reconcile {command} --all"
            raise UsageError(f"{id_!r} matches {many} of this day; {remedy}")
        found.add(fit[0][name])
    return [item for item in items if item[name] in found]


class DayRow(NamedTuple):
    """A day with a run in force."""

    run: Run
    state: SignatureState
    is_outdated: bool
    """True if it, or a day before it in the list, was not made from the result in force."""


class DayReport(NamedTuple):
    """A day, who signed it, and which proofs do not hold."""

    run: Run
    state: SignatureState
    outdated: str | None
    """Why the result is outdated."""
    signatures: list[Signature]
    broken: list[Proof]
    """The proofs that do not hold, the unexplained ones first; accounts are masked."""
    folder: str
    """Where its files are."""


class BreakPage(NamedTuple):
    """Breaks, the oldest first, then the largest."""

    rows: list[dict[str, Any]]
    has_more: bool


class ReportArchive:
    """The directory of results of a reconciliation, as the console shows it; accounts are masked.

    Args:
        directory: The ``directory`` of the rules.

    Raises:
        ConfigError: Python has no such file system, or a setting is invalid.
        ReconcileRefused: The file system does not answer.
    """

    def __init__(self, directory: Directory) -> None:
        self._results = Results(directory)
        self._explanations = Explanations(directory)

    def __str__(self) -> str:
        return str(self._results.folder)

    def days(self, start: int, count: int) -> tuple[list[DayRow], int]:
        """Up to ``count`` days from ``start`` on, newest first; and the number of all days."""
        days = self._results.days()[::-1]
        # One more, which shows whether the last day continues it.
        wanted = days[start : start + count + 1]
        runs = [run for day in wanted if (run := self._results.current(day)) is not None]
        rows: list[DayRow] = []
        before, is_outdated = None, False
        for run in reversed(runs):
            if before is not None and before.result.end_ms >= run.result.start_ms:
                is_outdated |= run.previous_digest != before.result_digest
            else:
                is_outdated = False
            state = "invalidated" if is_outdated and run.signature != "unsigned" else run.signature
            rows.append(DayRow(run, state, is_outdated))
            before = run
        return rows[::-1][:count], len(days)

    def day(self, day: date) -> DayReport:
        """The report of a day.

        Raises:
            NotFound: It was not reconciled.
        """
        run = self._run(day)
        proofs = [proof for proof in run.result.proofs if not proof.holds]
        return DayReport(
            run=run,
            state=self._results.signature_state(run),
            outdated=self._results.why_outdated(run),
            signatures=self._results.signatures(run.result.business_date),
            broken=sorted(proofs, key=lambda proof: (not proof.is_open, -abs(proof.rest))),
            folder=str(self._results.folder_of(run)),
        )

    def breaks(self, day: date, wanted: ItemFilter, start: int, count: int) -> BreakPage:
        """Up to ``count`` breaks of a day, from index ``start`` on.

        Raises:
            NotFound: The day was not reconciled.
        """
        found = items_of(self._results, self._run(day), wanted, most=start + count + 1)
        notes = self._explanations.notes()
        rows = []
        for row in found[start : start + count]:
            noted = notes.get(row["break_id"], BreakNotes())
            rows.append(mask_sides(row) | {"owner": noted.owner, "due": noted.due})
        return BreakPage(rows, len(found) > start + count)

    def find_break(
        self, day: date, break_id: str
    ) -> tuple[Run, dict[str, Any], Sequence[BreakNote]]:
        """A break of a day with people's comments on it, oldest first.

        Raises:
            NotFound: The day was not reconciled, or it has no such break.
        """
        run = self._run(day)
        table = self._results.table("items", run.day, run.run_id)
        row = next(table.rows(where=pc.field("break_id") == break_id), None)
        if row is None:
            raise NotFound(f"{day} has no break {break_id}; it may be closed, or of another day")
        noted = self._explanations.notes().get(break_id, BreakNotes())
        more = {"owner": noted.owner, "ticket": noted.ticket, "due": noted.due}
        return run, mask_sides(row) | more, noted.comments

    def _run(self, day: date) -> Run:
        run = self._results.current(day)
        if run is None:
            raise NotFound(f"{day} was not reconciled: run txmq reconcile --date {day}")
        return run
