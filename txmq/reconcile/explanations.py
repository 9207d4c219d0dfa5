"""Explanations of breaks and of proofs, and their withdrawals, one in each line of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from txmq.errors import UsageError
from txmq.reconcile.record_file import add_records, read_records
from txmq.reconcile.summary import FIGURES, Figures
from txmq.reconcile.tables import ITEMS, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.reconcile.differences import Difference

__all__ = ["EXPLANATIONS", "Amounts", "Explanation", "Explanations", "ProofExplanation"]

_BREAKS, _PROOFS = "explanations.jsonl", "proof-explanations.jsonl"
_COLUMNS: Final = {"break_id", "class", *FIGURES, "explained_by", "explanation"}
_LASTING: Final = ("account-table", "clearing", "double-entry")
"""Proofs whose differences last; the others prove the bookings of one day."""
EXPLANATIONS: Final = TableSchema(
    "explanations",
    "Explanations, and the figures of each break when it was explained.",
    tuple(column for column in ITEMS.columns if column.name in _COLUMNS),
)
Amounts: TypeAlias = dict[str, tuple[int, ...]]
"""The amounts of differences, by their ids."""


class Explanation(Struct, frozen=True):
    """An explanation of a break, or the withdrawal of one."""

    break_id: str
    class_: str = msgspec.field(name="class")
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False
    figures: Figures | None = None
    """The break's figures at that time. An explanation without them has no effect."""
    proofs: Amounts = {}
    """The differences of proofs that its transfer had at that time."""


class ProofExplanation(Struct, frozen=True, omit_defaults=True):
    """An explanation of a proof's difference, or the withdrawal of one."""

    id: str
    proof: str
    bank: str | None
    account: str | None
    currency: str | None
    amounts: tuple[int, ...]
    day: str
    """The business date on which it was explained."""
    until: str
    """The last business date on which it counts."""
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False

    def is_valid_on(self, day: str) -> bool:
        """True if it counts on a business date, as long as the amounts are the same."""
        return self.day <= day <= self.until


class Explanations:
    """The explanations in a directory of results; the last one of a break is valid.

    Args:
        directory: The directory of results.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def explain(
        self,
        items: Sequence[Mapping[str, Any]],
        by: str,
        reason: str,
        now_ms: int,
        differences: Sequence[Difference] = (),
    ) -> list[Explanation]:
        """Explain breaks. They stop counting as such from the next run until their facts change.

        Args:
            items: The breaks, as rows of ``ITEMS`` without masks.
            by: The name of the person.
            reason: Why they are not breaks.
            now_ms: The time.
            differences: Differences of proofs; those that name a break's transfer are explained
                with it.

        Raises:
            UsageError: The name or the reason is missing.
        """
        made = [
            Explanation(
                item["break_id"],
                item["was"] or item["class"],  # An explained break has its own class in `was`.
                by.strip(),
                reason.strip(),
                now_ms,
                figures=Figures(**{name: item[name] for name in FIGURES}),
                proofs={one.id: one.amounts for one in differences if one.account == item["key"]},
            )
            for item in items
        ]
        return self._add(_BREAKS, made)

    def explain_proofs(
        self,
        differences: Sequence[Difference],
        day: str,
        until: str,
        by: str,
        reason: str,
        now_ms: int,
    ) -> list[ProofExplanation]:
        """Explain differences of proofs, from a business date until another one.

        A difference in the bookings of one day is only explained on that day: the same amount on
        another day is another difference.

        Raises:
            UsageError: The name or the reason is missing, or ``until`` is before ``day``.
        """
        if until < day:
            raise UsageError(f"--until {until} is before {day}, the date of the difference")
        made = [
            ProofExplanation(
                *(one.id, one.proof, one.bank, one.account, one.currency, one.amounts, day),
                *(until if _is_lasting(one) else day, by.strip(), reason.strip(), now_ms),
            )
            for one in differences
        ]
        return self._add(_PROOFS, made)

    def withdraw(self, id_: str, by: str, reason: str, now_ms: int) -> None:
        """Withdraw the explanation of a break or of a proof.

        Raises:
            UsageError: It has no explanation, or the name or the reason is missing.
        """
        more = {"by": by.strip(), "reason": reason.strip(), "at_ms": now_ms, "is_withdrawn": True}
        breaks = [one for one in self.in_force() if one.break_id == id_]
        proofs = [one for one in self.proofs_in_force() if one.id == id_]
        if not breaks and not proofs:
            raise UsageError(
                f"{id_} has no explanation; see txmq reconcile breaks --all, or proofs --all"
            )
        for file, found in ((_BREAKS, breaks), (_PROOFS, proofs)):
            self._add(file, [msgspec.structs.replace(one, **more) for one in found])

    def all(self) -> list[Explanation]:
        """All explanations of breaks and their withdrawals, oldest first.

        Raises:
            ReconcileRefused: The file cannot be read; it was changed by hand.
        """
        return read_records(self._directory, _BREAKS, Explanation)

    def in_force(self) -> list[Explanation]:
        """The valid explanations of breaks, by break id."""
        last = {explanation.break_id: explanation for explanation in self.all()}
        return [
            explanation
            for _, explanation in sorted(last.items())
            if explanation.figures is not None and not explanation.is_withdrawn
        ]

    def proofs_in_force(self) -> list[ProofExplanation]:
        """The explanations of proofs that nobody has withdrawn, by id and date.

        Raises:
            ReconcileRefused: The file cannot be read; it was changed by hand.
        """
        every = read_records(self._directory, _PROOFS, ProofExplanation)
        # A later explanation does not replace that of an earlier date, which may run again.
        last = {(explanation.id, explanation.day): explanation for explanation in every}
        return [one for _, one in sorted(last.items()) if not one.is_withdrawn]

    @property
    def digest(self) -> str:
        """A hash of the valid explanations; empty without any."""
        rows: list[Any] = [(*self._row(one), one.proofs) for one in self.in_force()]
        rows += [msgspec.structs.replace(one, at_ms=0) for one in self.proofs_in_force()]
        return hashlib.sha256(msgspec.json.encode(rows, order="sorted")).hexdigest() if rows else ""

    def frame(self, spark: SparkSession) -> DataFrame | None:
        """The valid explanations, as ``EXPLANATIONS``; ``None`` without any."""
        rows = [self._row(one) for one in self.in_force()]
        return spark.createDataFrame(rows, EXPLANATIONS.ddl) if rows else None

    def _row(self, explanation: Explanation) -> tuple[Any, ...]:
        """An explanation as a row of ``EXPLANATIONS``."""
        row = {
            "break_id": explanation.break_id,
            "class": explanation.class_,
            "explained_by": explanation.by,
            "explanation": explanation.reason,
            **msgspec.to_builtins(explanation.figures),
        }
        return tuple(row[name] for name in EXPLANATIONS.names)

    def _add(self, file: str, made: list[Any]) -> list[Any]:
        if not all(one.by and one.reason for one in made):
            raise UsageError(
                "an explanation needs a name and a reason: give them with --by and --reason"
            )
        add_records(self._directory, file, made)
        return made


def _is_lasting(difference: Difference) -> bool:
    # A booking without a transfer has the kind `other` instead of a key, on each day anew.
    return difference.proof in _LASTING and difference.account not in {None, "other"}
