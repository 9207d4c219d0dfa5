"""Explanations: what people have said about breaks, line by line, and what they have taken back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from txmq.errors import ReconcileRefused, UsageError
from txmq.reconcile.signing import desk
from txmq.reconcile.summary import FIGURES, Figures
from txmq.reconcile.tables import ITEMS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EXPLANATIONS", "Explanation", "Explanations"]

_FILE = "explanations.jsonl"
_TOLD: Final = {"break_id", "class", *FIGURES, "explained_by", "explanation"}
EXPLANATIONS: Final = Table(
    "explanations",
    "What people have said about breaks, and what these were when it was said.",
    tuple(column for column in ITEMS.columns if column.name in _TOLD),
)


class Explanation(Struct, frozen=True):
    """What somebody has said about a break, or that nothing said about it holds any more."""

    break_id: str
    class_: str = msgspec.field(name="class")
    by: str
    reason: str
    at_ms: int
    is_withdrawn: bool = False
    figures: Figures | None = None
    """What the break was then. Without them nobody knows what was meant: it holds for nothing."""


class Explanations:
    """Those of a directory of results; the last one about a break holds.

    Args:
        directory: Where the results are.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def explain(self, item: Mapping[str, Any], by: str, reason: str, now_ms: int) -> Explanation:
        """Say what a break is; it is none from the next run on, until something about it changes.

        Args:
            item: The break, as a row of ``ITEMS`` in which nothing is masked.
            by: Who says it.
            reason: In words.
            now_ms: When.

        Raises:
            UsageError: There is no name or no reason.
        """
        class_ = item["was"] or item["class"]  # Of what is explained already, what it was.
        figures = Figures(**{name: item[name] for name in FIGURES})
        said = by.strip(), reason.strip(), now_ms
        return self._add(Explanation(item["break_id"], class_, *said, figures=figures))

    def withdraw(self, break_id: str, by: str, reason: str, now_ms: int) -> Explanation:
        """Take back what was said about a break.

        Raises:
            UsageError: Nothing was said about it, or there is no name or no reason.
        """
        found = {explanation.break_id: explanation for explanation in self.in_force()}.get(break_id)
        if found is None:
            raise UsageError(f"nobody has explained the break {break_id}")
        said = by.strip(), reason.strip(), now_ms
        return self._add(Explanation(break_id, found.class_, *said, is_withdrawn=True))

    def all(self) -> list[Explanation]:
        """Every line, oldest first.

        Raises:
            ReconcileRefused: Somebody has changed the file by hand, and it cannot be read.
        """
        path = self._directory / _FILE
        try:
            lines = path.read_bytes().splitlines()
            return [msgspec.json.decode(line, type=Explanation) for line in lines if line.strip()]
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise ReconcileRefused(f"{path} holds no explanations: {error}") from error

    def in_force(self) -> list[Explanation]:
        """Those that hold, by the breaks' ids."""
        last = {explanation.break_id: explanation for explanation in self.all()}
        held = (last[break_id] for break_id in sorted(last))
        return [
            explanation
            for explanation in held
            if explanation.figures is not None and not explanation.is_withdrawn
        ]

    @property
    def digest(self) -> str:
        """The same while the same explanations hold; empty where none does."""
        held = self._rows()
        return hashlib.sha256(msgspec.json.encode(held)).hexdigest() if held else ""

    def frame(self, spark: SparkSession) -> DataFrame | None:
        """Those that hold, as ``EXPLANATIONS``; none where none does."""
        rows = self._rows()
        return spark.createDataFrame(rows, EXPLANATIONS.ddl) if rows else None

    def _rows(self) -> list[tuple[Any, ...]]:
        """Those that hold, as rows of ``EXPLANATIONS``."""
        found = []
        for explanation in self.in_force():
            said = {
                "break_id": explanation.break_id,
                "class": explanation.class_,
                "explained_by": explanation.by,
            }
            said |= {"explanation": explanation.reason, **msgspec.to_builtins(explanation.figures)}
            found.append(tuple(said[name] for name in EXPLANATIONS.names))
        return found

    def _add(self, one: Explanation) -> Explanation:
        if not one.by or not one.reason:
            raise UsageError("an explanation has a name and a reason, so that others can ask")
        with desk(self._directory) as disk:
            lines = [msgspec.json.encode(explanation) for explanation in (*self.all(), one)]
            disk.replace(_FILE, b"\n".join(lines) + b"\n")
        return one
