"""The results of many days as people look them up: lists of days, one day, its breaks.

It only reads. Every method raises :class:`~txmq.errors.ReconcileRefused` if it cannot read a file,
for example one that was changed by hand.
"""

from __future__ import annotations

from datetime import date
from typing import Any, NamedTuple

import pyarrow.compute as pc

from txmq.errors import NotFound
from txmq.reconcile.explanations import BreakNote, Explanations
from txmq.reconcile.report.words import mask_sides
from txmq.reconcile.results import Results, Signature
from txmq.reconcile.storage import Directory
from txmq.reconcile.summary import Proof, Run, SignatureState
from txmq.reconcile.written_table import items_of

__all__ = ["BreakFilter", "BreakPage", "DayReport", "DayRow", "ReportArchive"]


class DayRow(NamedTuple):
    """A day with a run in force."""

    run: Run
    state: SignatureState
    is_outdated: bool
    """Whether it, or a day before it in the list, was not made from the result in force."""


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


class BreakFilter(NamedTuple):
    """The breaks that are wanted; an empty field takes all."""

    class_: str = ""
    status: str = ""
    bank: str = ""
    older_than: int | None = None
    """Business days."""


class BreakPage(NamedTuple):
    """Breaks, the oldest first, then the largest; accounts are masked."""

    rows: list[dict[str, Any]]
    has_more: bool


class ReportArchive:
    """The directory of results of a reconciliation.

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
        """Days from a place in the list on, the newest first; and the number of all days."""
        days = self._results.days()[::-1]
        # One more, which shows whether the last of them continues it.
        wanted = days[start : start + count + 1]
        runs = [run for day in wanted if (run := self._results.current(day)) is not None]
        rows: list[DayRow] = []
        is_outdated = False
        for place in range(len(runs) - 1, -1, -1):
            run = runs[place]
            before = runs[place + 1] if place + 1 < len(runs) else None
            if before is not None and before.result.end_ms >= run.result.start_ms:
                is_outdated |= run.previous_digest != before.result_digest
            else:
                is_outdated = False
            state = "invalidated" if is_outdated and run.signature != "unsigned" else run.signature
            rows.append(DayRow(run, state, is_outdated))
        return rows[::-1][:count], len(days)

    def day(self, day: date) -> DayReport:
        """A day.

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

    def breaks(self, day: date, wanted: BreakFilter, start: int, count: int) -> BreakPage:
        """Breaks of a day from a place in their order on.

        Without a class or a status the list leaves out transfers in flight and explained breaks.

        Raises:
            NotFound: The day was not reconciled.
        """
        run = self._run(day)
        names = {"class": wanted.class_, "status": wanted.status, "bank": wanted.bank}
        found = items_of(
            self._results.folder,
            run,
            {name: value or None for name, value in names.items()},
            older_than=wanted.older_than,
            most=start + count + 1,
        )
        rows = [mask_sides(row) for row in found[start : start + count]]
        latest = {name: note for name, (note, _) in self._explanations.notes().items()}
        for row in rows:
            note = latest.get(row["break_id"])
            row["owner"], row["due"] = (note.owner, note.due) if note else ("", "")
        return BreakPage(rows, len(found) > start + count)

    def find_break(self, day: date, break_id: str) -> tuple[Run, dict[str, Any], list[BreakNote]]:
        """A break of a day with what people noted on it, oldest first; accounts are masked.

        Raises:
            NotFound: The day was not reconciled, or it has no such break.
        """
        run = self._run(day)
        table = self._results.table("items", run.day, run.run_id)
        row = next(table.rows(where=pc.field("break_id") == break_id), None)
        if row is None:
            raise NotFound(f"{day} has no break {break_id}; it may be closed, or of another day")
        latest, comments = self._explanations.notes().get(break_id, (None, []))
        more = {"owner": "", "ticket": "", "due": ""}
        if latest is not None:
            more = {"owner": latest.owner, "ticket": latest.ticket, "due": latest.due}
        return run, mask_sides(row) | more, comments

    def _run(self, day: date) -> Run:
        run = self._results.current(day)
        if run is None:
            raise NotFound(f"{day} was not reconciled: run txmq reconcile --date {day}")
        return run
